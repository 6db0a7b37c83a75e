"""The program that started the ranks fails after all of them have finished."""

from __future__ import annotations

import pytest

from ddtop.wire.records import HelperEnd, LastException
from tests.diagnosis.rules.parents import PARENT, finished
from tests.jobs import FakeJob, place, trained, unix_ns


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
