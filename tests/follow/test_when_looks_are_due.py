"""When a viewer looks: rarely if a look costs much, and in time if a hang may have begun."""

from __future__ import annotations

import pytest

from ddtop import thresholds
from ddtop.follow import engine as feed
from ddtop.follow.engine import (
    LOOK_LEAST_S,
    LOOK_MOST_S,
    STUCK_HEARD_S,
    due_for_stuck_s,
    period_of_looks_s,
)
from ddtop.policy import POLICY
from ddtop.wire import frames
from ddtop.wire.records import GroupProgress, RankState
from tests.follow.simulated import Viewer, simulated

RUNNING = RankState("running")


@pytest.mark.parametrize(
    ("cost_s", "period_s"), [(0.001, LOOK_LEAST_S), (0.15, 1.0), (0.5, LOOK_MOST_S), (4.0, 8.0)]
)
def test_looks_take_15_percent_of_a_core_and_half_of_one_where_that_is_too_little(cost_s, period_s):
    assert period_of_looks_s(cost_s, wavers=False) == pytest.approx(period_s)


@pytest.mark.parametrize(
    ("cost_s", "period_s"), [(0.001, 0.25), (0.2, 0.5), (0.6, 0.6), (4.0, 4.0)]
)
def test_a_second_opinion_comes_sooner(cost_s, period_s):
    assert period_of_looks_s(cost_s, wavers=True) == pytest.approx(period_s)


@pytest.mark.parametrize(
    ("due", "wanted", "planned"),
    [
        (3.0, 9.0, 3.0),  # It is over before.
        (7.0, 9.0, 9.0),  # It would last beyond: a rank would be named one look later.
        (15.0, 9.0, 9.0),
        (15.0, 2.0, 4.0),  # Not before the last look is over.
    ],
)
def test_a_look_is_made_when_a_hang_can_be_named(due, wanted, planned):
    assert due_for_stuck_s(due, 0.0, 4.0, wanted) == pytest.approx(planned)


def watched(monkeypatch):
    """A viewer of a large job in which no rank is stuck."""
    monkeypatch.setattr(feed, "NEWEST_FROM", 8)
    viewer = Viewer(simulated(), newest_only=True)
    for data in viewer.job.frames(viewer.now, viewer.now + 10**9):
        viewer.follower.take(data)
    assert viewer.follower.stuck_unix_ns is None
    return viewer


def stuck_report(viewer, state=RUNNING):
    """The first report of rank 20 that shows it as stuck."""
    envelope = next(
        one
        for one in map(frames.open_envelope, viewer.job.frames(viewer.now, viewer.now + 10**9))
        if one.rank == 20
    )
    return frames.seal(
        state,
        sender=envelope.sender,
        unix_ns=envelope.unix_ns + 10**9,
        mono_ns=0,
        rank=20,
        pid=envelope.pid,
        stuck_key="all_reduce 7",
    )


@pytest.mark.parametrize(("ago_s", "dated_s"), [(0.0, 0.0), (1.5, 1.5), (600.0, STUCK_HEARD_S)])
def test_a_rank_is_stuck_since_its_collective_is_pending(monkeypatch, ago_s, dated_s):
    viewer = watched(monkeypatch)
    pending = GroupProgress("0", 8, 7, pending_since_unix_ns=viewer.now - int(ago_s * 1e9))

    viewer.follower.take(stuck_report(viewer, RankState("running", groups=(pending,))))

    assert viewer.now - viewer.follower.stuck_unix_ns == pytest.approx(dated_s * 1e9)


def test_a_stuck_rank_is_remembered_until_a_look_that_could_name_why(monkeypatch):
    viewer = watched(monkeypatch)

    viewer.follower.take(stuck_report(viewer))
    began = viewer.follower.stuck_unix_ns
    viewer.follower.look(viewer.now + 2 * 10**9)

    assert began == viewer.follower.stuck_unix_ns == viewer.now
    wanted = viewer.now + int(viewer.follower.stuck_look_s * 1e9)
    viewer.follower.look(wanted)
    assert viewer.follower.stuck_unix_ns is None


def test_it_is_remembered_until_the_rule_with_the_longest_limit_could_name_why(monkeypatch):
    usual_s = watched(monkeypatch).follower.stuck_look_s
    own = POLICY.with_limits({"deadlock.wait_s": POLICY.still_limit_s + 20.0})
    monkeypatch.setattr(thresholds, "_chosen", own)

    assert watched(monkeypatch).follower.stuck_look_s == usual_s + 20.0


@pytest.mark.parametrize(("period_s", "waits"), [(1.0, True), (6.1, False)])
def test_where_ranks_report_in_turns_their_reports_are_taken_in_when_they_come(
    monkeypatch, period_s, waits
):
    viewer = watched(monkeypatch)
    monkeypatch.setattr(feed, "rank_period_s", lambda _: period_s)

    found = list(map(viewer.follower.take, viewer.job.frames(viewer.now, viewer.now + 10**9)))

    taken = [one for one in found if one is not None and one.sender != viewer.follower.job.leader]
    assert {one.kind for one in taken} == (set() if waits else {"RankState"})
