"""How the recorder is read in each torch version, and the reason where nothing works."""

import gc
import json
import sys
import threading
from types import SimpleNamespace
from weakref import ref

import pytest

from ddtop.agent.guard import guard
from ddtop.agent.probes import recorder as recorder_module
from ddtop.agent.probes.recorder import DIRECT_ENTRIES_MAX, Recorder

CANNOT_CAST = "Unable to cast Python instance of type <class 'dict'> to C++ type '?'"


def entry(seq, **changed):
    """An entry of gloo's, as torch 2.15 writes it."""
    return {
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[3]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "time_created_ns": 5,
        "retired": True,
        "timeout_ms": 1800000,
        "is_p2p": False,
        "thread_id": "139641695316864",
        "thread_name": "python",
    } | changed


class Torch:
    """`torch._C._distributed_c10d` of one version; `reads` lists what was asked for entries."""

    def __init__(self, monkeypatch, version="2.15.0+cu132", hip=None):
        self.reads, self.list, self.devices = [], [entry(1), entry(2)], []
        self.native = SimpleNamespace(_dump_fr_trace_json=self._dump("fr"))
        native = SimpleNamespace(_distributed_c10d=self.native, _cuda_setDevice=self.devices.append)
        torch = SimpleNamespace(__version__=version, version=SimpleNamespace(hip=hip), _C=native)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch._C", native)

    def _dump(self, name):
        def dump(collectives, _only_active):
            if not collectives:
                status = {"last_enqueued_collective": "2", "last_completed_collective": "2"}
                return json.dumps({"pg_status": {"0": status}}).encode()
            self.reads.append(name)
            return json.dumps({"entries": self.list}).encode()

        return dump

    def has_nccl(self):
        self.native._dump_nccl_trace_json = self._dump("nccl")
        return self

    def has_handlers(self, reads_parameters):
        """Up to torch 2.14 `fr_trace_json` reads no parameters; later ones cannot return a map."""

        def handler(request, response):
            if reads_parameters:
                request.params()
                raise RuntimeError(CANNOT_CAST)
            self.reads.append("handler")
            response.set_content(json.dumps({"entries": self.list}), "application/json")

        self.native._Request = self.native._Response = type("Base", (), {})
        self.native._get_handler = lambda _name: handler
        return self


def seqs(found):
    return None if found is None else [one.collective_seq_id for _, one in found]


def test_a_handler_that_takes_no_request_of_python_is_followed_by_the_direct_read(monkeypatch):
    torch = Torch(monkeypatch).has_handlers(reads_parameters=True)
    recorder = Recorder()

    assert seqs(recorder.entries(20)) == [1, 2]
    assert (torch.reads, recorder.why_off) == (["fr"], None)


def test_a_handler_that_works_is_the_only_way_that_is_taken(monkeypatch):
    torch = Torch(monkeypatch, "2.14.1").has_handlers(reads_parameters=False)

    assert seqs(Recorder().entries(2000)) == [1, 2]
    assert torch.reads == ["handler"]


def test_an_error_of_torch_is_not_kept(monkeypatch):
    """It holds frames, and a frame what its function had, until the next collection."""

    raised = []

    class TorchError(RuntimeError):
        def __init__(self):
            raised.append(ref(self))

    def fails(_collectives, _only_active):
        raise TorchError

    torch = Torch(monkeypatch)
    torch.native._dump_fr_trace_json = fails
    gc.disable()
    try:
        Recorder().entries(20)
        assert [error() for error in raised] == [None]
    finally:
        gc.enable()


def test_many_entries_are_read_directly_only_for_a_rank_that_makes_no_progress(monkeypatch):
    torch = Torch(monkeypatch)
    recorder = Recorder()

    assert recorder.entries(DIRECT_ENTRIES_MAX + 1) is None
    assert torch.reads == []
    assert seqs(recorder.entries(DIRECT_ENTRIES_MAX + 1, True)) == [1, 2]


