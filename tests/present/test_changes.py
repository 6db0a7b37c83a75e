"""What changed between looks: findings, ranks, contact, the end; each change is reported once."""

from __future__ import annotations

import json

import pytest

from ddtop.diagnosis.finding import CRITICAL, WARNING, Verdict
from ddtop.follow.look import Look
from ddtop.model.facts import State
from ddtop.policy import POLICY
from ddtop.present.events import EventLog, event_json, event_line
from ddtop.wire.records import Order
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace


def looking(seconds, *findings, contact=None, **more):
    """A look at four ranks, this many seconds after the first."""
    snapshot = replace(builders.healthy(4), time_unix_ns=NOW + int(seconds * SECOND), **more)
    return Look(snapshot, Verdict("ok", findings, ""), contact, 3.0 if contact else None)


def finding(severity=CRITICAL, ranks=(2,), **more):
    _, verdict = builders.hang(4, 2)
    return replace(
        verdict.findings[0], kind="not-in-collective", severity=severity, ranks=ranks, **more
    )


def told(changes, *looks):
    """The reported changes of these looks, in short."""
    return [brief(change) for look in looks for change in changes.take(look)]


def brief(change):
    if change.finding is not None:
        return (change.event, change.finding.severity, change.finding.ranks)
    return (change.event, *([change.ranks] if change.ranks else []))


@pytest.fixture
def changes():
    """The ranks have been reported already."""
    found = EventLog(POLICY)
    found.take(looking(0))
    return found


def test_the_first_look_tells_who_is_there_and_what_stands():
    """A viewer that joins late must not miss the hang that it was started for."""
    assert told(EventLog(POLICY), looking(0, finding())) == [
        ("joined", (0, 1, 2, 3)),
        ("appeared", CRITICAL, (2,)),
    ]


def test_what_stands_is_reported_once_and_its_end_once(changes):
    looks = [
        looking(1, finding()),
        looking(2, finding(summary="longer by now")),
        looking(3),
        looking(4),
    ]

    assert told(changes, *looks) == [("appeared", CRITICAL, (2,)), ("cleared", CRITICAL, (2,))]


def test_what_is_over_and_comes_again_is_reported_again(changes):
    looks = [looking(1, finding()), looking(2), looking(3, finding())]

    assert [change[0] for change in told(changes, *looks)] == ["appeared", "cleared", "appeared"]


def test_a_warning_that_becomes_critical_appears_again_and_one_that_gets_milder_does_not(changes):
    """A rank that works in bursts is now working, now stuck. That is one hang, not twenty."""
    severities = (WARNING, CRITICAL, WARNING, CRITICAL)
    looks = [looking(number + 1, finding(severity)) for number, severity in enumerate(severities)]

    assert told(changes, *looks) == [("appeared", WARNING, (2,)), ("appeared", CRITICAL, (2,))]


def test_a_crash_stays_one_crash_when_its_peers_wait_no_longer(changes):
    looks = [looking(1, finding(group="0")), looking(2, finding(group=None))]

    assert told(changes, *looks) == [("appeared", CRITICAL, (2,))]


def test_where_no_rank_is_at_fault_each_group_is_reported(changes):
    stuck = [finding(ranks=(), group=name) for name in ("0", "1")]

    assert told(changes, looking(1, *stuck)) == [("appeared", CRITICAL, ())] * 2


def test_a_rank_that_comes_later_is_told_then(changes):
    late = EventLog(POLICY)
    first = looking(0)
    missing = replace(first.snapshot.ranks[3], hello=None, state=State.MISSING)
    ranks = (*first.snapshot.ranks[:3], missing)
    early = replace(first, snapshot=replace(first.snapshot, ranks=ranks, reporting=3))

    assert told(late, early, looking(1), looking(2)) == [("joined", (0, 1, 2)), ("joined", (3,))]


def test_after_a_restart_all_ranks_come_again_and_the_same_fault_is_a_new_one(changes):
    looks = [looking(1, finding()), looking(2, finding(), attempt=1)]

    assert told(changes, *looks) == [
        ("appeared", CRITICAL, (2,)),
        ("joined", (0, 1, 2, 3)),
        ("cleared", CRITICAL, (2,)),
        ("appeared", CRITICAL, (2,)),
    ]


def test_lost_contact_is_reported_once_and_clears_nothing(changes):
    gone = "the relay is not heard, trying again"
    looks = [
        looking(1, finding()),
        looking(1, contact=gone),
        looking(1, contact="it is gone"),
        looking(9, finding()),
    ]

    assert told(changes, *looks) == [("appeared", CRITICAL, (2,)), ("lost",), ("joined",)]


def test_who_comes_when_contact_is_lost_is_told_what_was_last_known():
    assert told(EventLog(POLICY), looking(0, finding(), contact="gone")) == [
        ("joined", (0, 1, 2, 3)),
        ("appeared", CRITICAL, (2,)),
        ("lost",),
    ]


