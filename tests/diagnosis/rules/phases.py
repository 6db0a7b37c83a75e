"""A rank that saves a checkpoint, validates or compiles while the others wait for it."""

from __future__ import annotations

from ddtop.wire.records import TrainingProgress
from tests.jobs import FakeJob, trained
from tests.ranks import unix_ns


def saving(
    still: bool = False,
    phase: str | None = "checkpoint",
    usual_s: float | None = None,
    longest_s: float | None = None,
) -> FakeJob:
    """Rank 0 has been saving since second 10, and three others wait for it."""
    job = trained()
    job.others_wait(0)
    rank = job.ranks[0]
    act = rank.stands_at if still else rank.works_at
    act("save", "/home/ada/trainer.py", 142)
    rank.says["progress"] = TrainingProgress(
        "user",
        1200,
        phase=phase,
        since_unix_ns=unix_ns(10),
        usual_s=usual_s,
        longest_s=longest_s or usual_s,
        phases_ended=3 if usual_s else 0,
    )
    return job