def test_direct_reads_leave_the_gil_to_the_program_nearly_all_the_time(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(recorder_module.time, "monotonic", lambda: clock[0])
    torch = Torch(monkeypatch)
    slow = torch._dump("fr")

    def dump(*arguments):
        clock[0] += 0.02
        return slow(*arguments)

    torch.native._dump_fr_trace_json = dump
    recorder = Recorder()
    recorder.entries(2000, True)

    assert recorder.entries(2000, True) is None
    clock[0] += 0.02 * 200
    assert seqs(recorder.entries(2000, True)) == [1, 2]


def test_a_ring_that_would_stall_the_program_for_long_is_never_read_directly(monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100000")
    torch = Torch(monkeypatch)
    recorder = Recorder()

    assert recorder.entries(90_000, True) is None
    assert torch.reads == []
    assert recorder.why_off == (
        "torch 2.15.0: entries cannot be read (90,000 of them would stall the program); verdicts"
        " name ranks, not operations"
    )


@pytest.mark.parametrize(
    "changed",
    [{"record_id": "x"}, {"process_group": "0"}, {"profiling_name": ""}, {"collective_seq_id": 0}],
)
def test_entries_of_another_layout_are_none_and_the_reason_is_reported(monkeypatch, changed):
    """If a key has another name, it has its default value."""
    torch = Torch(monkeypatch, "2.16.0")
    torch.list = [entry(1, **changed)]
    recorder = Recorder()

    assert recorder.entries(20) is None
    assert recorder.why_off == (
        "torch 2.16.0: entries cannot be read (its entries have a layout that ddtop does not"
        " know); verdicts name ranks, not operations"
    )


def test_a_torch_without_a_recorder_is_reported(monkeypatch):
    torch = Torch(monkeypatch)
    del torch.native._dump_fr_trace_json
    recorder = Recorder()

    assert (recorder.status(), recorder.entries(20)) == ({}, None)
    assert "no flight recorder" in recorder.why_off


def test_on_rocm_rccl_is_asked_for_nothing(monkeypatch):
    """ncclCommDump: with USE_ROCM each dump queries every communicator."""
    torch = Torch(monkeypatch, hip="6.3").has_nccl()
    recorder = Recorder()

    assert set(recorder.status()) == {("fr", "0")}
    assert [name for name, _ in recorder.entries(20, True, 0)] == ["fr", "fr"]
    assert torch.reads == ["fr"]
    assert "RCCL" in recorder.why_off


def test_entries_of_nccl_are_read_on_the_ranks_own_gpu_and_only_when_asked_for(monkeypatch):
    torch = Torch(monkeypatch).has_nccl()
    torch.list = [entry(1, profiling_name="nccl:all_reduce")]
    recorder = Recorder()

    assert [name for name, _ in recorder.entries(20)] == ["fr"]
    assert torch.devices == []
    assert [name for name, _ in recorder.entries(20, True, 3)] == ["fr", "nccl"]
    assert torch.devices == [3]


def test_a_read_that_hangs_is_left_alone_and_never_tried_again(monkeypatch):
    """HeartbeatMonitor logs "we did notice hangs" when a dump queries CUDA events."""
    monkeypatch.setattr(recorder_module, "DEADLINE_S", 0.05)
    torch, over = Torch(monkeypatch), threading.Event()
    torch.native._dump_fr_trace_json = lambda *_: over.wait(30)
    recorder = Recorder()

    assert recorder.entries(20) is None
    assert "a read did not end within" in recorder.why_off
    assert recorder.entries(20) is None
    over.set()


def test_one_error_of_cuda_does_not_switch_the_entries_off(monkeypatch):
    torch, answers = Torch(monkeypatch), iter([False, True])
    works = torch._dump("fr")

    def dump(*arguments):
        if next(answers):
            return works(*arguments)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.native._dump_fr_trace_json = dump
    recorder = Recorder()

    assert (recorder.entries(20), recorder.why_off) == (None, None)
    assert seqs(recorder.entries(20)) == [1, 2]


def test_errors_of_every_read_switch_the_entries_off(monkeypatch):
    def dump(*_):
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch = Torch(monkeypatch)
    torch.native._dump_fr_trace_json = dump
    recorder = Recorder()
    for _ in range(3):
        recorder.entries(20)

    assert "device-side assert" in recorder.why_off


def test_a_status_of_another_layout_leaves_the_numbers(bench, monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    torch = Torch(monkeypatch, "2.16.0")
    torch.native._dump_fr_trace_json = lambda *_: b'{"status_of_groups": {}}'
    bench.probe._recorder = Recorder()
    bench.passes(3, steps=True)
    bench.passes(3, waiting=True)

    assert bench.pending is not None
    assert guard.off == {
        "recorder status": "torch 2.16.0: the status of groups is not where it was"
    }


def test_why_entries_are_off_is_one_of_the_probes_that_are_off(bench, monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    bench.recorder.why_off = "torch 2.16.0: entries cannot be read"
    bench.passes(3, steps=True, completed=0)
    bench.passes(3, completed=1)

    assert guard.off == {"entries": "torch 2.16.0: entries cannot be read"}
