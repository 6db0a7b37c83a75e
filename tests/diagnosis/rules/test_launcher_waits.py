"""torchrun before it has a rank: it waits for other nodes, or for the store."""

from dataclasses import replace

import pytest

from ddtop.diagnosis.rules.starting import Starting
from ddtop.model.facts import WaitingLauncher
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.say.told import diagnose
from tests.jobs import unix_ns

HOST = WaitingLauncher(4711, "tabular", 40.0, "node0:29500", 2, 1)
LOST = replace(HOST, nodes_there=None, probe="refused")


def findings(*launchers, policy=POLICY, **changes):
    snapshot = Job("tabular-4711", policy).snapshot(unix_ns(100.0))
    found = tuple(replace(one, **changes) for one in launchers)
    return diagnose(replace(snapshot, launchers=found), policy)


def test_a_node_that_does_not_come_is_named_with_the_place():
    (finding,) = findings(HOST)

    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "rank-missing", ())
    assert finding.summary == (
        "the launcher of tabular (pid 4711) has waited 40 s for 1 of 2 nodes at node0:29500;"
        " no rank yet"
    )
    assert finding.since_unix_ns == unix_ns(60.0)
    assert "nc -zv node0 29500" in finding.advice


def test_after_a_minute_it_is_critical():
    assert (
        findings(HOST, waited_s=POLICY.of(Starting).init_missing_critical_s)[0].severity
        == "critical"
    )


def test_a_launcher_that_is_not_at_its_own_store_does_not_know_how_many_are_missing():
    (finding,) = findings(HOST, nodes_there=None)

    assert "for the other nodes of 2 at node0:29500" in finding.summary


@pytest.mark.parametrize("more", [{"nodes_there": 2}, {"nodes": 1}, {"waited_s": 5.0}])
def test_when_all_have_come_or_it_has_just_begun_nothing_is_said(more):
    assert findings(HOST, **more) == ()


def test_nobody_at_the_store_is_critical_before_torchrun_gives_up():
    (finding,) = findings(LOST)

    assert (finding.severity, finding.kind) == ("critical", "master-unreachable")
    assert finding.summary.startswith(
        "the launcher of tabular (pid 4711) cannot reach the store at node0:29500 (connection"
        " refused, nothing listens there), for 40 s"
    )


def test_the_policy_says_how_long_a_launcher_may_look_for_the_store():
    (finding,) = findings(LOST, policy=POLICY.with_limits({"starting.store_dial_critical_s": 50.0}))

    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "more", [{"waited_s": 0.0}, {"probe": "open"}, {"waited_s": 8.0}, {"nodes": 1, "probe": None}]
)
def test_a_launcher_that_still_imports_or_is_about_to_connect_is_silent(more):
    assert findings(LOST, **more) == ()


def test_two_launchers_have_a_finding_each():
    assert [one.kind for one in findings(HOST, LOST)] == ["master-unreachable", "rank-missing"]


def test_without_a_finding_the_sentence_says_what_there_is():
    snapshot = replace(Job("t", POLICY).snapshot(unix_ns(1.0)), launchers=(HOST,))

    assert calm_text(snapshot, POLICY) == "starting: no rank of pid 4711 yet"
