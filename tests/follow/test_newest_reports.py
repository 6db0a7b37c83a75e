"""Of a large job, only the newest report of each rank is taken in before a look. The verdict must
not depend on that.
"""

from __future__ import annotations

import pytest

from ddtop.follow import engine as feed
from ddtop.sim.incidents import (
    LINK_CUT,
    LOADER_STUCK,
    NOT_IN_COLLECTIVE,
    RANK_KILLED,
    RANK_STOPPED,
    Incident,
)
from ddtop.sim.job import SECOND_NS, SLOT_NS
from ddtop.wire import frames
from ddtop.wire.records import Exit, HostState, RankState
from tests.follow.simulated import Viewer, simulated

FAULT_S = 24


@pytest.fixture
def large(monkeypatch):
    """32 ranks count as a large job."""
    monkeypatch.setattr(feed, "NEWEST_FROM", 8)


def both(kind, seed):
    """The results of a viewer that takes in all reports, and of one that takes in only the
    newest.
    """
    job = simulated(*([Incident(kind, FAULT_S)] if kind else []), seed=seed)
    every, newest = Viewer(job, newest_only=False), Viewer(job, newest_only=True)
    now = every.now
    for slot in range(20 * SECOND_NS // SLOT_NS):
        data = list(job.frames(now, now + SLOT_NS))
        now += SLOT_NS
        for viewer in (every, newest):
            viewer.hears(now, data)
            if slot % (3 * SECOND_NS // SLOT_NS) == 0:
                viewer.looks()
    return every.said, newest.said


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [None, NOT_IN_COLLECTIVE, RANK_KILLED, RANK_STOPPED, LINK_CUT])
def test_the_newest_reports_tell_the_same_as_all_of_them(large, kind, seed):
    every, newest = both(kind, seed)

    assert newest == every
    assert bool(every[-1][1]) is (kind is not None)


@pytest.mark.parametrize("seed", range(2))
def test_a_worker_of_a_loader_is_found_stuck_at_most_one_look_later(large, seed):
    """The start of a stall is the time of the first report that was taken in."""
    every, newest = both(LOADER_STUCK, seed)

    first = next(at for at, said in enumerate(every) if said[1])
    assert newest[first + 1][1] == every[first + 1][1] != ()


def test_reports_wait_for_the_look_and_an_older_one_replaces_none(large):
    job = simulated()
    viewer = Viewer(job, newest_only=True)
    reports = []
    for data in job.frames(viewer.now, viewer.now + 3 * SECOND_NS):
        envelope = frames.open_envelope(data)
        if envelope.kind == "RankState" and envelope.rank == 20:
            reports.append(data)
    before = viewer.follower.job.ranks[20].state

    for data in reversed(reports):
        viewer.follower.take(data)

    assert viewer.follower.job.ranks[20].state is before
    viewer.follower.look(viewer.now + 3 * SECOND_NS)
    newest = frames.open_record(frames.open_envelope(reports[-1]))
    assert isinstance(newest, RankState)
    assert viewer.follower.job.ranks[20].state == newest


def test_what_waits_is_taken_in_before_an_exit(large):
    job = simulated()
    viewer = Viewer(job, newest_only=True)
    data = list(job.frames(viewer.now, viewer.now + SECOND_NS))
    for one in data:
        viewer.follower.take(one)
    last = [frames.open_envelope(one) for one in data]
    mine = next(one for one in last if one.kind == "RankState" and one.rank == 20)
    gone = Exit(20, mine.pid, None, 9, None, 0, "pidfd")

    viewer.follower.take(
        frames.seal(
            gone, sender=mine.sender, unix_ns=mine.unix_ns + 1, mono_ns=0, rank=20, pid=mine.pid
        )
    )

    memory = viewer.follower.job.ranks[20]
    assert (memory.state_unix_ns, memory.exit) == (mine.unix_ns, gone)


def test_a_host_whose_reports_wait_is_not_silent(large):
    """The leader reports at once: the others seemed silent beside it until the next look."""
    job = simulated()
    viewer = Viewer(job, newest_only=True)
    viewer.hears(viewer.now + 8 * SECOND_NS, job.frames(viewer.now, viewer.now + 8 * SECOND_NS))

    known = viewer.follower.job
    assert known.leader is not None
    assert not known.some_quiet
    viewer.looks()
    assert not known.returned


def test_a_host_that_is_heard_again_after_a_silence_is_known_before_the_look(large):
    job = simulated()
    viewer = Viewer(job, newest_only=True)
    for data in job.frames(viewer.now, viewer.now + 2 * SECOND_NS):
        viewer.follower.take(data)
    viewer.looks()
    known = viewer.follower.job
    other = next(sender for sender in known.stated if sender != known.leader)
    back = known.stated[other] + 20 * SECOND_NS

    state = known.hosts[other][1]
    assert isinstance(state, HostState)
    viewer.follower.take(frames.seal(state, sender=other, unix_ns=back, mono_ns=0))

    assert known.returned == {other: back}


def test_a_pause_between_reports_far_apart_is_no_pause_of_the_rank(large):
    job = simulated()
    viewer = Viewer(job, newest_only=True)
    for _ in range(6):
        until = viewer.now + 3 * SECOND_NS
        viewer.hears(until, list(job.frames(viewer.now, until)))
        viewer.looks()

    snapshot, _ = viewer.follower.look(viewer.now)

    assert max(rank.progress.usual_pause_s for rank in snapshot.ranks) < 1.5
