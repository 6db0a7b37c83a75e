"""What the probe makes of sequence numbers and of a recorder that tells all, nothing, or is left out."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from ddtop.agent import wrap_p2p
from ddtop.agent.collectives import Collectives
from ddtop.agent.recorder import _Entry, collective

from .probing import SECOND, FakeGroup


def test_with_the_recorder_off_a_main_thread_that_sits_in_a_collective_is_pending(bench):
    """TORCH_FR_BUFFER_SIZE=0: sequence numbers and the frame are all there is."""
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


def test_of_the_waits_that_ended_the_two_longest_are_told(bench):
    bench.passes(1, steps=True, completed=0)
    for waited_s in (2, 9, 1, 5):
        bench.group.seq += 1
        bench.passes(waited_s, completed=1)
        bench.passes(0.25, completed=0)

    assert [round(wait / SECOND) for wait in bench.probe.longest_waits_ns()] == [9, 5]


def test_a_group_made_in_mid_run_and_never_used_does_not_freeze_what_was_pending(bench):
    """Status reads stop while it may get its first entry; the last one found a collective open, as most do."""
    bench.passes(3, steps=True, completed=1)
    idle = FakeGroup()
    bench.world.pg_names[idle] = "1"
    bench.world.pg_group_ranks[idle] = {0: 0, 1: 1}
    bench.passes(10, steps=True, completed=1)

    assert bench.pending is None
    assert bench.probe.skips > 0


def test_a_module_that_is_still_being_imported_is_left_alone(monkeypatch):
    """In sys.modules it stands from the first line on, its contents come later: the probe must not fail for good."""
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace())
    probe = Collectives()

    probe.sample(100 * SECOND, 0, False)

    assert probe.groups == ()


@pytest.mark.parametrize(
    ("backend", "says", "error"),
    [
        ("nccl", SimpleNamespace(get_error=lambda: SimpleNamespace(name="REMOTE_ERROR")), "REMOTE_ERROR"),
        ("cpu:gloo,cuda:nccl", SimpleNamespace(get_error=lambda: SimpleNamespace(name="TIMEOUT")), "TIMEOUT"),
        ("nccl", SimpleNamespace(get_error=lambda: SimpleNamespace(name="SUCCESS")), None),
        ("nccl", SimpleNamespace(), None),
        ("gloo", None, None),
    ],
)
def test_what_the_backend_says_of_its_connections_is_asked_for_while_something_stands(
    bench, monkeypatch, backend, says, error
):
    """NCCL's watchdog sees a dead peer a minute before it ends the rank; gloo and an old torch have no such word."""
    bench.world.pg_map = {bench.group: (backend, None)}
    bench.group._get_backend = lambda _device: says
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(device=str))
    bench.passes(2, steps=True, completed=0)
    assert bench.probe.progress(0)[0].error is None
    bench.passes(7, completed=1)

    assert bench.probe.progress(0)[0].error == error


@pytest.mark.parametrize(("took", "told"), [("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"), ("cpu:gloo", "gloo")])
def test_where_the_program_leaves_the_backend_to_torch_it_is_what_torch_took(bench, took, told):
    """`init_process_group()` without a word: torch itself writes "undefined"."""
    bench.world.pg_map = {bench.group: ("undefined", None)}
    bench.world.pg_backend_config = {bench.group: took}
    bench.passes(1, steps=True)

    assert bench.probe.groups[0].backend == told


def test_calls_for_single_ranks_are_told_though_no_number_counts_them(bench, monkeypatch):
    monkeypatch.setitem(wrap_p2p.calls, "0", 12)
    bench.passes(1, steps=True, completed=0)

    assert bench.probe.progress(0)[0].p2p_calls == 12


def test_sends_and_receives_on_nccl_are_no_movement_of_a_rank_that_stands(bench, monkeypatch):
    """The status has the number of the last send, the group that of the last collective: at each look one of them was news."""
    monkeypatch.setitem(wrap_p2p.calls, "0", 500)
    nccl(bench)
    bench.passes(3, steps=True)
    bench.recorder.says = {("nccl", "0"): (501, 500)}
    bench.passes(1)
    stood = bench.probe.moved_at
    bench.passes(6)

    assert bench.probe.moved_at == stood
    assert (bench.probe.progress(0)[0].enqueued, bench.pending) == (bench.group.seq, None)


