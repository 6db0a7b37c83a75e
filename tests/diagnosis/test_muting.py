"""A muted finding is still found, and is not shown for the chosen time."""

import pytest

from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.judge import heard_and_muted
from ddtop.diagnosis.kinds import Kind
from ddtop.present.documents import diagnose_json
from ddtop.wire.records import Mute, Order
from tests.jobs import hung
from tests.ranks import unix_ns

LATE = 1 << 62


def finding(kind=Kind.STRAGGLER, *ranks):
    return Finding(kind, WARNING, ranks, (), 0, "x")


@pytest.mark.parametrize(
    ("mute", "one", "muted"),
    [
        (Mute("straggler", "", LATE), finding(Kind.STRAGGLER, 3), True),
        (Mute("straggler", "", LATE), finding(Kind.INPUT_BOUND, 3), False),
        (Mute("straggler", "3-5", LATE), finding(Kind.STRAGGLER, 4), True),
        (Mute("straggler", "3-5", LATE), finding(Kind.STRAGGLER, 4, 6), False),
        (Mute("", "3", LATE), finding(Kind.INPUT_BOUND, 3), True),
        # The finding blames no rank, so it is not one of rank 3.
        (Mute("", "3", LATE), finding(Kind.INPUT_BOUND), False),
        (Mute("", "nonsense", LATE), finding(Kind.INPUT_BOUND, 3), False),
        (Mute("", "", LATE), finding(Kind.INPUT_BOUND, 3), False),
    ],
)
def test_a_mute_is_for_its_kind_and_its_ranks_only(mute, one, muted):
    heard, left = heard_and_muted([one], (mute,))

    assert (len(heard), len(left)) == ((0, 1) if muted else (1, 0))


def said(job, *mutes):
    job.say(Order("mute", by=("ada",), mutes=mutes), sender="node0")
    job.passes(1)


def test_a_muted_finding_is_no_finding_until_the_time_is_up():
    job = hung()
    until = unix_ns(job.now + 6)
    said(job, Mute("not-in-collective", "2", until, "an export", "ada"))

    verdict, snapshot = job.verdict(), job.snapshot()
    assert (verdict.health, verdict.findings) == ("ok", ())
    assert [one.finding.kind for one in verdict.muted] == ["not-in-collective"]
    (shown,) = diagnose_json(snapshot, verdict)["muted"]
    assert (shown["kind"], shown["because"]) == ("not-in-collective", "an export")
    assert shown["by"] == "ada"
    assert "not-in-collective of ranks 2: an export, by ada" in snapshot.notes[0]

    job.passes(7)
    assert job.kinds() == [("critical", "not-in-collective", (2,))]
    assert not any("muted until" in note for note in job.snapshot().notes)


def test_another_finding_is_told_beside_a_muted_one():
    job = hung()
    said(job, Mute("straggler", "", LATE, "known", "ada"))

    assert job.kinds() == [("critical", "not-in-collective", (2,))]


def test_a_mute_that_is_taken_back_is_over():
    job = hung()
    said(job, Mute("not-in-collective", "", LATE, "known", "ada"))
    assert job.kinds() == []
    said(job)

    assert job.kinds() == [("critical", "not-in-collective", (2,))]


def test_an_order_of_an_older_relay_mutes_and_unmutes_nothing():
    job = hung()
    said(job, Mute("not-in-collective", "", LATE, "known", "ada"))
    job.say(Order("stacks", by=("ada",)), sender="node0")

    assert job.passes(1).kinds() == []
