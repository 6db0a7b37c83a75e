"""The model in a thread of its own: what it hands over, when it looks, and how it ends."""

from __future__ import annotations

import gc
import sys
import threading
import time
from dataclasses import replace

import pytest

from ddtop.feeds.route import Bounds
from ddtop.follow import engine as engines
from ddtop.follow.engine import Engine, EngineError
from ddtop.follow.tape import FRAME_COST_BYTES
from ddtop.wire import frames
from ddtop.wire.records import Reply, Stacks
from tests.jobs import FakeJob

DEADLINE_S = 20.0


class Waiting:
    """An engine and its results."""

    def __init__(self):
        self.news = threading.Event()
        self.answers = []
        self.engine = Engine("train", self.on_news)
        self.follower = self.engine.follower()

    def on_news(self, answers):
        self.answers += answers
        self.news.set()

    def until(self, question):
        """Waits for it. An engine looks by itself, with or without news."""
        end = time.monotonic() + DEADLINE_S
        while not question():
            assert time.monotonic() < end
            self.news.wait(0.02)
            self.news.clear()

    def says(self, *records):
        for record in records:
            data = frames.seal(
                record, sender="node0", unix_ns=time.time_ns(), mono_ns=0, rank=0, pid=4800
            )
            self.engine.put(self.follower, data)


@pytest.fixture
def waiting():
    found = Waiting()
    found.engine.start()
    yield found
    found.engine.close()


def as_of_now(job):
    """The frames of a job as if they had been made just now."""
    late = time.time_ns() - job.in_order()[-1][0].unix_ns
    for envelope, record in job.in_order():
        yield frames.seal(
            record,
            sender=envelope.sender,
            unix_ns=envelope.unix_ns + late,
            mono_ns=0,
            attempt=envelope.attempt,
            rank=envelope.rank,
            pid=envelope.pid,
        )


def joined(waiting, job):
    for data in as_of_now(job):
        waiting.engine.put(waiting.follower, data)
    waiting.says(Reply("live"))
    waiting.until(lambda: waiting.engine.seen is not None)


def test_a_look_is_handed_over_as_soon_as_the_relay_has_told_its_past(waiting):
    job = FakeJob(4).trains(5)

    joined(waiting, job)

    seen = waiting.engine.seen
    assert (seen.follower, seen.look.snapshot.reporting) == (waiting.follower, 4)
    assert seen.look.snapshot.iteration == job.ranks[0].iteration
    assert seen.look.span is not None
    assert seen.look.untaped is None


def test_the_first_look_and_each_change_of_the_verdict_are_told_at_once(monkeypatch):
    """The screens would ask half a second later."""
    told, found = [], Waiting()
    monkeypatch.setattr(found.engine, "_on_news", lambda _: told.append(found.engine.seen))
    job = FakeJob(2).trains(3)
    for data in as_of_now(job):
        found.engine.put(found.follower, data)
    found.says(Reply("live"))
    found.engine._take_in()
    told.clear()

    found.engine._look()
    first = found.engine.seen
    found.engine._look()
    assert told == [first]

    snapshot, verdict = first.look.snapshot, first.look.verdict
    worse = (snapshot, replace(verdict, health="critical"))
    monkeypatch.setattr(found.follower, "look", lambda _: worse)
    found.engine._look()
    found.engine._look()

    assert [one.look.verdict.health for one in told] == ["ok", "critical"]


def test_the_facts_of_older_looks_are_freed_once_the_screens_show_a_newer_one(waiting, monkeypatch):
    monkeypatch.setattr(engines, "SHOWN_S", 0.0)
    job = FakeJob(2).trains(3)
    joined(waiting, job)
    first = waiting.engine.seen

    waiting.says(Stacks("r1", 0, 4800, time.time_ns(), "agent"))
    waiting.until(lambda: waiting.answers and waiting.engine.seen is not first)
    waiting.says(Reply("signal"))
    waiting.until(lambda: len(waiting.engine._looked_at) == 1)

    assert waiting.engine._looked_at[-1] == list(waiting.engine.seen.look.snapshot.ranks)


def test_nothing_is_looked_at_before_the_past_has_been_told(waiting):
    job = FakeJob(2).trains(2)
    for data in as_of_now(job):
        waiting.engine.put(waiting.follower, data)
    waiting.says(Reply("signal"))

    waiting.until(lambda: waiting.answers)

    assert waiting.engine.seen is None


