"""How the probe reads sequence numbers and the recorder: complete, off, or not read."""

import sys
import threading
from types import SimpleNamespace

import msgspec
import pytest

from ddtop.agent.probes.collectives import Collectives
from ddtop.agent.probes.groups import ended_keys
from ddtop.agent.probes.main_thread import counted_as
from ddtop.agent.probes.recorder import _Entry, collective
from ddtop.agent.stacks.frames import BACKWARD, COLLECTIVE, FORWARD, OPTIMIZER
from ddtop.wire.records import ACTIVITIES
from tests.agent.probing import SECOND, FakeGroup, FakeRecorder, fake_rank


def refuse():
    """Backend.hpp, `getError`, where a backend has none."""
    raise RuntimeError("Backend nccl2 does not support getError")


def test_with_the_recorder_off_a_main_thread_that_sits_in_a_collective_is_pending(bench):
    """With TORCH_FR_BUFFER_SIZE=0 only sequence numbers and frames are available."""
    bench.passes(3, steps=True)
    bench.passes(3, waiting=True)

    assert bench.pending is not None
    assert bench.probe.why_blind == "flight recorder off"


def test_with_the_recorder_off_a_job_that_moves_is_not_pending(bench):
    bench.passes(5, steps=True, waiting=True)

    assert bench.pending is None


def test_an_open_collective_is_pending_since_it_stands(bench):
    bench.passes(3, steps=True, completed=0)
    bench.passes(3, completed=1)

    assert bench.now - bench.pending == pytest.approx(2.75 * SECOND)


def test_of_the_waits_that_ended_the_two_longest_are_reported(bench):
    bench.passes(1, steps=True, completed=0)
    for waited_s in (2, 9, 1, 5):
        bench.group.seq += 1
        bench.passes(waited_s, completed=1)
        bench.passes(0.25, completed=0)

    assert [round(wait / SECOND) for wait in bench.probe.longest_waits_ns()] == [9, 5]


def test_a_group_made_in_mid_run_and_never_used_does_not_freeze_what_was_pending(bench):
    """The status must not be read while its first entry may be written."""
    bench.passes(3, steps=True, completed=1)
    idle = FakeGroup()
    bench.world.pg_names[idle] = "1"
    bench.world.pg_group_ranks[idle] = {0: 0, 1: 1}
    bench.passes(10, steps=True, completed=1)

    assert bench.pending is None


def test_while_a_group_is_made_nothing_is_read_from_the_recorder(bench):
    """Torch writes the new group into maps that these reads walk without its lock."""
    bench.passes(1, steps=True, completed=1)
    bench.probe._rank = fake_rank(recorder_paused=True)
    bench.recorder.status = bench.recorder.entries = bench.recorder.times = None
    bench.passes(10, completed=1)

    assert bench.probe.last_entries() == []
    bench.recorder = bench.probe._recorder = FakeRecorder()
    bench.probe._rank.recorder_paused = False
    bench.passes(1, completed=0)
    assert bench.probe.progress(0)[0].completed == bench.group.seq


def test_a_rank_that_exits_begins_no_read_of_entries(bench):
    """A thread that is inside the read when the interpreter ends would abort the process."""
    bench.passes(3, steps=True, completed=0)
    bench.recorder.entries = None
    bench.probe._rank = fake_rank(exiting=True)
    bench.passes(2, completed=1)
    bench.probe.close(SimpleNamespace(now=bench.now, unix_minus_mono=0))

    assert bench.pending is not None


def test_in_a_long_stall_a_status_that_may_be_written_is_read_ever_more_rarely(bench):
    """The unused group may get its first entry at any time, in the map that the read walks."""
    bench.passes(3, steps=True, completed=1)
    idle, reads = FakeGroup(), []
    bench.world.pg_names[idle] = "1"
    bench.world.pg_group_ranks[idle] = {0: 0, 1: 1}
    bench.recorder.status = lambda _without=(): reads.append(bench.now) or bench.recorder.says
    began = bench.now
    bench.passes(120, completed=1)

    assert [round((at - began) / SECOND) for at in reads] == pytest.approx(
        [6, 11, 22, 44, 88], abs=1
    )
    assert bench.pending is not None


