"""NCCL of torch 2.15, whose entries a hook writes: doubles that do what its source says.

Source: FlightRecorderHook.cpp. `onPre`: the status has `op_id`, which begins at 0 and counts sends
and receives too (`ProcessGroup.hpp`, `hookOpIdCounter_`); `collective_seq_id` begins at 1. It runs
before the backend is called. `retireCompleted`: only what has come back is retired. `onPost`: a
part of a coalesced call has no Work, and is never retired.
"""

import json
import sys
from types import SimpleNamespace

import pytest

from ddtop.agent.probes.recorder import HOOKED, Recorder
from tests.agent.probing import SECOND
from tests.running import python


class Hook:
    """The recorder of one group. `asked`: the backends whose recorders were dumped."""

    def __init__(self):
        self.entries, self.asked = [], []
        self.ops, self.seq, self.done = 0, 0, -1

    def calls(self, op="all_reduce", single=False, work=True):
        """A call enters NCCL."""
        self.seq += not single
        self.entries.append(
            {
                "record_id": self.ops,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": self.seq,
                "p2p_seq_id": self.ops + 1 - self.seq,
                "op_id": self.ops,
                "profiling_name": f"nccl2:{op}",
                "input_sizes": [[3]],
                "input_dtypes": ["Float"],
                "state": "scheduled",
                "retired": False,
                "is_p2p": single,
                "time_created_ns": 5,
                "timeout_ms": 600_000,
                "work": work,
            }
        )
        self.ops += 1

    def returns(self):
        """The completion hook has run for every entry that has a Work."""
        for entry in self.entries:
            if entry["work"]:
                entry["retired"], entry["state"] = True, "completed"
                self.done = max(self.done, entry["op_id"])

    def dump(self, collectives, _only_active, backend="gloo"):
        self.asked.append((backend, collectives))
        if backend != "nccl2" or not self.entries:
            return b'{"pg_config": {}, "pg_status": {}, "version": "2.10"}'
        if collectives:
            return json.dumps({"entries": self.entries}).encode()
        status = {"last_enqueued_collective": self.ops - 1, "last_completed_collective": self.done}
        return json.dumps({"pg_status": {"0": status}}).encode()

    def number(self):
        """The Work of `ProcessGroupNCCL2`: one for each call."""
        return self.ops


@pytest.fixture
def torch(monkeypatch):
    """torch 2.15, whose dump has a parameter for the backend."""
    hook = Hook()
    _becomes_torch(hook, monkeypatch)
    return hook


def _becomes_torch(hook, monkeypatch):
    def dump(*arguments):
        return hook.dump(*arguments)

    dump.__doc__ = "_dump_fr_trace_json(includeCollectives: bool, backend: str = 'gloo') -> bytes"
    native = SimpleNamespace(_distributed_c10d=SimpleNamespace(_dump_fr_trace_json=dump))
    version = SimpleNamespace(hip=None)
    found = SimpleNamespace(__version__="2.15.0", version=version, _C=native, device=str)
    monkeypatch.setitem(sys.modules, "torch", found)
    monkeypatch.setitem(sys.modules, "torch._C", native)


@pytest.fixture
def nccl(torch, bench, monkeypatch):
    """The probe of a rank whose only group is on NCCL."""
    _becomes_torch(torch, monkeypatch)
    bench.world.pg_map = {bench.group: ("nccl", None)}
    bench.probe._recorder = None
    bench.probe._captures = SimpleNamespace(watch=lambda: None, may_be_open=False, replays=0)
    bench.group._get_sequence_number_for_group = torch.number

    def passes(seconds):
        for _ in range(round(seconds * 4)):
            bench.now += SECOND // 4
            bench.probe.look(bench.now, 0, False)

    bench.passes_by = passes
    return bench


def test_its_status_is_counted_from_one_as_that_of_gloo_is(torch):
    for _ in range(3):
        torch.calls()
    torch.returns()
    torch.calls()

    assert Recorder().status({"fr"}) == {(HOOKED, "0"): (4, 3)}


def test_its_entries_are_read_only_when_asked_for_and_without_a_gpu(torch):
    torch.calls()
    recorder = Recorder()

    assert recorder.entries(20) == []
    ((name, entry),) = recorder.entries(20, True, None, True)
    assert (name, entry.op_id, entry.collective_seq_id) == (HOOKED, 1, 1)


def test_a_job_on_gloo_makes_no_recorder_for_nccl(torch):
    Recorder().status({HOOKED})

    assert [backend for backend, _ in torch.asked] == ["gloo"]


def test_a_rank_that_waits_in_nccl_is_seen_with_the_name_of_its_operation(torch, nccl):
    for _ in range(5):
        torch.calls()
        torch.returns()
        nccl.passes_by(0.5)
    torch.calls("all_gather")
    nccl.passes_by(8)

    (progress,) = nccl.probe.progress(0)
    (waits,) = nccl.probe.open_collectives()
    assert (progress.enqueued, progress.completed, progress.p2p_offset) == (6, 5, 0)
    assert progress.pending_since_unix_ns is not None
    assert (waits.op, waits.seq, waits.timeout_ms) == ("all_gather", 6, 600_000)


def test_before_four_seconds_no_entries_are_read(torch, nccl):
    torch.calls()
    torch.returns()
    nccl.passes_by(1)
    torch.calls()
    nccl.passes_by(3)

    assert (HOOKED, True) not in torch.asked


def test_sends_and_receives_are_taken_out_of_the_number_that_ranks_compare(torch, nccl):
    torch.calls()
    torch.calls("send 0->1", single=True)
    torch.calls("recv 0<-1", single=True)
    torch.returns()
    nccl.passes_by(1)
    torch.calls()
    nccl.passes_by(8)

    (progress,) = nccl.probe.progress(0)
    assert progress.enqueued - (progress.p2p_offset or 0) == 2
    assert [one.seq for one in nccl.probe.open_collectives()] == [2]


def test_parts_of_a_coalesced_call_are_done_when_a_later_call_is(torch):
    torch.calls(work=False)
    torch.calls(work=False)
    torch.calls()
    torch.returns()
    torch.calls()
    entries = [entry for _, entry in Recorder().entries(20, True, None, True)]

    assert [entry.retired for entry in entries] == [True, True, True, False]


REAL = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import torch._C._distributed_c10d as native
from ddtop.agent.probes import recorder
recorder.HOOKED = "fake"
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
hook = native.FlightRecorderHook.attach(dist.group.WORLD, [0, 1])
for _ in range(2):
    dist.all_reduce(torch.zeros(3))
dist.send(torch.zeros(3), 1)
dist.barrier()
found = recorder.Recorder()
print(found.status({"fr", "nccl"}))
print([(one.op_id, one.collective_seq_id, one.profiling_name, one.is_p2p)
       for _, one in found.entries(4, True, None, True)])
"""


def test_the_hook_of_the_installed_torch_counts_as_this_double_does():
    """On a backend that never communicates the status is retired when the call is issued."""
    native = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(native, "FlightRecorderHook"):
        pytest.skip("this torch has no FlightRecorderHook")
    done = python("-W", "ignore", "-c", REAL)
    status, entries = done.stdout.splitlines()

    assert status == "{('fake', '0'): (4, 0)}"
    assert entries == str(
        [
            (1, 1, "fake:all_reduce", False),
            (2, 2, "fake:all_reduce", False),
            (3, 2, "fake:send 0->1", True),
            (4, 3, "fake:barrier", False),
        ]
    )