def test_an_answer_is_told_after_the_look_in_which_it_is_seen(waiting):
    """A dump that is said to be complete is complete on the screen."""
    job = FakeJob(2).trains(3)
    joined(waiting, job)

    waiting.says(Stacks("r1", 0, 4800, time.time_ns(), "agent"))
    waiting.until(lambda: waiting.answers)

    assert [answer.request for answer in waiting.answers] == ["r1"]
    assert waiting.engine.seen.look.snapshot.ranks[0].dump.stacks.request == "r1"


def test_the_past_is_made_on_the_thread_and_told(waiting):
    job = FakeJob(2).trains(10)
    joined(waiting, job)
    first, last = waiting.engine.seen.look.span

    waiting.engine.travel(last - 4_000_000_000)
    waiting.until(lambda: waiting.engine.moment is not None)

    moment = waiting.engine.moment
    assert moment.asked_unix_ns == moment.look.snapshot.time_unix_ns == last - 4_000_000_000
    assert first < moment.look.snapshot.time_unix_ns
    assert (
        moment.look.snapshot.ranks[0].progress.iteration
        < waiting.engine.seen.look.snapshot.ranks[0].progress.iteration
    )


def test_what_does_not_fit_into_the_queue_is_dropped_counted_and_said(monkeypatch):
    job = FakeJob(2).trains(3)
    found = Waiting()
    data = list(as_of_now(job))
    room = sum(map(len, data)) + FRAME_COST_BYTES * len(data) - 1
    monkeypatch.setattr(found.engine, "_bounds", Bounds(queue_bytes=room))
    for one in (*data, data[-1], data[-1]):
        found.engine.put(found.follower, one)
    monkeypatch.setattr(found.engine, "_bounds", Bounds())
    found.says(Reply("live"))
    found.engine.start()
    try:
        found.until(lambda: found.engine.seen is not None)
    finally:
        found.engine.close()

    assert found.engine.dropped == 2
    assert found.engine.seen.look.snapshot.notes[0].startswith("2 records were dropped")


def test_a_failure_is_loud(waiting, monkeypatch):
    """The screen must not freeze for ever: the next request gets the error's text."""
    job = FakeJob(2).trains(3)
    monkeypatch.setattr(waiting.follower, "look", lambda _: 1 // 0)
    for data in as_of_now(job):
        waiting.engine.put(waiting.follower, data)
    waiting.says(Reply("live"))

    waiting.until(lambda: waiting.engine.failure is not None)

    with pytest.raises(EngineError, match="ZeroDivisionError: integer division"):
        waiting.engine.check()


def test_it_ends_at_once_and_leaves_the_interpreter_as_it_was():
    before = sys.getswitchinterval(), gc.get_threshold(), threading.active_count()
    found = Waiting()
    found.engine.start()
    assert sys.getswitchinterval() < before[0]

    found.engine.close()

    assert (sys.getswitchinterval(), gc.get_threshold(), threading.active_count()) == before


def test_an_engine_that_was_never_started_can_be_closed():
    Waiting().engine.close()


def test_a_viewer_that_is_behind_says_so_and_calls_nobody_silent(monkeypatch):
    found = Waiting()
    job = FakeJob(4).trains(5)
    for data in as_of_now(job):
        found.engine.put(found.follower, data)
    found.says(Reply("live"))
    found.engine._take_in()
    came = time.monotonic() - 30
    pile = [(found.follower, data, came) for data in as_of_now(job)]
    found.engine._queue.extend((pile * 300)[:300])
    # One batch of frames is taken in, the rest waits.
    monkeypatch.setattr(engines, "LOOK_LEAST_S", -1.0)

    found.engine._take_in()
    found.engine._look()

    assert found.engine.seen is not None
    look = found.engine.seen.look
    assert "this viewer is 30 s behind: its host leaves it too little CPU" in look.snapshot.notes
    assert round(look.behind_s) == 30
    assert look.snapshot.reporting == 4

    # The queue grows faster than time passes.
    found.engine._late_s = 300.0
    found.engine._look()

    later = found.engine.seen.look
    assert later.behind_s == 300.0
    assert later.snapshot.time_unix_ns == look.snapshot.time_unix_ns