class Changing(dict):
    """The table of groups: before Python 3.12 another thread may add one during `items`."""

    def items(self):
        raise RuntimeError("dictionary changed size during iteration")


def test_a_group_that_another_thread_makes_meanwhile_switches_nothing_off(bench):
    bench.world.pg_names = Changing(bench.world.pg_names)
    bench.passes(3, steps=True, completed=1)

    assert [one.enqueued for one in bench.probe.progress(0)] == [bench.group.seq]


def test_a_module_that_is_still_being_imported_is_left_alone(monkeypatch):
    """The module is in sys.modules before its contents are. The probe must not give up for good."""
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace())
    probe = Collectives(fake_rank())

    probe.look(100 * SECOND, 0, False)

    assert probe.groups == ()


@pytest.mark.parametrize(
    ("backend", "says", "error"),
    [
        (
            "nccl",
            SimpleNamespace(get_error=lambda: SimpleNamespace(name="REMOTE_ERROR")),
            "REMOTE_ERROR",
        ),
        (
            "cpu:gloo,cuda:nccl",
            SimpleNamespace(get_error=lambda: SimpleNamespace(name="TIMEOUT")),
            "TIMEOUT",
        ),
        ("nccl", SimpleNamespace(get_error=lambda: SimpleNamespace(name="SUCCESS")), None),
        ("nccl", SimpleNamespace(get_error=refuse), None),
        ("nccl", SimpleNamespace(), None),
        ("gloo", None, None),
    ],
)
def test_what_the_backend_says_of_its_connections_is_asked_for_while_something_stands(
    bench, monkeypatch, backend, says, error
):
    """NCCL's watchdog sees a dead peer a minute before it ends the rank."""
    bench.world.pg_map = {bench.group: (backend, None)}
    bench.group._get_backend = lambda _device: says
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=str))
    bench.passes(2, steps=True, completed=0)
    assert bench.probe.progress(0)[0].error is None
    bench.passes(7, completed=1)

    assert bench.probe.progress(0)[0].error == error


@pytest.mark.parametrize(
    ("took", "told"), [("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"), ("cpu:gloo", "gloo")]
)
def test_where_the_program_leaves_the_backend_to_torch_it_is_what_torch_took(bench, took, told):
    """Without a description torch itself writes "undefined"."""
    bench.world.pg_map = {bench.group: ("undefined", None)}
    bench.world.pg_backend_config = {bench.group: took}
    bench.passes(1, steps=True)

    assert bench.probe.groups[0].backend == told


def test_calls_for_single_ranks_are_told_though_no_number_counts_them(bench, monkeypatch):
    bench.peers.calls["0"] = 12
    bench.passes(1, steps=True, completed=0)

    assert bench.probe.progress(0)[0].p2p_calls == 12


def test_sends_and_receives_on_nccl_are_no_movement_of_a_rank_that_stands(bench, monkeypatch):
    """The status has the number of the last send, the group that of the last collective."""
    bench.peers.calls["0"] = 500
    nccl(bench)
    bench.passes(3, steps=True)
    bench.recorder.says = {("nccl", "0"): (501, 500)}
    bench.passes(1)
    stood = bench.probe.moved_at
    bench.passes(6)

    assert bench.probe.moved_at == stood
    assert (bench.probe.progress(0)[0].enqueued, bench.pending) == (bench.group.seq, None)


def test_a_group_of_nccl_that_only_sends_and_receives_is_in_use(bench, monkeypatch):
    """A pipeline's group seemed unused, and then no status of any group was read."""
    stages = FakeGroup()
    nccl(bench, ("1", stages))
    bench.peers.calls["1"] = 4
    bench.probe._names = {("fr", "0"): "0"}
    bench.passes(3, steps=True, completed=0)

    assert bench.probe.progress(0)[0].completed == bench.group.seq


def test_threads_of_entries_have_pythons_names():
    """Torch reports the ident; a thread that Python did not start has only torch's name."""
    here = threading.get_ident()

    assert (
        collective(_Entry(thread_id=here, thread_name="python")).thread
        == threading.current_thread().name
    )
    assert collective(_Entry(thread_id=here, thread_name="pt_autograd_0")).thread == "pt_autograd_0"
    assert collective(_Entry(thread_id=1, thread_name="python")).thread == "native"
    assert collective(_Entry()).thread is None


