"""How far the counters of a rank have come at a moment: the paces of its roles, summed over the
eras.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddtop.sim.incidents import ABSENT, GONE, PACES, STOPPED, TRAINS, Era, Pace

_DUMB = frozenset({STOPPED, GONE, ABSENT})


@dataclass(frozen=True, slots=True)
class Course:
    """What has added up since its process started: seconds, bytes, wake-ups; all of them only grow.

    `reported_s`: how long its agent could report. `shares_s`: seconds in each of ACTIVITIES.
    """

    role: str
    reported_s: float
    waited_s: float
    shares_s: tuple[float, ...]
    cpu_s: float
    io_bytes: float
    wakes: float
    loader_s: float


def course_of(rank: int, eras: Sequence[Era], at_s: float) -> Course:
    """The course of this rank at that moment of the attempt."""
    stays: list[tuple[Pace, float, bool]] = []
    role = TRAINS
    for era in eras:
        if era.begin_s > at_s:
            break
        role = era.role(rank)
        stays.append((PACES[role], min(at_s, era.end_s) - era.begin_s, role not in _DUMB))
    return Course(
        role,
        sum(lasted for _, lasted, reports in stays if reports),
        sum(pace.wait_ratio * lasted for pace, lasted, _ in stays),
        tuple(
            sum(pace.shares[index] * lasted for pace, lasted, reports in stays if reports)
            for index in range(7)
        ),
        sum(pace.cores * lasted for pace, lasted, _ in stays),
        sum(pace.io_bytes_per_s * lasted for pace, lasted, _ in stays),
        sum(pace.wakes_per_s * lasted for pace, lasted, _ in stays),
        sum(pace.loader_ratio * lasted for pace, lasted, _ in stays),
    )
