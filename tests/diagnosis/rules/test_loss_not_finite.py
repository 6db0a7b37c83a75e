"""A loss that is nan or infinite is reported, with the step at which that began."""

from __future__ import annotations

from math import inf, nan

import pytest

from ddtop.wire.records import TrainingProgress
from tests.jobs import FakeJob


def job_with(*losses: list[float | None]) -> FakeJob:
    """One list a rank: the loss of each second. A second has 40 steps."""
    job = FakeJob(len(losses))
    job.trains(5)
    for second, of_ranks in enumerate(zip(*losses, strict=True)):
        for rank, loss in zip(job.ranks, of_ranks, strict=True):
            rank.says["progress"] = TrainingProgress("user", 1000 + 40 * second, loss=loss)
        job.trains(1)
    return job


@pytest.mark.parametrize("lost", [nan, inf, -inf])
def test_a_loss_that_stays_lost_is_reported_with_its_first_step(lost):
    job = job_with([2.5, 2.4, lost, lost, lost], [None] * 5)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "loss-not-finite", ())
    assert finding.summary == "the loss has been nan or infinite since about step 1,080"
    assert finding.evidence == (f"rank 0 reports the loss {lost:g} at step 1,160",)


def test_the_rank_that_lost_it_is_named_while_others_report_a_number():
    job = job_with([2.5] * 5, [2.5, nan, nan, nan, nan], [2.5] * 5)

    finding = job.finding()

    assert finding.ranks == (1,)
    assert finding.summary == (
        "the loss of rank 1 has been nan or infinite since about step 1,040; ranks 0,2 report a"
        " number"
    )


def test_it_is_over_when_the_loss_is_a_number_again():
    assert job_with([nan, nan, nan, 2.5, 2.4, 2.3, 2.2, 2.1], [2.5] * 8).kinds() == []


def test_a_step_that_mixed_precision_skips_is_silent():
    """The scale is too large once; the next report is a number."""
    assert job_with([2.5, inf, 2.5, nan, 2.4], [2.5] * 5).ever() == []


def test_a_loss_that_nobody_computes_is_silent():
    assert job_with([None] * 6, [None] * 6).ever() == []


def test_a_lost_loss_before_the_steps_go_on_is_silent():
    """One report of a job that then saves a checkpoint for a while."""
    job = FakeJob(2)
    job.trains(5)
    for rank in job.ranks:
        rank.says["progress"] = TrainingProgress("user", 1000, loss=nan)
    job.trains(6)

    assert job.ever() == []
