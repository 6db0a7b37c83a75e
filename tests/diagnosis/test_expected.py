"""`ddtop.expected(...)`: silent until the announced time, then a warning, no excuse for a fault."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddtop.diagnosis.finding import CRITICAL, INFO, Finding
from ddtop.diagnosis.judge import heard_and_expected
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import State
from ddtop.present.documents import diagnose_json, status_json
from ddtop.wire.records import Expectation
from tests.jobs import FakeJob, trained
from tests.ranks import unix_ns


def enters(job: FakeJob, number: int, up_to_s: float, name: str = "export") -> None:
    """The rank sleeps in an expected region from now on."""
    rank = job.ranks[number]
    rank.stands_at("export", "export.py", 12)
    rank.says["expected"] = Expectation(name, unix_ns(job.now), up_to_s)


def exporting(up_to_s: float = 20.0) -> FakeJob:
    """Rank 0 exports, and the others have waited for it for eight seconds."""
    job = trained()
    enters(job, 0, up_to_s)
    job.others_wait(0)
    return job.passes(8)


def test_others_that_wait_for_an_expected_region_are_no_finding():
    job = exporting()
    verdict, snapshot = job.verdict(), job.snapshot()

    assert (verdict.health, verdict.findings) == ("ok", ())
    (muted,) = diagnose_json(snapshot, verdict)["muted"]
    assert (muted["kind"], muted["ranks"]) == ("not-in-collective", [0])
    assert (muted["because"], muted["by"]) == ("in 'export'", "ddtop.expected")
    assert muted["until_unix_ns"] == snapshot.ranks[0].progress.expected.until_unix_ns
    assert "rank 0 is in 'export', which is expected to end by" in snapshot.notes[0]
    region = status_json(snapshot, verdict)["ranks"][0]["expected"]
    assert (region["name"], region["up_to_s"]) == ("export", 20.0)
    assert status_json(snapshot, verdict)["ranks"][1]["expected"] is None


def test_a_region_that_lasts_too_long_is_a_warning_that_says_so():
    job = exporting(20).passes(15)

    assert job.kinds() == [("warning", "not-in-collective", (0,))]
    (finding,) = job.verdict().findings
    assert finding.summary == "rank 0 has been in 'export' for 23 s; 20 s were expected"
    assert finding.evidence[0].startswith("rank 0 has been in export (export.py:12)")
    assert finding.advice.startswith("If this is usual, give ddtop.expected a longer time")
    assert job.verdict().muted == ()
    assert job.snapshot().notes[0] == finding.summary


def test_a_rank_that_is_stuck_after_its_region_is_critical():
    job = exporting()
    del job.ranks[0].says["expected"]

    assert job.passes(2).kinds() == [("critical", "not-in-collective", (0,))]


def test_a_job_that_goes_on_after_the_region_has_nothing_left_of_it():
    job = exporting()
    del job.ranks[0].says["expected"]
    job.goes_on()
    job.passes(4)

    assert (job.kinds(), job.verdict().muted, job.snapshot().notes) == ([], (), ())


@pytest.mark.parametrize(
    ("happens", "kind"),
    [
        (lambda rank: rank.ends(code=None, signal=9), "rank-killed"),
        (lambda rank: (rank.raises("OSError", "disk full"), rank.ends(code=1)), "rank-crashed"),
        (lambda rank: rank.is_stopped(), "rank-stopped"),
    ],
    ids=["killed", "raised", "stopped"],
)
def test_what_happens_to_a_rank_in_its_region_is_critical(happens, kind):
    job = exporting()
    happens(job.ranks[0])

    assert job.passes(6).kinds() == [("critical", kind, (0,))]


def test_the_fault_of_another_rank_is_critical():
    job = trained()
    enters(job, 0, 600)
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.ranks[1].waits_in()
    job.ranks[3].waits_in()

    ((severity, _, ranks),) = job.passes(10).kinds()
    assert severity == "critical"
    assert 2 in ranks


def test_all_ranks_in_a_region_make_no_finding_until_it_lasts_too_long():
    job = trained()
    for number in range(4):
        enters(job, number, 60)
    quiet = job.passes(40).kinds()
    (finding,) = job.passes(30).verdict().findings

    assert quiet == []
    assert (finding.severity, finding.kind) == ("warning", "no-progress")
    assert finding.summary == "ranks 0-3 have been in 'export' for 70 s; 60 s were expected"


def test_a_silent_agent_leaves_the_region_as_it_was_said_last():
    """Code of the export holds the GIL, so the process works and its agent cannot report."""
    job = exporting(60)
    job.ranks[0].freezes(cores=1.0)
    quiet = job.passes(10).kinds()
    job.passes(60)

    assert quiet == []
    assert [one[0] for one in job.kinds()] == ["warning"]


def found(kind: Kind, *ranks: int, severity: str = CRITICAL) -> Finding:
    return Finding(kind, severity, ranks, (), 0, "one sentence")


@pytest.mark.parametrize("kind", [Kind.RANK_CRASHED, Kind.COMM_ERROR, Kind.DISK_FULL])
def test_a_region_explains_slowness_and_no_fault(kind):
    one = found(kind, 0)

    assert heard_and_expected([one], exporting().snapshot()) == ([one], ())


def test_a_finding_that_blames_a_rank_outside_of_the_region_is_heard():
    one = found(Kind.NOT_IN_COLLECTIVE, 0, 2)

    assert heard_and_expected([one], exporting().snapshot()) == ([one], ())


def test_an_info_stays_an_info_after_the_region():
    one = found(Kind.SLOWDOWN, 0, severity=INFO)

    assert heard_and_expected([one], exporting(1).snapshot()) == ([one], ())


@pytest.mark.parametrize("up_to_s", [math.nan, -5.0, math.inf, 1e300])
def test_a_time_that_no_agent_of_ours_sends_hides_nothing_for_good(up_to_s):
    region = Expectation("export", unix_ns(0), up_to_s)

    assert unix_ns(0) <= region.until_unix_ns <= unix_ns(7 * 86_400)


def test_a_lost_host_is_no_region():
    snapshot = exporting().snapshot()
    ranks = tuple(
        type(rank)(rank.rank, State.LOST, progress=rank.progress) for rank in snapshot.ranks
    )
    one = found(Kind.NOT_IN_COLLECTIVE, 0)
    assert heard_and_expected([one], replace(snapshot, ranks=ranks)) == ([one], ())
