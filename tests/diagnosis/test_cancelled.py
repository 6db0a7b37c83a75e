"""All ranks were ended from outside: nobody's fault, and who is one that was not."""

from __future__ import annotations

import pytest

from tests.jobs import trained
from tests.spread import SpreadJob


def test_sigterm_to_all_is_a_cancellation():
    """scancel, a time limit, preemption: nothing is wrong with the job."""
    job = trained()
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.01 * rank.number)
    job.passes(3)

    finding = job.finding()

    assert (finding.severity, finding.kind, finding.ranks) == ("info", "cancelled", ())
    assert job.ever() == [("info", "cancelled", ())]
    assert finding.summary == "the job was cancelled: ranks 0-3 ended together (SIGTERM)"
    assert job.verdict().health == "ok"


def test_ctrl_c_is_a_cancellation_though_the_tracebacks_come_apart():
    """KeyboardInterrupt in four ranks; two were deep in C code and noticed a second later."""
    job = trained()
    for rank in job.ranks:
        rank.raises("KeyboardInterrupt", ago_s=-0.4 * rank.number)
        rank.ends(1, later_s=0.4 * rank.number + 0.1)
    job.passes(4)

    assert job.kinds() == [("info", "cancelled", ())]


@pytest.mark.parametrize(("gap_s", "kind"), [(0.01, "cancelled"), (0.2, "rank-killed")])
def test_a_signal_that_reaches_one_host_after_the_other_is_a_cancellation(gap_s, kind):
    """Three launchers were ended one after the other; one that cleans up after a death does so on its own host, later."""
    job = SpreadJob(6, hosts=3)
    job.trains(10)
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.3 * (rank.number // 2) + gap_s * (rank.number % 2))
    job.passes(4)

    assert [finding.kind for finding in job.verdict().findings] == [kind]


@pytest.mark.parametrize("code", [143, 130])
def test_a_handler_that_turns_the_signal_into_an_exit_code_is_a_cancellation(code):
    job = trained()
    for rank in job.ranks:
        rank.ends(code, later_s=0.01 * rank.number)
    job.passes(3)

    assert job.kinds() == [("info", "cancelled", ())]


def test_while_a_cancellation_is_on_its_way_nobody_is_blamed():
    """The ranks get their SIGTERM one after the other; the first must not stand there as killed."""
    job = trained()
    job.ranks[0].ends(signal=15)
    job.passes(1.5)

    assert job.ever() == []


def test_one_exception_among_the_cancelled_is_a_crash():
    job = trained()
    job.ranks[1].raises("ValueError", "bad")
    job.ranks[1].ends(1)
    for number in (0, 2, 3):
        job.ranks[number].ends(signal=15, later_s=0.05)
    job.passes(3)

    assert job.kinds() == [("critical", "rank-crashed", (1,))]