def test_a_finding_that_a_new_relay_does_not_have_yet_is_not_over(changes):
    """The relay was killed. The next one receives the ranks' records one by one, and the judge
    begins anew.
    """
    settle_s = POLICY.contact_settles_s
    changes.take(looking(1, finding()))
    changes.take(looking(1, contact="gone"))

    assert told(changes, looking(10), looking(9.9 + settle_s, finding())) == [("joined",)]
    assert changes.of(finding()).over_unix_ns is None
    assert told(changes, looking(10.1 + settle_s)) == [("cleared", CRITICAL, (2,))]
    assert changes.of(finding()) is None


def test_two_findings_about_one_fact_are_one_event_with_the_worse_of_them(changes):
    both = (finding(group="0"), finding(WARNING, group="1"))

    assert told(changes, looking(1, *both), looking(2, *both)) == [("appeared", CRITICAL, (2,))]
    assert changes.of(both[1]).finding == both[0]


def test_the_end_comes_last_and_clears_nothing(changes):
    """Its launcher ended the job because of that very finding."""
    changes.take(looking(1, finding()))
    ended, verdict = builders.ended()
    look = Look(replace(ended, time_unix_ns=NOW + 2 * SECOND), verdict)

    assert told(changes, look) == [("appeared", CRITICAL, (2,)), ("ended",)]


def test_the_last_state_of_a_job_that_ended_meanwhile_is_no_contact(changes):
    changes.take(looking(1, contact="gone"))
    ended, _ = builders.ended()

    assert told(changes, Look(ended, Verdict("ok", (), ""))) == [("ended",)]


def test_the_times_of_the_lines_never_go_back():
    """Somebody took stacks before this viewer came, and the relay ended while it was not heard: its
    last state is older than the line that says so.
    """
    changes = EventLog(POLICY)
    ordered = (NOW - 60 * SECOND, Order("stacks", "0", ("ada",), "stacks of rank 0"))
    ended, _ = builders.ended()
    looks = [
        looking(0, orders=(ordered,)),
        looking(1, contact="gone"),
        Look(replace(ended, time_unix_ns=NOW + 2 * SECOND), Verdict("ok", (), "")),
    ]
    found = [change for look in looks for change in changes.take(look)]

    assert [change.event for change in found] == ["ordered", "joined", "lost", "ended"]
    times = [(change.time_unix_ns - NOW) // SECOND for change in found]
    assert times == [-60, 0, 4, 4]


def test_nothing_is_told_before_the_first_records():
    assert told(EventLog(POLICY), builders.EMPTY) == []


def test_events_as_lines():
    changes = EventLog(POLICY)
    ended, verdict = builders.ended()
    looks = [
        looking(0),
        looking(1, finding()),
        looking(3, contact="gone"),
        looking(9, finding()),
        looking(20),
        Look(replace(ended, time_unix_ns=NOW + 30 * SECOND), verdict),
    ]

    assert [event_line(change) for look in looks for change in changes.take(look)] == [
        "22:13:20 joined ranks 0-3 of 4, since 22:10:20",
        f"22:13:21 appeared critical not-in-collective: {finding().summary}",
        "22:13:26 lost contact: gone",
        "22:13:29 joined again: the relay reports after 6 s of silence",
        "22:13:40 cleared critical not-in-collective of rank 2, after 51 s",
        (
            "22:13:50 appeared critical rank-crashed: rank 2 died: ValueError: bad batch"
            " (train.py:31 forward); the launcher ended ranks 0,1,3"
        ),
        "22:13:50 ended exit code 1 of rank 2",
    ]


def test_what_was_there_before_the_first_look_says_since_when():
    """`05:36:40 appeared` looked like the time of a fault that began at 05:36:12."""
    log = EventLog(POLICY)
    looks = (looking(0, finding(WARNING)), looking(1, finding()), looking(2))
    lines = [event_line(change) for look in looks for change in log.take(look)]

    assert [line.partition(", since ")[2] for line in lines] == ["22:10:20", "22:12:49", "", ""]


def test_what_a_rank_said_cannot_write_to_the_terminal(changes):
    (change,) = changes.take(looking(1, finding(summary="rank 2 raised \x1b]0;x\x07\nE")))

    assert event_line(change).isprintable()


def test_events_as_json_have_every_key_always():
    changes = EventLog(POLICY)
    looks = [
        looking(0),
        looking(1, finding()),
        looking(2),
        looking(3, contact="gone"),
        Look(*builders.ended()),
    ]
    shapes = [event_json(change, "train") for look in looks for change in changes.take(look)]
    assert [shape["event"] for shape in shapes] == [
        "joined",
        "appeared",
        "cleared",
        "lost",
        "appeared",
        "ended",
    ]
    assert {shape["schema"] for shape in shapes} == {"ddtop.event/1"}
    assert shapes[0]["ranks"] == [0, 1, 2, 3]
    assert shapes[1]["finding"]["kind"] == "not-in-collective"
    assert shapes[3]["time_unix_ns"] == NOW + 6 * SECOND
    assert shapes[5]["ended"]["first_rank"] == 2
    # Each is valid: see `documents_are_valid`.
    assert [json.loads(json.dumps(shape)) for shape in shapes] == shapes
