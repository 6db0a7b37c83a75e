"""Hosts whose clocks differ: the model has one clock, the hub's."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.diagnosis.judge import Judge
from ddtop.model.hosts import OFFSET_MAX_NS, agree_clock
from ddtop.model.job import Job
from ddtop.model.memory import Clock
from ddtop.policy import POLICY
from ddtop.say.told import look
from ddtop.wire.records import HostClock, HostState
from tests.jobs import SECOND, unix_ns
from tests.spread import SpreadJob, skewed

MS = 1_000_000
OFFSETS = st.one_of(st.floats(0.06, 90_000), st.floats(-90_000, -0.06)).map(
    lambda seconds: round(seconds, 3)
)


def busy_job():
    """Events of every kind have happened on three hosts."""
    job = SpreadJob(6, hosts=3).trains(4)
    job.ranks[5].raises("ValueError", "bad")
    job.ranks[2].stands_at("fetch", since_unix_ns=unix_ns(4))
    job.others_wait(2, 5)
    job.passes(8)
    job.ranks[5].ends(1)
    return job.passes(2)


BUSY = busy_job()


def looked_at(records, until=BUSY.now):
    """The snapshot of a viewer that received these records in this order and looked at the end."""
    job, judge = Job("train-47", POLICY), Judge(POLICY)
    for envelope, record in records:
        job.apply(envelope, record)
    for back in (1.0, 0.5, 0.0):
        snapshot = job.snapshot(unix_ns(until - back))
        verdict = look(judge, snapshot)[1]
    return snapshot, verdict


def without_clocks(snapshot):
    """The hosts' reports of their clocks may differ."""
    hosts = tuple(msgspec.structs.replace(host, clock=None) for host in snapshot.hosts)
    return replace(snapshot, hosts=hosts, seen=())


PLAIN = looked_at(BUSY.in_order())


@settings(max_examples=40)
@given(OFFSETS, OFFSETS)
def test_a_job_with_other_clocks_gives_the_same_snapshot_and_verdict(one, other):
    """Offsets of 50 ms to a day; records of before the first report are moved then."""
    snapshot, verdict = looked_at(skewed(BUSY.in_order(), {"node1": one, "node2": other}))

    assert verdict == PLAIN[1]
    assert without_clocks(snapshot) == without_clocks(PLAIN[0])


@settings(max_examples=15)
@given(st.floats(-0.049, 0.049), st.floats(-0.049, 0.049))
def test_an_offset_of_some_milliseconds_changes_no_verdict(one, other):
    _, verdict = looked_at(skewed(BUSY.in_order(), {"node1": one, "node2": other}))

    assert [(one.kind, one.ranks, one.victims) for one in verdict.findings] == [
        (one.kind, one.ranks, one.victims) for one in PLAIN[1].findings
    ]


def test_a_clock_that_is_corrected_while_the_job_runs_changes_nothing():
    """NTP steps a clock by half a minute, and its relay measures it anew for the next report."""
    records = BUSY.in_order()
    half = len(records) // 2
    changed = skewed(records[:half], {"node1": 30.0}) + skewed(records[half:], {"node1": 0.0})
    changed = [
        (envelope, msgspec.structs.replace(record, clock=HostClock(0, 100_000)))
        if at >= half and isinstance(record, HostState) and envelope.sender == "node1"
        else (envelope, record)
        for at, (envelope, record) in enumerate(changed)
    ]

    _, verdict = looked_at(changed)

    assert [finding.identity for finding in verdict.findings] == [
        finding.identity for finding in PLAIN[1].findings
    ]


def test_the_snapshot_has_the_offset_of_each_clock():
    snapshot, _ = looked_at(skewed(BUSY.in_order(), {"node1": 12.5}))

    found = {one.host: (one.role, one.offset_ns, one.error_ns) for one in snapshot.seen}
    assert found["node0"] == ("hub", 0, 0)
    assert found["node1"] == ("leaf", 12.5 * SECOND, 100_000)


def test_the_offset_of_a_clock_that_was_not_measured_is_unknown():
    records = [
        (
            envelope,
            msgspec.structs.replace(record, clock=None)
            if isinstance(record, HostState)
            else record,
        )
        for envelope, record in BUSY.in_order()
    ]
    snapshot, verdict = looked_at(records)

    assert [(one.host, one.offset_ns) for one in snapshot.seen] == [
        ("node0", 0),
        ("node1", None),
        ("node2", None),
    ]
    assert verdict == PLAIN[1]


@pytest.mark.parametrize(
    "clock", [HostClock(OFFSET_MAX_NS + 1, 5), HostClock(-(2**62), 5), HostClock(5, -1)]
)
def test_an_absurd_offset_is_refused(clock):
    assert agree_clock(None, clock) is None


def test_a_change_within_the_error_of_a_new_measurement_is_ignored():
    used = Clock(100 * MS, 2 * MS)

    assert agree_clock(used, HostClock(101 * MS, 3 * MS)) == Clock(100 * MS, 4 * MS)
    assert agree_clock(used, HostClock(110 * MS, 3 * MS)) == Clock(110 * MS, 3 * MS)
    assert agree_clock(used, None) == used
