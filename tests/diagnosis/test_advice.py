"""Advice contains commands that a user can type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop.diagnosis.evidence import for_outside
from ddtop.wire.records import RUN
from tests.jobs import FakeJob


def finding_of(job):
    job.trains(5)
    job.others_wait(1)
    job.ranks[1].trains = False
    job.passes(9)
    return job.finding()


@pytest.mark.parametrize(
    ("advice", "typed"),
    [
        ("see it: ddtop stacks --rank 1; then", "see it: ddtop stacks --pid 4801; then"),
        ("see it: ddtop stacks train-47 --rank 1", "see it: ddtop stacks --pid 4801"),
        ("ddtop stacks shows them", "ddtop stacks --pid 4801 shows them"),
        ("see: ddtop stacks --native", "see: ddtop stacks --pid 4801 --native"),
        ("ddtop stacks --pid 9 shows it", "ddtop stacks --pid 9 shows it"),
        ("look at the network", "look at the network"),
    ],
)
def test_a_job_that_was_started_without_ddtop_is_asked_by_its_pids(advice, typed):
    job = FakeJob(3, run=RUN)
    finding = replace(finding_of(job), advice=advice)

    assert for_outside(finding, job.snapshot()).advice == typed


def test_a_job_of_ddtop_is_asked_by_its_ranks():
    job = FakeJob(3)
    finding = replace(finding_of(job), advice="ddtop stacks --rank 1")

    assert for_outside(finding, job.snapshot()).advice == "ddtop stacks --rank 1"
