"""The numbers of a snapshot: speed, shares, what moves."""

from __future__ import annotations

import pytest

from ddtop.wire.records import GroupProgress, Loader, RankState
from tests.jobs import FakeJob, unix_ns


def test_moving_and_iteration_are_those_of_the_job():
    job = FakeJob(3)
    job.trains(10)

    snapshot = job.snapshot()

    assert (snapshot.moving, snapshot.iteration, snapshot.iterations_per_s) == (3, 100, 10.0)
    assert snapshot.still_since_unix_ns is None


def test_a_job_that_stands_still_has_no_speed():
    job = FakeJob(2)
    job.trains(10)
    for rank in job.ranks:
        rank.stands_at("fetch")
    job.passes(10)

    snapshot = job.snapshot()

    assert (snapshot.moving, snapshot.iterations_per_s, snapshot.still_since_unix_ns) == (0, None, unix_ns(10))


def test_loader_share_is_growth_over_time_and_not_the_total():
    job = FakeJob(1)
    job.ranks[0].loader, job.ranks[0].loader_share = Loader(workers=2, wait_total_ns=10**13), 0.25
    job.trains(20)

    assert job.snapshot().ranks[0].loader_wait_ratio == pytest.approx(0.25, abs=0.01)


def test_a_state_without_groups_has_no_collective():
    job = FakeJob(1)
    job.say(RankState("running", groups=(GroupProgress("0", 0),)), job.ranks[0])

    assert (job.snapshot().ranks[0].collective, job.snapshot().waits) == (None, ())
