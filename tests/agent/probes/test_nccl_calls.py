"""A double of ProcessGroupNCCL that follows its source step by step, and what the probe reads
from it.

Source: ProcessGroupNCCL.cpp `collective` (the number, then the recorder's entry, then the call of
NCCL, only then `workEnqueue` with the status) and its watchdog (a collective that has completed is
retired, then the status has it).
"""

from types import SimpleNamespace

import pytest

from ddtop.agent.guard import guard
from ddtop.agent.probes.groups import by_order
from ddtop.agent.probes.recorder import _Entry
from ddtop.wire.page import HEARTBEAT_AT
from tests.agent.probing import SECOND, FakeGroup, fake_rank


class Nccl:
    """The default group on NCCL, and the main thread of its rank."""

    def __init__(self, bench):
        bench.world.pg_map = {bench.group: ("nccl", None)}
        self.bench = bench
        self.enqueued = self.completed = -1
        self.entries, self.reads_of_nccl = [], []
        self.call_since = None
        self.pg_id = 0
        bench.recorder.says = {}
        bench.recorder.entries = self._read
        bench.probe.gpu = 0
        bench.probe._captures = SimpleNamespace(watch=lambda: None, may_be_open=False, replays=0)

    def _read(self, _size, _stalls=False, gpu=None, _hooked=False):
        if gpu is None:
            return []
        self.reads_of_nccl.append(self.bench.now)
        return [("nccl", entry) for entry in self.entries]

    def calls(self, captured=False):
        """The host enters NCCL and does not return yet."""
        self.bench.group.seq += 1
        if not captured:
            self.entries.append(
                _Entry(
                    record_id=len(self.entries),
                    pg_id=self.pg_id,
                    process_group=("0", ""),
                    collective_seq_id=self.bench.group.seq,
                    profiling_name="nccl:all_gather",
                    # CUDAEvent.h `query`: an event that was never recorded counts as reached.
                    state="completed",
                    time_created_ns=self.bench.now,
                )
            )

    def returns(self):
        """The call has been launched."""
        self.enqueued = self.bench.group.seq
        if self.entries:
            self.entries[-1].state = "scheduled"
        self._tell()

    def comes_back(self):
        self.completed = self.enqueued
        for entry in self.entries:
            entry.state, entry.retired = "completed", True
        self._tell()

    def _tell(self):
        self.bench.recorder.says["nccl", str(self.pg_id)] = (self.enqueued, max(0, self.completed))

    def trains(self, seconds):
        for _ in range(round(seconds * 4)):
            self.calls()
            self.returns()
            self.comes_back()
            self.passes(0.25)

    def passes(self, seconds, in_call=False):
        bench = self.bench
        self.call_since = (self.call_since or bench.now) if in_call else None
        for _ in range(round(seconds * 4)):
            bench.now += SECOND // 4
            bench.probe.look(bench.now, bench.unix_minus_mono, in_call, self.call_since)