def test_a_group_of_nccl_that_only_sends_and_receives_is_in_use(bench, monkeypatch):
    """The stages of a pipeline: as long as it seemed unused no status was read of any group."""
    stages = FakeGroup()
    nccl(bench, ("1", stages))
    monkeypatch.setitem(wrap_p2p.calls, "1", 4)
    bench.probe._names = {("fr", "0"): "0"}
    bench.passes(3, steps=True, completed=0)

    assert bench.probe.skips == 1
    assert bench.probe.progress(0)[0].completed == bench.group.seq


def test_threads_of_entries_have_pythons_names():
    """Torch tells the thread's ident; of a thread that Python did not start only what torch calls it."""
    here = threading.get_ident()

    assert collective(_Entry(thread_id=here, thread_name="python")).thread == threading.current_thread().name
    assert collective(_Entry(thread_id=here, thread_name="pt_autograd_0")).thread == "pt_autograd_0"
    assert collective(_Entry(thread_id=1, thread_name="python")).thread == "native"
    assert collective(_Entry()).thread is None


def test_a_rank_that_destroyed_its_groups_is_one_that_has_been_there(bench):
    """It passed the last barrier, destroyed its groups and left: who still waits there does not wait for it."""
    bench.passes(2, steps=True, completed=0)
    passed = bench.group.seq + 1
    bench.probe.leave_groups({"0": passed})
    (progress,) = bench.probe.progress(0)

    assert (progress.enqueued, progress.completed, progress.pending_since_unix_ns) == (passed, passed, None)


def test_groups_that_are_made_anew_count_from_nought(bench):
    bench.passes(2, steps=True, completed=0)
    bench.probe.leave_groups({"0": bench.group.seq})
    bench.group.seq, bench.recorder.says = 0, {}
    bench.passes(1, steps=True)
    (progress,) = bench.probe.progress(0)

    assert progress.enqueued == bench.group.seq < 8


@pytest.mark.parametrize(("backend", "pending"), [("nccl", True), ("cpu:gloo,cuda:nccl", True), ("gloo", False)])
def test_with_the_recorder_off_a_thread_that_stands_in_one_call_waits_for_its_card(bench, backend, pending):
    """Torch had it off by default in 2025 still. On NCCL the wait is in loss.item(), not in the collective; on gloo such a thread computes."""
    bench.world.pg_map = {bench.group: (backend, None)}
    bench.passes(3, steps=True)
    bench.passes(6, in_line=True)

    assert (bench.pending is not None) == pending


def test_a_status_that_nobody_writes_is_none(bench):
    """TORCH_NCCL_BLOCKING_WAIT=1, which people set to find a hang: nothing is enqueued for the watchdog, and the host waits in the call."""
    nccl(bench)
    bench.recorder.says = {("nccl", "0"): (-1, 0)}
    bench.passes(3, steps=True)
    bench.passes(3, waiting=True)

    assert bench.pending is not None


def test_with_the_recorder_off_a_thread_that_sleeps_in_one_call_is_elsewhere(bench, monkeypatch):
    """It is the one that all wait for: if it seemed to wait too, nobody would be named."""
    nccl(bench)
    monkeypatch.setattr("ddtop.agent.collectives.stat_fields", lambda _pid: ["S"])
    bench.passes(3, steps=True)
    bench.passes(6, in_line=True)

    assert bench.pending is None


def test_with_the_recorder_off_a_thread_in_one_call_while_collectives_go_on_does_not_wait(bench):
    """Another thread puts them in."""
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
    """NCCL makes the communicator inside the first collective: the number has moved, and a peer never came."""
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
    """Tensor-parallel groups get their communicators long after the world's."""
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
    """`cpu:gloo` beside a registered backend: the group itself counts nothing, and its rank would look as if it had put in nothing."""

    def refuse():
        raise RuntimeError("ProcessGroup undefined does not yet support sequence numbers.")

    counts = SimpleNamespace(_get_sequence_number_for_group=lambda: bench.group.seq)
    monkeypatch.setattr(bench.group, "_get_sequence_number_for_group", refuse)
    monkeypatch.setattr(bench.group, "_get_backend", lambda _device: counts)
    monkeypatch.setattr(bench.group, "_device_types", ["cpu"], raising=False)
    bench.passes(3, steps=True, completed=0)
    bench.passes(3, completed=1)

    assert bench.pending is not None
