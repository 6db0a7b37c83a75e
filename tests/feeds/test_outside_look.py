"""How ranks that were started without ddtop are read, and for how long a place of theirs counts."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from ddtop import registry, thresholds
from ddtop.feeds.outside import look as outside
from ddtop.feeds.outside.jobs import OutsideTarget
from ddtop.feeds.outside.look import _Running
from ddtop.feeds.outside.rank import ThreadMoment, switches_of
from ddtop.feeds.outside.stacks import StackReading
from ddtop.policy import POLICY
from ddtop.relay.processes.inside import Inside
from ddtop.relay.processes.sockets import sleeping_in
from ddtop.wire.records import LOCK, Link, StackFrame, ThreadStack
from tests.ranks import place
from tests.relay.processes.once import once

SECOND = 1_000_000_000
FRAMES = (StackFrame("load", "/train.py", 9),)
APART = StackReading(place("load"), None, None, None, "running")


@pytest.fixture
def source_by(monkeypatch):
    """Makes a source that judges by a policy, of one process that waits for its end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    target = OutsideTarget(
        process.pid, registry.start_ticks(process.pid), 0, False, ("train.py",), {}
    )
    made = []

    def source(**changes):
        monkeypatch.setattr(thresholds, "_chosen", POLICY.with_limits(changes))
        made.append(outside.OutsideFeed([target], "job"))
        return made[-1]

    yield source
    for one in made:
        one.end()
    process.kill()
    process.communicate()


def seen_apart(source, looks):
    """Its rank: this many looks found it in no call, and it ran between them. The last look was
    now.
    """
    one = source._ranks[0]
    for number in range(looks):
        at = ThreadMoment(time.time_ns() + number * SECOND, "R", None, 3 * number, None)
        one.track.take(FRAMES, APART, 3 * number - 1, at)
    one.placed_mono_s = time.monotonic()
    return one


def test_a_place_that_is_not_seen_again_is_shown_as_long_as_the_policy_says(source_by):
    def shown(source):
        one = seen_apart(source, 1)
        return source._state_of(one, one.placed_mono_s + 15, False).place is not None

    assert not shown(source_by())
    assert shown(source_by(place_old_s=20.0))


def test_a_rank_that_runs_elsewhere_is_looked_at_closely_for_so_many_looks(source_by):
    def pause_s(source):
        return source._pause_s(seen_apart(source, POLICY.stack_apart_looks))

    assert pause_s(source_by()) > outside.CLOSER_S
    assert pause_s(source_by(stack_apart_looks=POLICY.stack_apart_looks + 1)) == outside.CLOSER_S


def test_a_rank_that_sleeps_is_asked_for_the_lock_of_its_stack(source_by, monkeypatch):
    """So its chain goes on at the thread that has the lock."""
    link = Link(LOCK, "self.guard", "vocab-renew")
    monkeypatch.setattr(outside, "followed", lambda *_: Inside((link,), 77))
    source = source_by()
    one = source._ranks[0]
    main = (ThreadStack(FRAMES, "MainThread", 1, main=True),)
    spy = SimpleNamespace(tids={}, asleep=True)
    pid = one.target.pid
    once(lambda: sleeping_in(pid).call == "read")
    running = _Running(spy, one.target, 0, None, 0.0, switches=switches_of(pid))
    source._see(one, running, main, time.monotonic())

    assert one.track.asleep
    assert source._state_of(one, one.placed_mono_s, False).chain == (link,)
    assert one.awaited == 77
