"""The program that started the ranks fails after all of them have finished."""

from __future__ import annotations

import pytest

from ddtop.wire.records import HelperEnd, LastException
from tests.jobs import FakeJob, place, trained, unix_ns

PARENT = 4700


def finished(*helpers: HelperEnd) -> FakeJob:
    """The ranks have trained well and ended; then these processes end."""
    job = trained(2)
    for rank in job.ranks:
        rank.ends(0)
    job.host_says = {"helpers": helpers}
    return job.passes(2)


def test_a_parent_that_raises_after_its_ranks_fails_the_job():
    """A script around mp.spawn that cannot write its summary."""
    error = LastException("KeyError", "'best_loss'", unix_ns(11.0), place("main", "fit.py", 50))
    job = finished(HelperEnd(PARENT, unix_ns(11.0), 1, exception=error, launcher=True))
    finding = job.finding()

    assert (finding.severity, finding.kind, finding.victims) == ("critical", "helper-crashed", ())
    assert finding.summary == (
        "the program that started the ranks (pid 4700) raised KeyError: 'best_loss' at fit.py:50"
        " main; all ranks had finished by then"
    )
    ended = job.snapshot().ended
    assert ended.reason == "the program that started the ranks failed after them: KeyError"


def test_an_exit_code_alone_counts_too():
    job = finished(HelperEnd(PARENT, unix_ns(11.0), 3, launcher=True))

    assert job.kinds() == [("critical", "helper-crashed", ())]
    assert "ended with exit code 3; all ranks had finished by then" in job.finding().summary


@pytest.mark.parametrize(
    ("code", "signal", "launcher"),
    [(0, None, True), (143, None, True), (None, 15, True), (3, None, False)],
)
def test_a_parent_that_is_cancelled_and_another_process_say_nothing_of_the_job(
    code, signal, launcher
):
    job = finished(HelperEnd(PARENT, unix_ns(11.0), code, signal, launcher=launcher))

    assert job.kinds() == []
    assert job.snapshot().ended.reason == "all ranks finished"


def test_a_parent_that_is_killed_takes_its_workers_along():
    """The EngineCore of vLLM: its workers see that it is gone, and end with exit code 0."""
    job = trained(2)
    for rank in job.ranks:
        rank.ends(0, later_s=1.5)
    killed = unix_ns(job.now)
    job.host_says = {
        "helpers": (HelperEnd(PARENT, killed, None, 9, command="VLLM::EngineCore", launcher=True),)
    }
    finding = job.passes(3).finds("critical", "helper-crashed")

    assert finding.summary == (
        "the program that started the ranks (pid 4700, VLLM::EngineCore) was killed by SIGKILL;"
        " all ranks ended then"
    )
    ended = job.snapshot().ended
    assert ended.reason == "the program that started the ranks failed first: SIGKILL"


@pytest.mark.parametrize("apart_s", [-20.0, 20.0])
def test_ranks_that_finish_long_before_or_after_their_parent_was_killed_have_finished(apart_s):
    job = FakeJob(2).trains(30)
    killed = unix_ns(job.now + apart_s)
    for rank in job.ranks:
        rank.ends(0)
    job.host_says = {"helpers": (HelperEnd(PARENT, killed, None, 9, launcher=True),)}

    assert job.passes(3).kinds() == []


def test_a_rank_that_fails_explains_the_end_of_its_parent():
    """mp.spawn raises what its child raised."""
    job = trained(2)
    job.ranks[1].raises("ValueError", "bad sample 7")
    job.ranks[1].ends(1, later_s=0.2)
    job.ranks[0].ends(signal=15, later_s=0.4)
    job.host_says = {"helpers": (HelperEnd(PARENT, unix_ns(job.now + 0.6), 1, launcher=True),)}

    assert job.passes(3).kinds() == [("critical", "rank-crashed", (1,))]
