"""The exception that a blamed rank handles stands in its sentence and in its evidence."""

from __future__ import annotations

import pytest

from ddtop.wire.records import Handling, Place
from tests import jobs
from tests.jobs import FakeJob

FULL = Handling("OSError", "[Errno 28] No space left on device", Place("save", "/w/train.py", 31))
TEXT = "is handling OSError: [Errno 28] No space left on device (save, train.py:31)"


def hang(*handling: int) -> FakeJob:
    """Rank 1 stands in another group, and the others wait for it."""
    job = jobs.trained()
    job.ranks[1].stands_at("report", "train.py", 60)
    job.others_wait(1)
    for number in handling:
        job.ranks[number].says["handling"] = FULL
    return job.passes(8)


def test_the_exception_of_the_rank_at_fault_is_in_its_sentence():
    finding = hang(1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith(f"; rank 1 {TEXT}")
    assert f"rank 1 {TEXT}" in finding.evidence


@pytest.mark.parametrize(
    "numbers",
    [(), (0, 2), (0, 1, 2, 3)],
    ids=["nobody", "ranks that wait", "all: the whole program runs in a handler"],
)
def test_what_others_handle_is_not_the_reason(numbers):
    finding = hang(*numbers).finds("critical", "not-in-collective", 1)

    assert "handling" not in "".join((finding.summary, *finding.evidence))


def test_a_rank_that_has_ended_handles_nothing_any_more():
    job = hang(1)
    job.ranks[1].ends(signal=9)
    job.passes(3)

    (finding,) = [one for one in job.verdict().findings if one.kind == "rank-killed"]
    assert "handling" not in "".join((finding.summary, *finding.evidence))


def test_a_job_that_moves_is_silent_whatever_it_handles():
    job = jobs.trained()
    job.ranks[1].says["handling"] = FULL

    assert job.passes(8).ever() == []