def test_a_rank_that_destroyed_its_groups_is_one_that_has_been_there(bench):
    """Who is still in the last barrier does not wait for a rank that passed it and left."""
    bench.passes(2, steps=True, completed=0)
    passed = bench.group.seq + 1
    bench.probe.leave_groups({"0": passed})
    (progress,) = bench.probe.progress(0)

    assert (progress.enqueued, progress.completed) == (passed, passed)
    assert progress.pending_since_unix_ns is None


def test_groups_that_are_made_anew_count_from_nought(bench):
    bench.passes(2, steps=True, completed=0)
    bench.probe.leave_groups({"0": bench.group.seq})
    bench.group.seq, bench.recorder.says = 0, {}
    bench.passes(1, steps=True)
    (progress,) = bench.probe.progress(0)

    assert progress.enqueued == bench.group.seq < 8


@pytest.mark.parametrize(
    ("backend", "pending"), [("nccl", True), ("cpu:gloo,cuda:nccl", True), ("gloo", False)]
)
def test_with_the_recorder_off_a_thread_that_stands_in_one_call_waits_for_its_gpu(
    bench, backend, pending
):
    """On NCCL the wait is in loss.item(), not in the collective. On gloo such a thread computes."""
    bench.world.pg_map = {bench.group: (backend, None)}
    bench.passes(3, steps=True)
    bench.passes(6, in_line=True)

    assert (bench.pending is not None) == pending


def test_a_status_that_nobody_writes_is_none(bench):
    """TORCH_NCCL_BLOCKING_WAIT=1: nothing is enqueued for the watchdog, the host waits."""
    nccl(bench)
    bench.recorder.says = {("nccl", "0"): (-1, 0)}
    bench.passes(3, steps=True)
    bench.passes(3, waiting=True)

    assert bench.pending is not None


def test_with_the_recorder_off_a_thread_that_sleeps_in_one_call_is_elsewhere(bench, monkeypatch):
    """All others wait for this rank. If it seemed to wait too, no rank would be named."""
    nccl(bench)
    monkeypatch.setattr("ddtop.agent.probes.collectives.runs", lambda _pid: False)
    bench.passes(3, steps=True)
    bench.passes(6, in_line=True)

    assert bench.pending is None


def test_with_the_recorder_off_a_thread_in_one_call_while_collectives_go_on_does_not_wait(bench):
    """Another thread enqueues them."""
    nccl(bench)
    bench.passes(10, steps=True, in_line=True)

    assert bench.pending is None


def test_with_the_recorder_off_a_wait_that_ended_is_remembered(bench):
    nccl(bench)
    bench.passes(3, steps=True)
    bench.passes(8, in_line=True)
    bench.passes(1, steps=True)

    assert [round(wait / SECOND) for wait in bench.probe.longest_waits_ns()] == [8]


def nccl(bench, *more):
    """The groups of the world are NCCL's; `more`: further groups, with their names."""
    for name, group in more:
        bench.world.pg_names[group] = name
        bench.world.pg_group_ranks[group] = {0: 0, 1: 1}
    bench.world.pg_map = dict.fromkeys(bench.world.pg_names, ("nccl", None))


def test_a_first_collective_without_an_entry_is_a_communicator_being_built(bench):
    """NCCL makes it inside the first collective: the number has moved, and a peer never came."""
    nccl(bench)
    bench.group.seq = 1
    bench.passes(4, waiting=True)
    (progress,) = bench.probe.progress(0)

    assert progress.building
    assert bench.now - progress.pending_since_unix_ns >= 3 * SECOND

    bench.recorder.says = {("nccl", "0"): (1, 0)}
    bench.passes(2, waiting=True)
    assert not bench.probe.progress(0)[0].building


