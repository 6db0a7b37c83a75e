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
from tests.diagnosis.until_then import (
    killed_after_a_hang,
    launcher_ends_the_others,
    seen_from_the_start,
)
from tests.follow.taped import taped
from tests.jobs import brief, hung, unix_ns

HANG = ("critical", "not-in-collective", (2,))


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


def test_a_slow_rank_is_no_reason_for_a_kill():
    job = seen_from_the_start()
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
