"""Refused connections and lost records are events, one as long as it goes on, and are shown in the
hosts view.
"""

from dataclasses import replace

import msgspec

from ddtop.follow.look import Look
from ddtop.policy import POLICY
from ddtop.present.events import APART_NS, LOSS, EventLog, rows_of
from ddtop.present.findings import event_row, events_table
from ddtop.present.hosts import host_row, hosts_table
from ddtop.wire.records import HostState, HubLink
from tests.present.reports import facts, reported
from tests.ui import builders
from tests.ui.builders import NOW

SECOND = 1_000_000_000


def watched(*looks):
    """The time line after looks of (seconds, report of the relay of node001)."""
    timeline = EventLog(POLICY)
    look(timeline, *looks)
    return timeline


def look(timeline, *looks):
    for seconds, more in looks:
        host = HostState("node\x1b[2J001", 4, **more)
        snapshot = replace(
            builders.healthy(), hosts=(host,), time_unix_ns=NOW + int(seconds * SECOND)
        )
        timeline.take(Look(snapshot, builders.calm(snapshot)))


def losses(timeline):
    return [entry for entry in timeline.events if entry.what == LOSS]


def told(*looks):
    return losses(watched(*looks))


def texts(*looks):
    return [entry.sentence for entry in told(*looks)]


def test_a_quiet_relay_says_nothing():
    assert texts((0, {}), (1, {})) == []


def test_a_count_below_zero_is_no_loss():
    """A relay that sends nonsense must not end the screen."""
    assert told((0, {"dropped": -5}), (1, {"dropped": -9, "refused": -1})) == []


def test_what_goes_on_is_one_entry_that_counts():
    assert texts((0, {}), (1, {"refused": 1}), (2, {"refused": 4}), (3, {"refused": 4})) == [
        "node?[2J001: 4 connections refused: wrong key, no key, or not ddtop"
    ]


def test_what_comes_again_after_a_minute_is_another_entry():
    again = 2 + APART_NS / SECOND
    assert texts((0, {"refused": 1}), (again, {"refused": 3})) == [
        "node?[2J001: 1 connection refused: wrong key, no key, or not ddtop",
        "node?[2J001: 2 connections refused: wrong key, no key, or not ddtop",
    ]


def test_a_relay_that_was_replaced_counts_anew():
    assert (
        texts((0, {"garbled": 5}), (5, {"garbled": 2}))[-1]
        == "node?[2J001: 2 records could not be read"
    )


def counts(timeline):
    """(seconds, connections) of the entries."""
    words = [(entry.began_unix_ns, entry.sentence.split()) for entry in losses(timeline)]
    return [((at - NOW) // SECOND, int(text[1])) for at, text in words]


def test_what_was_refused_before_this_viewer_looked_is_reported_once_and_when_it_was():
    timeline = watched((0, {"refused": 5}), (1, {"refused": 5}))
    assert counts(timeline) == [(0, 5)]
    timeline.absorb(watched((-600, {}), (-500, {"refused": 3}), (-200, {"refused": 5})))

    assert counts(timeline) == [(-500, 3), (-200, 2)]
    look(timeline, (2, {"refused": 6}), (100, {"refused": 8}))
    assert counts(timeline) == [(-500, 3), (-200, 2), (0, 1), (100, 2)]


def test_what_came_since_this_viewer_looks_stays_when_the_time_before_is_read():
    timeline = watched((0, {"refused": 5}), (1, {"refused": 7}), (100, {"refused": 8}))
    timeline.absorb(watched((-600, {}), (-500, {"refused": 5})))

    assert counts(timeline) == [(-500, 5), (0, 2), (100, 1)]


def test_what_a_relay_that_was_replaced_had_counted_is_no_part_of_the_first_sum():
    timeline = watched((0, {"refused": 2}))
    timeline.absorb(watched((-600, {}), (-500, {"refused": 5})))

    assert counts(timeline) == [(-500, 5), (0, 2)]


def test_each_kind_of_loss_has_its_own_words():
    said = texts((0, {"garbled": 1, "dropped": 2, "hub": HubLink("leaf", dropped=3)}))

    assert [text.partition(": ")[2].partition(":")[0] for text in said] == [
        "1 record could not be read",
        "2 records dropped",
        "3 records did not reach the hub",
    ]


def test_the_row_is_a_warning_and_no_wider_than_its_table():
    (entry,) = told((0, {"refused": 2}))
    line = event_row(rows_of([entry])[0], NOW, events_table(90))

    assert ("warning" in {style for _, style in line}) is True
    assert (sum(len(text) for text, _ in line) <= 90) is True


def test_the_hosts_view_has_a_column_for_it_only_where_somebody_was_refused():
    snapshot = reported()
    refusing = msgspec.structs.replace(snapshot.hosts[0], refused=777)
    for hosts, wanted in ((snapshot.hosts, False), ((refusing,), True)):
        found, codes = facts(replace(snapshot, hosts=hosts))
        table = hosts_table(140, found)
        row = "".join(text for host in found for text, _ in host_row(host, codes, None, table))
        titles = "".join(text for text, _ in table.titles())
        assert ("REFUSED" in titles, "777" in row) == (wanted, wanted)
