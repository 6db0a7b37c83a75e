"""Jobs whose ranks report how fast they train now, and how fast they trained before."""

from __future__ import annotations

from ddtop.wire.records import Pace, Speed
from tests.jobs import FakeJob


def speed(
    per_s: float,
    spread: float = 0.02,
    unit: str = "steps",
    loader_ms: float = 0.0,
    wait_ratio: float = 0.1,
) -> Speed:
    """This many steps per second. The four parts of the window differ by this share of it."""
    return Speed(
        unit,
        per_s,
        per_s * (1 - spread / 2),
        per_s * (1 + spread / 2),
        1000 / per_s,
        loader_ms,
        wait_ratio,
    )


def job_of(*paces: Pace) -> FakeJob:
    """A rank for each of these paces."""
    job = FakeJob(len(paces))
    for rank, pace in zip(job.ranks, paces, strict=True):
        rank.says["pace"] = pace
    return job.trains(12)
