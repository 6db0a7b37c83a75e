"""A job that hung and was then ended: both are reported, the hang first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop.diagnosis.finding import CRITICAL, Finding, Until
from ddtop.diagnosis.judge import with_what_stood
from ddtop.diagnosis.kinds import Kind
from ddtop.policy import POLICY
from ddtop.say.said import LASTS, without
from ddtop.say.told import tell
from ddtop.wire.records import HelperEnd
from tests import jobs
from tests.follow.taped import taped
from tests.jobs import FakeJob, brief, hung, unix_ns

HANG = ("critical", "not-in-collective", (2,))


def trained() -> FakeJob:
    """A job in its tenth second, whose viewer was there from the start."""
    job = jobs.trained()
    job.joined_s = 0.0
    return job


def launcher_ends_the_others(job: FakeJob, first: int) -> FakeJob:
    """torchrun ends the others within a second after a rank has ended."""
    for rank in job.ranks:
        if rank.number != first:
            rank.ends(signal=15, later_s=0.3 + 0.01 * rank.number)
    return job.passes(5)


def killed_after_a_hang(first: int = 2) -> FakeJob:
    job = hung(10, joined_s=0.0)
    job.ranks[first].ends(signal=9)
    return launcher_ends_the_others(job, first)


@pytest.mark.parametrize("first", [2, 0])
def test_a_kill_does_not_hide_the_hang_that_stood_until_then(first):
    """The user must read in the morning why the job was killed."""
    hang, kill = killed_after_a_hang(first).verdict().findings

    assert brief(hang) == HANG
    assert hang.summary.startswith(
        f"until rank {first} ended: rank 2 has been in fetch_labels (data.py:40) for "
    )
    assert any("has enqueued" in line for line in hang.evidence)
    assert hang.advice.startswith("find out why it is stuck at data.py:40")
    assert "times out in" in hung().verdict().findings[0].advice
    assert "times out in" not in hang.advice
    assert brief(kill) == ("critical", "rank-killed", (first,))
    assert "until" not in kill.summary.lower()


def test_a_hang_that_had_its_words_before_the_end_is_told_without_its_countdown():
    """A recording is judged as a whole after its end; the events leave out the duration."""
    (hang,) = hung().verdict().findings
    over = tell(replace(hang, seen=Until(hang, (2,))))

    assert "times out in" in hang.advice
    assert "times out in" not in over.advice
    assert without(over.sentence, LASTS).startswith(
        "until rank 2 ended: rank 2 has been in fetch_labels (data.py:40); ranks 0,1,3 wait"
    )


def test_sigkill_to_all_ranks_does_not_hide_the_hang():
    """A scheduler that gives no time for a clean-up."""
    job = hung(10, joined_s=0.0)
    for rank in job.ranks:
        rank.ends(signal=9, later_s=0.01 * rank.number)

    assert [kind for _, kind, _ in job.passes(5).kinds()] == ["not-in-collective", "rank-killed"]


def test_a_launcher_that_fails_does_not_hide_the_hang():
    job = hung(10, joined_s=0.0)
    job.host_says = {"helpers": (HelperEnd(4990, unix_ns(job.now), 3),)}
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.01 * rank.number)

    hang, end = job.passes(5).verdict().findings
    assert (hang.kind, end.kind) == ("not-in-collective", "helper-crashed")
    assert hang.summary.startswith("until the job ended: rank 2 has been in fetch_labels")


def test_while_ranks_live_the_hang_is_reported_in_the_present():
    job = hung(10, joined_s=0.0)
    job.ranks[0].ends(signal=9)

    assert not any(one.summary.startswith("until") for one in job.passes(5).verdict().findings)


def test_a_kill_without_a_hang_stays_as_it_is():
    job = trained()
    job.ranks[2].ends(signal=9)
    job.others_wait(2)
    launcher_ends_the_others(job, 2)

    assert job.kinds() == [("critical", "rank-killed", (2,))]


def test_a_rank_that_was_gone_long_before_the_others_is_no_hang():
    job = trained()
    job.ranks[2].ends(signal=9)
    job.others_wait(2)
    job.passes(60)
    launcher_ends_the_others(job, 2)

    assert job.kinds() == [("critical", "rank-killed", (2,))]


def test_a_hang_that_was_over_before_the_kill_is_not_reported():
    job = hung(10, joined_s=0.0)
    job.goes_on()
    job.trains(5)
    job.ranks[2].ends(signal=9)
    launcher_ends_the_others(job, 2)

    assert job.kinds() == [("critical", "rank-killed", (2,))]


def test_an_exception_of_the_very_rank_tells_enough():
    """The rank returned from there and raised, so that line is the cause."""
    job = hung(10, joined_s=0.0)
    job.ranks[2].raises("TimeoutError", "no answer from the label server")
    job.ranks[2].ends(1, later_s=0.2)
    launcher_ends_the_others(job, 2)

    assert job.kinds() == [("critical", "rank-crashed", (2,))]


def test_a_slow_rank_is_no_reason_for_a_kill():
    job = trained()
    job.ranks[2].ends(signal=9)
    launcher_ends_the_others(job, 2)
    slow = Finding(Kind.STRAGGLER, CRITICAL, (1,), (), unix_ns(3.0), "rank 1 is a straggler")
    stuck = replace(slow, kind=Kind.NO_PROGRESS, ranks=(), summary="no rank makes progress")
    now = job.verdict().findings

    assert with_what_stood(now, (slow,), job.snapshot(), POLICY) == now
    told = with_what_stood(now, (slow, stuck), job.snapshot(), POLICY)
    assert [one.kind for one in told] == ["no-progress", "rank-killed"]
    # It counts as part of the end where the policy says so.
    late = POLICY.with_limits({"judge.cancelled_before_s": 3600.0})
    assert with_what_stood(now, (slow, stuck), job.snapshot(), late) == now


def test_the_next_attempt_knows_nothing_of_it():
    job = killed_after_a_hang()
    job.restarts()

    assert job.trains(10).kinds() == []


@pytest.mark.parametrize("later_s", [0.0, 600.0])
def test_a_recording_tells_it_at_any_moment_after_the_end(later_s):
    job = killed_after_a_hang()
    tape = taped(job)

    _, verdict = tape.at(unix_ns(job.now + later_s))

    assert [brief(one) for one in verdict.findings] == [HANG, ("critical", "rank-killed", (2,))]
    assert verdict.health == "critical"


def test_a_recording_tells_a_cancellation_with_what_stood():
    job = hung(10, joined_s=0.0)
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.01 * rank.number)
    job.passes(30)
    tape = taped(job)

    _, verdict = tape.at(tape.span[1] + 60 * 10**9)

    (finding,) = verdict.findings
    assert "Until then: rank 2 has been in fetch_labels (data.py:40)" in finding.summary
    assert verdict.health == "warning"
