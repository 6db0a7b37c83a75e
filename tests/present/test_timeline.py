"""A job's last minutes as lines."""

import re
from dataclasses import replace

import pytest

from ddtop.diagnosis.finding import WARNING, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.follow.look import Look
from ddtop.policy import POLICY
from ddtop.present.events import (
    APPEARED,
    CLEARED,
    FINDING,
    EventLog,
    listed,
    timeline_lines,
)
from ddtop.sim.incidents import SCENARIOS
from ddtop.sim.job import SimulatedJob
from tests.jobs import FakeJob, unix_ns
from tests.sim.watching import BEGAN, Watcher
from tests.ui import builders


def texts(job):
    return [text for _, text in listed(job.looks(), POLICY)]


def test_a_stop_begins_when_it_began_and_is_over_when_it_is():
    job = FakeJob(2).trains(5)
    job.ranks[1].is_stopped()
    job.passes(5)
    job.ranks[1].continues()
    job.trains(5)

    (_, joined), (stopped_at, stopped), (over_at, over) = listed(job.looks(), POLICY)

    assert joined == "ranks 0,1 of 2 joined"
    assert stopped.startswith("critical: rank-stopped: rank 1")
    assert unix_ns(5) <= stopped_at <= unix_ns(6)
    assert over == "over: rank-stopped of rank 1"
    assert over_at > unix_ns(10)


@pytest.mark.parametrize("name", ["tour", "rank-killed"])
def test_what_a_log_tells_watch_is_what_it_keeps_for_the_screen(name):
    watcher = Watcher(SimulatedJob(8, 3, SCENARIOS[name], began_unix_ns=BEGAN))
    log, told = EventLog(POLICY), []
    for half_s in range(1, 400):
        snapshot, verdict = watcher.until(half_s / 2)
        told += log.take(Look(snapshot, verdict))
        if snapshot.ended is not None:
            break

    def named(event):
        return sorted((one.finding.kind, one.finding.ranks) for one in told if one.event == event)

    entries = [one for one in log.events if one.what == FINDING]
    over = [one for one in entries if one.over_unix_ns is not None and not one.closed]
    assert entries
    assert named(APPEARED) == sorted((one.finding.kind, one.finding.ranks) for one in entries)
    assert named(CLEARED) == sorted((one.finding.kind, one.finding.ranks) for one in over)


def test_an_end_tells_who_went_first_and_does_not_call_it_over():
    job = FakeJob(2).trains(5)
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
    job = FakeJob(2).trains(5)
    job.restarts()
    job.trains(5)

    assert texts(job) == ["ranks 0,1 of 2 joined", "ranks 0,1 of 2 joined", "restarted: attempt 1"]


def test_nothing_happens_in_a_healthy_job_after_its_ranks_have_come():
    job = FakeJob(2).trains(10)

    assert [line[8:] for line in timeline_lines(listed(job.looks(), POLICY))] == [
        "  ranks 0,1 of 2 joined"
    ]


def looked(job):
    """The time line of a viewer that saw everything."""
    timeline = EventLog(POLICY)
    for snapshot, verdict in job.looks():
        timeline.take(Look(snapshot, verdict))
    return timeline


def story(job):
    """The only entry of a finding."""
    (entry,) = [one for one in looked(job).events if one.finding is not None]
    return entry


def test_a_story_keeps_what_was_reported_when():
    """The stated duration is that of the time when the entry was written, and is not rewritten."""
    job = FakeJob(4).trains(10)
    job.ranks[2].stands_at("wait_for_licence", "train.py", 63)
    job.others_wait(2)
    job.passes(60)

    entry = story(job)
    said = [
        (at, int(lasted))
        for at, text in entry.sentences
        for lasted in re.findall(r"for (\d+) s", text)
    ]

    assert said
    for at, lasted_s in said:
        assert abs((at - entry.began_unix_ns) / 1e9 - lasted_s) <= 1.5
    assert " for 5" not in entry.sentence


def test_a_finding_that_is_over_keeps_its_victims_though_they_go_on_one_by_one():
    job = FakeJob(4).trains(10)
    job.ranks[2].stands_at("wait_for_licence", "train.py", 63)
    job.others_wait(2)
    job.passes(20)
    job.ranks[0].is_stopped()
    job.passes(3)
    job.ranks[0].continues()
    for rank in job.ranks:
        rank.comes_back()
    job.trains(10)

    found = [one for one in looked(job).events if one.finding is not None]

    assert (found[0].finding.ranks, found[0].finding.victims) == ((2,), (0, 1, 3))


def test_a_cause_that_was_measured_does_not_end_as_not_measured():
    base, timeline = builders.healthy(4), EventLog(POLICY)
    measured = Finding(
        Kind.STRAGGLER, WARNING, (2,), (0, 1, 3), base.time_unix_ns,
        "rank 2 is a straggler: ranks 0,1,3 wait 20 ms of each 100 ms step; it loads",
        ("loader: 60% of its time",),
    )  # fmt: skip
    unknown = replace(
        measured,
        summary="rank 2 is a straggler: ranks 0,1,3 wait 9 ms of each 100 ms step; it is slow,"
        " and the cause is not measured",
        evidence=(),
    )
    for second, findings in enumerate(((measured,), (unknown,), ())):
        snapshot = replace(base, time_unix_ns=base.time_unix_ns + second * 1_000_000_000)
        timeline.take(Look(snapshot, Verdict(WARNING, findings, "")))

    (entry,) = [one for one in timeline.events if one.finding is not None]
    assert [text for _, text in entry.sentences] == [measured.summary]
    assert entry.finding == measured
    assert entry.over_unix_ns is not None
