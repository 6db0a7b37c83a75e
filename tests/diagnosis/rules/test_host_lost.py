"""A host that is not heard: which ranks are down, which wait, which are only unreachable."""

import msgspec

from ddtop.diagnosis.judge import Judge
from ddtop.model.facts import State
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.say.told import look
from ddtop.wire.records import HostState, HubLink
from tests.diagnosis.rules.host_lost import down
from tests.jobs import FakeJob, brief, unix_ns
from tests.spread import SpreadJob


def states(job):
    return [rank.state for rank in job.snapshot().ranks]


def test_its_ranks_are_lost_and_those_that_wait_for_them_blocked():
    assert states(down()) == [State.BLOCKED] * 4 + [State.LOST] * 2 + [State.BLOCKED] * 2


def test_a_host_that_is_heard_again_is_well_and_nothing_follows():
    job = down()
    job.comes_back("node2")
    job.goes_on()
    job.trains(8)

    assert job.kinds() == []
    assert job.ever() == [("critical", "host-lost", (4, 5))]
    assert states(job) == [State.RUNNING] * 8


def test_an_agent_that_stays_silent_when_its_host_is_back_is_said_to_be():
    job = down()
    job.comes_back("node2")
    job.ranks[4].freezes()
    job.passes(6)

    assert job.snapshot().ranks[4].state is State.SILENT
    assert ("critical", "interpreter-frozen", (4,)) in job.kinds()


def test_a_viewer_that_is_behind_loses_no_host():
    """The last records that it received are ten seconds old on all hosts."""
    job = SpreadJob(8, 4).trains(30)
    model, judge = Job("train-47", POLICY), Judge(POLICY)
    for envelope, record in job.in_order():
        model.apply(envelope, record)
        at = envelope.unix_ns + 10_000_000_000
        if envelope.kind == "HostState":
            assert look(judge, model.snapshot(at))[1].findings == ()


def test_a_job_on_one_host_has_none_to_lose():
    snapshot = FakeJob(4).trains(6).model().snapshot(unix_ns(40))

    assert [rank.state for rank in snapshot.ranks] == [State.RUNNING] * 4
    assert [one.lost for one in snapshot.seen] == [False]


def test_who_joins_after_the_cut_reads_the_same():
    """The hub sends the last records of the lost host, which are from that time."""
    job = down(30.0)
    kept = {}
    for envelope, record in job.in_order():
        if envelope.sender == "node2":
            kept[envelope.rank, envelope.kind] = (envelope, record)
    recent = [item for item in job.in_order() if item[0].unix_ns >= unix_ns(job.now - 5)]
    facts = [item for item in job.in_order() if item[0].kind in ("Hello", "Groups")]
    model, judge = Job("train-47", POLICY), Judge(POLICY)
    for envelope, record in [*facts, *kept.values(), *recent]:
        model.apply(envelope, record)
    for back in (1.0, 0.5, 0.0):
        verdict = look(judge, model.snapshot(unix_ns(job.now - back)))[1]

    assert [brief(finding) for finding in verdict.findings] == [("critical", "host-lost", (4, 5))]


def test_a_viewer_at_a_leaf_is_told_that_it_sees_this_host_only():
    job = SpreadJob(4, 2)
    job.goes_silent("node0")
    job.trains(5)
    model = job.model()
    at, host = model.hosts["node1"]
    lost = HubLink("leaf", "node0:29600", False, "connection refused")
    model.hosts["node1"] = (at, msgspec.structs.replace(host, hub=lost))

    assert model.snapshot(unix_ns(5)).apart == "this host only: hub not reached: connection refused"
    model.remove(0)
    model.remove(1)
    assert (
        calm_text(model.snapshot(unix_ns(5)), POLICY)
        == "ok: 2/2 moving, ranks 0,1 not seen from here, watched 5 s"
    )
    # A hang that only a leaf sees is not called a start either.
    assert calm_text(model.snapshot(unix_ns(20)), POLICY).startswith("quiet: no rank has moved for")


def test_a_job_whose_hosts_are_all_seen_is_not_apart():
    job = SpreadJob(4, 2).trains(5)

    assert job.snapshot().apart is None
    assert all(isinstance(host, HostState) for host in job.snapshot().hosts)


def test_who_works_is_not_said_before_the_relay_has_looked_twice():
    """A viewer joins a relay that was just started: one look at a CPU counter proves nothing."""
    job = FakeJob(4).trains(5)
    job.ranks[2].stands_at("fetch")
    job.others_wait(2)
    job.passes(20)
    fresh = [
        item
        for item in job.in_order()
        if item[0].unix_ns > unix_ns(job.now - 0.6) or item[0].kind in ("Hello", "Groups")
    ]
    model = Job("train-47", POLICY)
    for envelope, record in fresh:
        model.apply(envelope, record)

    snapshot = model.snapshot(unix_ns(job.now))

    assert snapshot.ranks[2].agent.unlooked
    assert [blame.due for blame in snapshot.blames if blame.root == 2] == [False]
