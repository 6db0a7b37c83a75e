"""A hang, and the findings that a judge shows after looks at given moments."""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.diagnosis.judge import Judge
from ddtop.policy import POLICY
from tests.jobs import FakeJob, Kind, brief, trained, unix_ns

CULPRIT: Kind = ("critical", "not-in-collective", (2,))


def judged(job: FakeJob, moments: Iterable[float], judge: Judge | None = None) -> list[list[Kind]]:
    """The findings after looks at these moments of the job's clock."""
    judge = judge or Judge(POLICY)
    model = job.model()
    return [
        [brief(one) for one in judge.observe(model.snapshot(unix_ns(moment))).findings]
        for moment in moments
    ]


def hang() -> FakeJob:
    """Since second 10, for ten seconds, rank 2 has not been in the collective."""
    job = trained()
    job.ranks[2].stands_at("fetch")
    job.others_wait(2)
    return job.passes(10)
