"""Ranks that wait in init_process_group for ranks that have not joined."""

from dataclasses import replace

import pytest

from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from tests.diagnosis.rules.starting import (
    early,
    enter,
    spawned,
)
from tests.jobs import FakeJob, trained

# -- late-to-init


@pytest.mark.parametrize(
    ("happens", "kind"),
    [
        (lambda rank: rank.is_stopped(), "rank-stopped"),
        (
            lambda rank: (rank.raises("ModuleNotFoundError", "no module"), rank.ends(1)),
            "rank-crashed",
        ),
        # `if rank != 0: sys.exit()` is in the wrong place.
        (lambda rank: rank.ends(0), "left-early"),
    ],
    ids=["stopped", "raised", "left in good order"],
)
def test_what_happened_to_a_rank_before_init_is_the_cause_and_it_is_not_late(happens, kind):
    job = early(3)
    enter(job, 0, 1)
    happens(job.ranks[2])

    assert job.passes(12).kinds() == [("critical", kind, (2,))]


# -- candidates


def test_a_script_that_pauses_before_it_starts_a_rank_is_a_warning_until_the_pause_is_over():
    """`sleep $((RANK * 10))`: ranks that all start at once would overload the file server."""
    pauses = {"mark": "rank 2, started by the launcher", "command": "sleep 0.5m"}
    job = spawned(seconds=20, **pauses)
    before = job.finding().summary
    over = spawned(seconds=40, **pauses)

    assert job.ever() == [("warning", "late-to-init", (2,))]
    assert "(rank 2, started by the launcher) sleeps for another 10 s" in before
    assert over.kinds() == [("critical", "late-to-init", (2,))]
    assert "is stuck (in clock_nanosleep)" in over.finding().summary


# -- no fault yet


def test_ranks_that_have_met_and_made_no_step_yet_are_starting():
    """The first step takes its time: torch imports half of itself when the optimizer is made."""
    new = replace(FakeJob(4).trains(1).snapshot(), moving=0, still_since_unix_ns=None)

    assert calm_text(new, POLICY) == "starting: 4/4 ranks report, none has made a step yet"


def test_who_waits_is_told_while_the_verdict_is_not_there_yet():
    """Between the look that finds a wait and the one that confirms it, ranks do wait."""
    job = trained()
    job.others_wait(2)
    job.ranks[2].stands_at("wait_for_licence")

    assert calm_text(job.passes(6).snapshot(), POLICY).startswith(
        "quiet: no rank has moved for 6 s; ranks 0,1,3 wait in a collective"
    )
