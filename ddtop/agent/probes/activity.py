"""Counts how often each activity was seen, for the shares in the column PHASES.

Source: the activity that `rank_thread` reads from the frames, four samples a second. Caveat: Python
frames only, so compiled code counts as the line that called it. Check: `py-spy dump --pid PID`
several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddtop.agent.probe import Probe, Tick
from ddtop.agent.stacks.frames import COLLECTIVE
from ddtop.wire.records import ACTIVITIES

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank


def probe(_rank: Rank) -> ActivityProbe:
    """The probe of `ddtop.agent.sources`."""
    return ActivityProbe()


class ActivityProbe(Probe):
    """Counts samples by activity. Its row is below the one that knows whether the rank waits."""

    name = "activity"

    def __init__(self) -> None:
        self._counts = [0] * len(ACTIVITIES)

    def sample(self, tick: Tick) -> None:
        """Count what this tick has seen."""
        if tick.seen is not None:
            self._counts[counted_as(tick.seen.activity, tick.waits)] += 1

    def fields(self, tick: Tick) -> Mapping[str, Any]:
        """The activity now, and the counts so far in the order of ACTIVITIES."""
        seen = tick.seen
        return {
            "activity": ACTIVITIES[seen.activity] if seen is not None else None,
            "activity_samples": tuple(self._counts),
        }


def counted_as(activity: int, waits: bool) -> int:
    """The activity under which a sample is counted.

    A sample that found the rank waiting for a collective counts as communication, also inside
    backward: so the share of communication in PHASES is never below WAIT.
    """
    return COLLECTIVE if waits else activity
