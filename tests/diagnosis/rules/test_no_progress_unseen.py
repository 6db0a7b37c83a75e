"""A job without progress of which only some ranks are seen: from outside, on one of its hosts."""

import pytest

from ddtop.wire.records import OutsideLook
from tests.diagnosis.rules.no_progress_unseen import half_seen
from tests.jobs import FakeJob


@pytest.mark.parametrize(
    "standing",
    [
        {"function": "step", "line": 11},
        {"function": "step", "line": 11, "activity": "collective", "waits_on": "collective"},
    ],
)
def test_the_ranks_that_are_seen_are_a_warning_that_says_who_was_not_seen(standing):
    """A rank was killed before the look, or the others are on other hosts. There was no finding."""
    finding = half_seen(**standing).passes(300).finds("warning", "no-progress", 0, 1)

    assert finding.summary.endswith("; ranks 2,3 were not seen")
    assert "ranks 2,3 may be on other hosts" in finding.advice


def test_ranks_that_wait_for_work_from_outside_are_idle_but_something_is_to_be_done():
    """Ranks of a server, or ranks that wait for a key of a killed rank."""
    job = half_seen(function="serve", line=11, waits_on="socket")
    for rank in job.ranks[:2]:
        rank.says["iteration"] = None
    finding = job.passes(300).finding()

    assert (finding.severity, finding.kind) == ("info", "no-progress")
    assert "ranks 2,3 may be on other hosts" in finding.advice


def test_ranks_with_agents_wait_for_the_agents_of_the_others():
    job = half_seen(outside=False, function="step", line=11)

    assert "no-progress" not in [kind for _, kind, _ in job.passes(300).kinds()]


def test_ranks_that_go_on_are_not_reported_because_others_were_not_seen():
    job = FakeJob(4, absent=(2, 3))
    for rank in job.ranks[:2]:
        rank.says["outside"] = OutsideLook()

    assert job.trains(300).kinds() == []
