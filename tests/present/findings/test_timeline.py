"""A job's last minutes in lines."""

from __future__ import annotations

from ddtop.diagnosis.judge import Judge
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.present.findings.timeline import events, timeline_lines
from tests.jobs import TICK_S, FakeJob, unix_ns


def looks(job):
    """What a viewer saw that looked twice a second."""
    model, judge, waiting, at = Job(job.name, POLICY), Judge(POLICY), job.in_order(), 0.0
    while at <= job.now + 1e-9:
        while waiting and waiting[0][0].unix_ns <= unix_ns(at):
            model.apply(*waiting.pop(0))
        snapshot = model.snapshot(unix_ns(at))
        yield snapshot, judge.observe(snapshot)
        at += TICK_S


def texts(job):
    return [event.text for event in events(looks(job))]


def test_a_stop_begins_when_it_began_and_is_over_when_it_is():
    job = FakeJob(2)
    job.trains(5)
    job.ranks[1].is_stopped()
    job.passes(5)
    job.ranks[1].continues()
    job.trains(5)

    found = events(looks(job))

    assert len(found) == 3
    assert found[0].text == "ranks 0,1 of 2 came"
    assert found[1].text.startswith("critical: rank-stopped: rank 1")
    assert unix_ns(5) <= found[1].unix_ns <= unix_ns(6)
    assert found[2].text == "over: rank-stopped of rank 1"
    assert found[2].unix_ns > unix_ns(10)


def test_an_end_tells_who_went_first_and_does_not_call_it_over():
    job = FakeJob(2)
    job.trains(5)
    job.ranks[1].ends(signal=9)
    job.ranks[0].ends(signal=15, later_s=0.5)
    job.passes(4)

    found = texts(job)

    assert "rank 1 (pid 4801) ended: SIGKILL" in found
    assert "rank 0 (pid 4800) ended: SIGTERM" in found
    assert "the job ended: rank 1 went first: SIGKILL" in found
    assert not [text for text in found if text.startswith("over")]
    assert found.index("rank 1 (pid 4801) ended: SIGKILL") < found.index(
        "rank 0 (pid 4800) ended: SIGTERM"
    )


def test_a_restart_is_an_event():
    job = FakeJob(2)
    job.trains(5)
    job.restarts()
    job.trains(5)

    assert texts(job) == ["ranks 0,1 of 2 came", "ranks 0,1 of 2 came", "restarted: attempt 1"]


def test_nothing_happens_in_a_healthy_job_after_its_ranks_have_come():
    job = FakeJob(2)
    job.trains(10)

    assert [line[8:] for line in timeline_lines(events(looks(job)))] == ["  ranks 0,1 of 2 came"]