def test_a_second_group_is_being_built_while_the_first_one_answers(bench):
    """Tensor-parallel groups get their communicators long after the default group."""
    late = FakeGroup()
    nccl(bench, ("1", late))
    bench.probe._names = {("fr", "0"): "0"}
    bench.passes(3, steps=True, completed=0)
    late.seq = 1
    bench.passes(8, waiting=True, completed=0)
    world, tensor = bench.probe.progress(0)

    assert (world.building, world.pending_since_unix_ns) == (False, None)
    assert tensor.building
    assert tensor.pending_since_unix_ns is not None

    bench.passes(2, completed=0)
    assert bench.probe.progress(0)[1].pending_since_unix_ns is None


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_collective_of_a_recorder_that_is_off_is_not_taken_for_a_start(bench, backend):
    bench.world.pg_map = {bench.group: (backend, None)}
    bench.passes(3, steps=True)
    bench.passes(3, waiting=True)

    assert bench.pending is not None
    assert not bench.probe.progress(0)[0].building


def test_a_group_without_a_default_backend_is_followed_like_any_other(bench, monkeypatch):
    """`cpu:gloo` beside a registered backend: the group itself counts nothing."""

    def refuse():
        raise RuntimeError("ProcessGroup undefined does not yet support sequence numbers.")

    counts = SimpleNamespace(_get_sequence_number_for_group=lambda: bench.group.seq)
    monkeypatch.setattr(bench.group, "_get_sequence_number_for_group", refuse)
    monkeypatch.setattr(bench.group, "_get_backend", lambda _device: counts)
    monkeypatch.setattr(bench.group, "_device_types", ["cpu"], raising=False)
    bench.passes(3, steps=True, completed=0)
    bench.passes(3, completed=1)

    assert bench.pending is not None


def gloo_entries(*found, group="0", pg_id=0):
    """(sequence number, whether it has completed) of collectives in gloo's recorder."""
    return [
        (
            "fr",
            _Entry(
                record_id=seq,
                pg_id=pg_id,
                process_group=(group, ""),
                collective_seq_id=seq,
                op_id=seq,
                profiling_name="gloo:all_reduce",
                retired=retired,
            ),
        )
        for seq, retired in found
    ]


def test_a_gap_of_gloos_status_is_healed_by_one_read_of_the_entries(bench):
    """torch 2.13 shows this after a sixth of all backwards with several buckets."""
    bench.passes(2, steps=True, completed=0)
    reads = []
    last = bench.group.seq
    bench.recorder.entries = lambda *_: (
        reads.append(bench.now) or gloo_entries((last - 1, True), (last, True))
    )
    bench.passes(20, completed=1)

    assert (bench.pending, bench.probe.stuck) == (None, None)
    # One is for the gap, and one because nothing has moved for two seconds.
    assert len(reads) <= 2


def test_after_a_healed_gap_the_next_wait_is_seen(bench):
    bench.passes(2, steps=True, completed=0)
    last = bench.group.seq
    bench.recorder.list = gloo_entries((last - 1, True), (last, True))
    bench.passes(5, completed=1)
    healed, bench.group.seq = bench.pending, last + 1
    bench.recorder.list = gloo_entries((last - 1, True), (last, True), (last + 1, False))
    bench.passes(5, completed=2)

    assert healed is None
    assert bench.probe.stuck == ("0", last + 1)


@pytest.mark.parametrize(
    ("given", "retired", "root"),
    [
        ({"group_src": 1}, False, 6),
        ({"src": 4}, False, 4),
        ({"group_src": 7, "src": 4}, False, 4),
        ({}, False, None),
        ({"group_src": 1}, True, None),
    ],
    ids=["in the group", "in the world", "not in the group", "no longer in the call", "completed"],
)
def test_the_root_of_an_open_broadcast_is_read_from_its_frame(bench, given, retired, root):
    module = sys.modules["torch.distributed.distributed_c10d"]
    module.__file__ = "/torch/distributed/distributed_c10d.py"
    bench.world.pg_group_ranks[bench.group] = {4: 0, 6: 1}
    bench.passes(2, steps=True, completed=0)
    asked = []

    def number_of(thread, file, function, name):
        asked.append((thread, file, function))
        return given.get(name)

    walk = SimpleNamespace(number_of=number_of)
    bench.probe._rank = fake_rank(lead_id=11, frames=SimpleNamespace(walk=walk))
    ((_, entry),) = gloo_entries((bench.group.seq, retired))
    entry = msgspec.structs.replace(entry, profiling_name="gloo:broadcast")

    assert bench.probe._with_root(collective(entry, "0")).root == root
    assert set(asked) == (set() if retired else {(11, module.__file__, "broadcast")})


