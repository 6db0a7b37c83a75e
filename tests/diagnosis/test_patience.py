"""How long others may wait for a rank, and why: what a user reads, and what a script gets."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf

import pytest

from ddtop.diagnosis.finding import Patience
from ddtop.diagnosis.patience import GOES_ON, ROWS, UNSURE
from ddtop.present.documents import finding_json
from ddtop.present.findings import banner_lines
from ddtop.wire.records import CHANGES, LOCK, LOOP, RETRY, TIMED, Link
from tests.diagnosis.habits import used_to
from tests.diagnosis.rules.late import loads_in_turn, sleeping_again
from tests.diagnosis.rules.phases import saving
from tests.jobs import WORLD, trained
from tests.ranks import unix_ns


def works(**wait):
    job = trained()
    job.ranks[1].works_at("spin")
    job.others_wait(1, **wait)
    return job


def fetches():
    job = works()
    job.ranks[1].cores, job.ranks[1].io_per_s = 0.02, 1e5
    return job


def stood_before(*beside):
    """It has let the others wait at this line before."""
    return sleeping_again(*beside, stayed_s=3.0)


def polls(does="seen is 3, need is 4", named="seen < need", *beside):
    """The text of its loop says what it waits for."""
    return sleeping_again(*beside, chain=(Link(LOOP, named, does=does),))


def sleeps(ends_s, does=None):
    """It has slept before, at the same line."""
    job = loads_in_turn(ends_s, 5.5)
    loop = Link(LOOP, "left > 0", does=does or "")
    job.ranks[2].says |= {} if does is None else {"chain": (loop,)}
    return job


def retries():
    return sleeping_again(chain=(Link(RETRY, "connect(at)", "ConnectionRefusedError"),))


def waits_for_child(moved_s):
    """Its child sleeps between two parts of its work."""
    job = trained()
    job.ranks[1].stands_at("copy", waits_on="child")
    job.others_wait(1)
    job.ranks[1].seen_outside["child_moved_unix_ns"] = unix_ns(job.now + moved_s)
    return job


def takes_turns():
    """Its threads have a lock one after the other."""
    job = trained()
    has = Link(LOCK, "self.guard", "fetch_2", does=CHANGES)
    job.ranks[1].stands_at("next_rows")
    job.ranks[1].says = {"chain": (has,)}
    job.others_wait(1)
    return job


def another_goes_on():
    """Rank 3 does not wait for it, and trains on."""
    job = polls("need is 4", "seen < need", 3)
    job.ranks[3].comes_back()
    return job


def first_thing(calls):
    """It polls before it has made many collectives, and it counts no steps: each place is new."""
    job = polls()
    for rank in job.ranks:
        rank.iteration = None
    job.ranks[1].standings[WORLD].enqueued = job.ranks[1].standings[WORLD].completed = calls
    return job


def works_after_long_waits():
    job = used_to(20.0)
    job.ranks[0].works_at("save_checkpoint")
    job.others_wait(0)
    return job


@pytest.mark.parametrize(
    ("job", "after_s", "seconds", "because"),
    [
        (works, 8, 60.0, "it works"),
        (stood_before, 8, 60.0, "it polls, or works in short steps"),
        (polls, 8, 15.0, "it polls where it has never stood before"),
        (
            lambda: polls("", "not os.path.exists('/d/ready')"),
            8,
            15.0,
            "it polls where it has never stood before",
        ),
        # It may make one request after the other.
        (sleeping_again, 8, 60.0, "it polls, or works in short steps"),
        (lambda: polls("", "not todo.empty()"), 8, 60.0, "it polls, or works in short steps"),
        (lambda: polls(f"left is 7, and {CHANGES}"), 8, 60.0, "what it waits for goes on"),
        (retries, 8, 60.0, "it polls, or works in short steps"),
        (lambda: waits_for_child(3.0), 8, 60.0, "what it waits for goes on"),
        (takes_turns, 8, 60.0, "what it waits for goes on"),
        (lambda: polls(f"that {TIMED}"), 8, 60.0, "it polls, or works in short steps"),
        (lambda: sleeps(9), 8, 60.0, "its sleep ends"),
        (lambda: sleeps(9, "left is 7"), 8, 60.0, "its sleep ends"),
        (lambda: sleeps(9, f"left is 7, and {CHANGES}"), 8, 60.0, "its sleep ends"),
        (another_goes_on, 8, 60.0, "it polls, or works in short steps"),
        (lambda: first_thing(15), 8, 60.0, "it polls, or works in short steps"),
        (lambda: first_thing(16), 8, 15.0, "it polls where it has never stood before"),
        (works_after_long_waits, 70, 100.0, "it works"),
        (lambda: loads_in_turn(40), 8, 60.0, "its sleep ends"),
        (fetches, 20, 300.0, "it transfers data"),
        (lambda: saving(usual_s=35.0), 20, 105.0, "of its phase"),
        (lambda: works(timeout_ms=40_000), 8, 20.0, "of the timeout of that call"),
        (lambda: works(timeout_ms=14_000), 6, 7.0, "of the timeout of that call"),
    ],
)
def test_a_warning_says_when_it_becomes_critical_and_why(job, after_s, seconds, because):
    (finding,) = job().passes(after_s).verdict().findings

    assert finding.severity == "warning"
    assert (finding.patience.seconds, finding.patience.because) == (seconds, because)
    (line,) = [line for line in finding.evidence if line.startswith("critical in ")]
    assert line.endswith(f", because {because}")


def test_what_stays_a_warning_has_no_time_in_json():
    (finding,) = works().passes(8).verdict().findings
    known = finding_json(finding)
    endless = finding_json(replace(finding, patience=Patience(inf, "it may")))

    assert (known["patience_s"], known["because"]) == (60.0, "it works")
    assert (endless["patience_s"], endless["because"]) == (None, "it may")


def test_the_time_that_is_said_is_the_time_at_which_it_is_critical():
    job = works()
    (warning,) = job.passes(8).verdict().findings
    waited_s = (job.snapshot().time_unix_ns - warning.since_unix_ns) / 1e9

    job.passes(warning.patience.seconds - waited_s - 1)
    assert job.finding().severity == "warning"
    job.passes(2)
    assert job.finding().severity == "critical"


def test_the_banner_says_when_a_warning_becomes_critical_and_a_critical_finding_says_nothing():
    job = works().passes(8)
    warned = banner(job)
    job.passes(60)

    assert any(line.strip().startswith("critical in ") for line in warned)
    assert not any("critical in" in line for line in banner(job))


def test_where_the_banner_has_no_room_for_that_its_first_line_says_it():
    lines = banner(works().passes(8), most=4)

    assert re.search(r"  critical in \d+ s  \d\d:\d\d:\d\d$", lines[0])
    assert not any("critical in" in line for line in lines[1:])


def banner(job, most=10):
    lines = banner_lines(job.snapshot(), job.verdict(), 80, brief=True, most=most)
    return ["".join(text for text, _ in line) for line in lines]


def test_each_reason_reads_well_after_because():
    reasons = [row.because for row in (*UNSURE, *ROWS)]

    assert len(set(reasons)) == len(reasons)
    assert [text for text in reasons if text.endswith(".") or text[0].isupper()] == []
    assert set(GOES_ON) <= set(ROWS)
    assert all(row.seconds(None) == inf for row in UNSURE)


def test_of_two_ranks_at_fault_one_time_is_said():
    """The one that is critical first gives it."""
    job = stood_before(2)
    (finding,) = job.passes(30).verdict().findings
    waited_s = (job.snapshot().time_unix_ns - finding.since_unix_ns) / 1e9

    assert finding.ranks == (1, 2)
    (line,) = [line for line in finding.evidence if line.startswith("critical in ")]
    assert line.startswith(f"critical in {60 - waited_s:.0f} s")
