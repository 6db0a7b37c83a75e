"""How ranks that were started without ddtop are read, and for how long a place of theirs counts."""

import subprocess
import sys
import time

import pytest

from ddtop import registry, thresholds
from ddtop.feeds.outside import look as outside
from ddtop.feeds.outside.jobs import OutsideTarget
from ddtop.feeds.outside.rank import ThreadMoment
from ddtop.feeds.outside.stacks import StackReading
from ddtop.policy import POLICY
from ddtop.wire.records import StackFrame
from tests.ranks import place

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