def test_a_wait_in_one_group_does_not_hide_that_the_gap_of_another_is_none(bench):
    """Many groups with a burst of broadcasts, and then one barrier that is really open."""
    other = FakeGroup()
    bench.world.pg_names[other] = "1"
    bench.world.pg_group_ranks[other] = {0: 0, 1: 1}
    bench.group.seq, other.seq = 5, 8
    bench.probe._names = {("fr", "0"): "0", ("fr", "1"): "1"}
    bench.recorder.list = gloo_entries((5, False))
    for tick in range(24):
        bench.now += SECOND // 4
        bench.recorder.says = {("fr", "0"): (5, 4), ("fr", "1"): (8, 8 if tick < 12 else 7)}
        if tick == 12:
            bench.recorder.list = [
                *gloo_entries((5, False)),
                *gloo_entries((7, True), (8, True), group="1", pg_id=1),
            ]
        bench.probe.look(bench.now, 0, True)

    assert [one.pending_since_unix_ns is not None for one in bench.probe.progress(0)] == [
        True,
        False,
    ]


def test_the_status_of_a_destroyed_group_is_not_that_of_the_next_one_of_its_name(bench):
    """Torch removes no status: two of one name looked like one that moves at every look."""
    bench.passes(2, steps=True, completed=0)
    bench.probe._names = {("fr", "0"): "0", ("fr", "7"): "0"}
    bench.probe._ended = ended_keys(bench.probe._names)
    moved = []
    for _ in range(20):
        bench.now += SECOND // 4
        bench.recorder.says = {
            ("fr", "0"): (500, 500),
            ("fr", "7"): (bench.group.seq, bench.group.seq - 1),
        }
        bench.probe.look(bench.now, 0, True)
        moved.append(bench.probe.moved_at)

    assert len(set(moved[1:])) == 1
    assert bench.pending is not None


def looks_of(bench, number, completed, waiting, elsewhere):
    """Look this many times at a group with this many open collectives."""
    for _ in range(number):
        bench.now += SECOND // 4
        bench.group.seq += 1
        bench.recorder.says = {("fr", "0"): (bench.group.seq, bench.group.seq - completed)}
        bench.probe.look(bench.now, 0, waiting, None, elsewhere)


def test_what_is_open_while_the_thread_is_in_its_forward_is_no_wait(bench):
    """After a sixth of all backwards the status shows an open collective until the next one."""
    looks_of(bench, 20, 0, False, True)
    looks_of(bench, 40, 1, False, True)
    looks_of(bench, 20, 1, True, False)

    assert (bench.probe.wait_samples, bench.probe.all_samples) == (20, 80)


def test_on_nccl_what_is_open_counts_wherever_the_host_is(bench):
    """On NCCL the host runs ahead of its GPU."""
    bench.world.pg_map = {bench.group: ("nccl", None)}
    looks_of(bench, 20, 0, False, True)
    looks_of(bench, 20, 1, False, True)

    assert bench.probe.wait_samples == 20


def test_wait_and_phases_come_from_the_same_looks(bench):
    """What counts as a wait counts as communication: PHASES shows no less of it than COMM."""
    phases = [0] * len(ACTIVITIES)
    for turn in range(120):
        activity = (FORWARD, BACKWARD, COLLECTIVE, OPTIMIZER)[turn % 4]
        looks_of(
            bench, 1, turn % 3, activity in (BACKWARD, COLLECTIVE), activity in (FORWARD, OPTIMIZER)
        )
        phases[counted_as(activity, bench.probe.waits)] += 1
    in_backward = phases[BACKWARD]

    assert sum(phases) == 120
    assert phases[COLLECTIVE] == 30 + (30 - in_backward)
    assert 0 < bench.probe.wait_samples <= phases[COLLECTIVE]
