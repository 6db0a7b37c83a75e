"""The speed of the last run of the same name, from the state that its relay left."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.follow import engine
from ddtop.follow.engine import Follower, UnreachableError, last_run_speed
from ddtop.model.facts import ProgressFacts, RankFacts, State
from ddtop.wire.records import Pace, Speed
from tests.jobs import FakeJob
from tests.ui import builders


def pace(per_s):
    return Pace(Speed("steps", per_s, per_s, per_s, 1000 / per_s))


def left(*speeds):
    ranks = [
        RankFacts(rank, State.EXITED, progress=ProgressFacts(pace=pace(per_s)))
        for rank, per_s in enumerate(speeds)
    ]
    return replace(builders.healthy(len(speeds)), ranks=tuple(ranks))


class Entry(SimpleNamespace):
    def over(self, _now):
        return self.is_over


@pytest.fixture
def runs(monkeypatch):
    """`runs(entry, ...)`: the entries of this host, each with what it left."""

    def given(*entries):
        monkeypatch.setattr(registry, "read_entries", lambda: list(entries))

        def last_state(entry, *, from_journal):
            assert not from_journal
            if entry.left is None:
                raise UnreachableError("no last state")
            return entry.left, Verdict("ok", (), "")

        monkeypatch.setattr(engine, "last_state", last_state)

    return given


def entry(job="train", run="old", started=1, is_over=True, left=None):
    return Entry(job=job, run=run, started_unix_ns=started, is_over=is_over, left=left)


def test_it_is_the_median_of_the_newest_run_that_is_over(runs):
    runs(
        entry(run="older", left=left(1.0)),
        entry(run="old", started=2, left=left(9.0, 10.0, 30.0)),
        entry(run="beside", started=3, is_over=False, left=left(2.0)),
        entry(run="now", started=4, left=left(3.0)),
        entry(job="other", started=5, left=left(4.0)),
    )

    assert last_run_speed("train", "now").per_s == 10.0


def test_without_a_run_or_a_state_there_is_none(runs):
    runs()
    none = last_run_speed("train", "now")
    runs(entry(left=None))

    assert (none, last_run_speed("train", "now")) == (None, None)


def test_it_is_looked_up_once_and_only_when_the_job_has_a_speed(monkeypatch):
    asked = []
    monkeypatch.setattr(
        engine, "last_run_speed", lambda name, run: asked.append(run) or pace(20.0).now
    )
    job = FakeJob(2).trains(2)
    one = Follower(job.name)
    one.compares = True
    for data in job.frames:
        one.take(data)
    one.look(one.job.last_unix_ns)
    before = list(asked)
    seen = len(job.frames)
    for rank in job.ranks:
        rank.says["pace"] = pace(10.0)
    job.trains(2)
    for data in job.frames[seen:]:
        one.take(data)
    for _ in range(3):
        snapshot, verdict = one.look(one.job.last_unix_ns + 1_000_000_000 * _)

    assert (before, asked) == ([], ["r1"])
    assert snapshot.last_run.per_s == 20.0
    assert "50% slower than in its last run" in verdict.findings[0].summary