@pytest.fixture
def nccl(bench, monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    bench.unix_minus_mono = 1
    return Nccl(bench)


def test_a_call_that_blocks_because_nccl_connects_is_pending(nccl):
    """NCCL connects each algorithm at its first use: all but one are in an all_gather."""
    nccl.trains(5)
    nccl.calls()
    nccl.passes(3, in_call=True)
    (progress,) = nccl.bench.probe.progress(0)

    assert (progress.enqueued, progress.completed) == (21, 20)
    assert nccl.bench.now - progress.pending_since_unix_ns == pytest.approx(
        3 * SECOND, abs=SECOND // 2
    )
    assert nccl.bench.probe.stuck == ("0", 21)

    nccl.returns()
    nccl.comes_back()
    nccl.passes(1)
    assert nccl.bench.pending is None


def test_what_is_read_of_a_call_that_blocks_is_open_though_its_state_is_completed(nccl):
    nccl.trains(5)
    nccl.calls()
    nccl.passes(7, in_call=True)

    (open_one,) = nccl.bench.probe.open_collectives()
    assert (open_one.seq, open_one.op, open_one.state) == (21, "all_gather", "scheduled")
    assert [one.seq for one in nccl.bench.probe.retired_collectives()][-1] == 20


def test_where_nothing_is_ever_retired_the_state_is_what_is_known(nccl):
    """With TORCH_NCCL_BLOCKING_WAIT there is no watchdog that retires entries."""
    nccl.trains(5)
    for entry in nccl.entries:
        entry.retired = False
    nccl.calls()
    nccl.returns()
    nccl.passes(7, in_call=True)

    assert [one.seq for one in nccl.bench.probe.open_collectives()] == [21]


def test_a_capture_leaves_a_gap_that_is_no_wait_and_a_call_after_it_that_blocks_is_seen(nccl):
    """Calls that are captured into a CUDA graph get a number, and never get a status."""
    nccl.trains(3)
    for _ in range(5):
        nccl.calls(captured=True)
    nccl.passes(2)
    nccl.passes(6, in_call=True)
    gap = nccl.bench.pending
    nccl.calls()
    nccl.passes(3, in_call=True)

    assert gap is None
    assert nccl.bench.pending is not None


def test_a_long_backward_whose_calls_have_all_returned_is_no_wait(nccl):
    nccl.trains(3)
    nccl.calls()
    nccl.returns()
    nccl.comes_back()
    nccl.passes(8, in_call=True)

    assert nccl.bench.pending is None


def test_a_step_of_some_seconds_on_the_gpu_costs_no_read_of_the_entries(nccl):
    """The host runs ahead: a collective is open for as long as the step takes."""
    for _ in range(6):
        nccl.calls()
        nccl.returns()
        nccl.passes(3)
        nccl.comes_back()

    assert nccl.reads_of_nccl == []


@pytest.mark.parametrize("why", ["the GPU of the rank is not known", "a graph is captured"])
def test_entries_of_nccl_are_not_read_while(nccl, why):
    """In its default mode, a capture fails if another thread queries an event."""
    if why == "a graph is captured":
        nccl.bench.probe._captures.may_be_open = True
    else:
        nccl.bench.probe.gpu = None
    nccl.trains(3)
    nccl.calls()
    nccl.returns()
    nccl.passes(12, in_call=True)

    assert nccl.bench.pending is not None
    assert nccl.bench.probe.open_collectives() == ()
    assert nccl.reads_of_nccl == []


def test_while_entries_of_nccl_are_read_the_heartbeat_says_nothing(nccl):
    """A read that blocks in the driver must not be reported as code that holds the GIL."""
    page = SimpleNamespace(words=dict.fromkeys(range(64), 7))
    nccl.bench.probe._rank = fake_rank(page=page)
    nccl.trains(3)
    heartbeat = page.words[HEARTBEAT_AT]
    nccl.calls()
    nccl.returns()
    nccl.passes(7, in_call=True)

    assert (heartbeat, page.words[HEARTBEAT_AT]) == (7, 0)


def test_a_status_that_stays_at_minus_one_is_no_communicator_that_is_built(nccl):
    """With TORCH_NCCL_BLOCKING_WAIT=1, `workEnqueue` of ProcessGroupNCCL.cpp is not reached."""
    nccl.bench.recorder.says = {("nccl", "0"): (-1, 0)}
    for _ in range(12):
        nccl.calls()
        nccl.passes(0.25)
    nccl.passes(4, in_call=True)

    assert nccl.bench.pending is not None
    assert not nccl.bench.probe.progress(0)[0].building


def test_the_status_of_groups_that_were_destroyed_is_never_read_again(nccl):
    """No status is cleared, and the new group is again called "0": no entry tells them apart."""
    nccl.trains(5)
    nccl.bench.probe.leave_groups({"0": nccl.bench.group.seq})
    nccl.bench.group.seq, nccl.pg_id, nccl.entries = 0, 1, []
    nccl.enqueued = nccl.completed = -1
    nccl.bench.probe.gpu = None
    nccl.trains(2)
    nccl.calls()
    nccl.returns()
    nccl.passes(3)
    (progress,) = nccl.bench.probe.progress(0)

    assert (progress.enqueued, progress.completed) == (9, 8)
    assert nccl.bench.now - progress.pending_since_unix_ns == pytest.approx(
        3 * SECOND, abs=SECOND // 2
    )


def test_groups_that_were_made_anew_between_two_looks_are_new(nccl):
    """On an H100 the old status made its number jump from 10 to 25: it was never named."""
    bench = nccl.bench
    bench.probe._rank = fake_rank()
    nccl.trains(5)
    bench.looks()
    bench.probe._rank.times_destroyed, bench.probe._rank.final_seqs = 1, {"0": bench.group.seq}
    bench.group.seq, nccl.pg_id, nccl.entries = 0, 1, []
    nccl.enqueued = nccl.completed = -1
    found = []
    for _ in range(8):
        nccl.calls()
        nccl.returns()
        nccl.comes_back()
        bench.looks()
        found += [(one.enqueued, one.completed) for one in bench.probe.progress(0)]

    # The first status is read one look after the first number.
    assert found == [(1, None), *((number, number) for number in range(2, 9))]


def test_a_host_that_runs_ahead_of_its_gpu_asks_for_no_arrivals(nccl):
    """A collective is open at every look at a job that the GPU bounds."""
    for _ in range(100):
        nccl.calls()
        nccl.returns()
        nccl.completed = nccl.enqueued - 1
        nccl._tell()
        nccl.passes(0.25)

    assert nccl.bench.probe.wait_samples > 90
    assert nccl.bench.probe.wait_ratio == 0.0


def test_a_replay_of_a_graph_is_progress_though_no_number_moves(nccl):
    """Inside CUDA graphs the sequence number stays where the capture left it."""
    nccl.trains(2)
    trained_at = nccl.bench.probe.moved_at
    nccl.passes(5)
    assert nccl.bench.probe.moved_at == trained_at

    nccl.bench.probe._captures.replays += 1
    nccl.passes(1)
    assert nccl.bench.probe.moved_at > trained_at + 4 * SECOND


# -- several groups


class ManyGroups:
    """Groups of NCCL beside the default one. Their entries are read only when a rank is stuck."""

    def __init__(self, nccl, count):
        self.bench, world = nccl.bench, nccl.bench.world
        self.groups = [nccl.bench.group, *(FakeGroup() for _ in range(count))]
        world.pg_names = {group: str(number) for number, group in enumerate(self.groups)}
        world.pg_group_ranks = {group: {0: 0, 1: 1} for group in self.groups}
        world.pg_map = dict.fromkeys(self.groups, ("nccl", None))
        self.status = {}

    def completes(self, number, pg_id, seq):
        self.groups[number].seq = seq
        self.status[pg_id] = (seq, seq)

    def passes(self, seconds):
        for _ in range(round(seconds * 4)):
            self.bench.now += SECOND // 4
            self.bench.recorder.says = {
                ("nccl", str(pg_id)): told for pg_id, told in self.status.items()
            }
            self.bench.probe.look(self.bench.now, 1, False)

    def pending(self):
        return {
            one.group: one.completed
            for one in self.bench.probe.progress(0)
            if one.pending_since_unix_ns is not None
        }


@pytest.mark.parametrize("unused", [0, 1])
def test_the_wait_in_one_of_many_groups_of_nccl_is_known_before_entries_are_read(nccl, unused):
    """Its status has its own numbers, and is read rarely while a group was never used."""
    many = ManyGroups(nccl, unused + 2)
    many.completes(0, 0, 40)
    many.completes(1, 1, 7)
    last = unused + 2
    many.completes(last, last, 9)
    many.passes(2)
    many.groups[last].seq = 10
    many.status[last] = (10, 9)
    many.passes(3 if not unused else 6.5)

    assert many.pending() == {str(last): 9}
    assert nccl.reads_of_nccl == []


def test_a_status_that_was_left_by_a_destroyed_group_is_given_to_no_other(nccl):
    many = ManyGroups(nccl, 2)
    many.completes(0, 0, 40)
    many.completes(1, 1, 5)
    many.passes(1)
    nccl.bench.world.pg_names.pop(many.groups[1])
    many.groups[2].seq = 6
    many.status[1] = (5, 4)
    many.passes(3)

    assert many.pending() == {}


def test_numbers_that_no_group_has_reached_are_not_those_of_that_group(nccl):
    assert by_order({("nccl", "0"): (5, 5), ("nccl", "2"): (9, 9)}, {"0": 5, "1": 8}) == {}
    assert by_order({("nccl", "10"): (5, 5), ("nccl", "2"): (9, 9)}, {"a": 9, "b": None}) == {
        ("nccl", "2"): "a",
        ("nccl", "10"): "b",
    }
