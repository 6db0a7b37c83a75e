"""In a very large world a rank reports every few seconds, and is not silent between two reports."""

import pytest

from ddtop.model.facts import State
from ddtop.model.hosts import Outside
from ddtop.model.memory import RankMemory
from ddtop.model.rank_facts import fields_of
from ddtop.policy import POLICY
from ddtop.wire.records import RankState
from ddtop.wire.times import rank_period_s
from tests.jobs import FakeJob, unix_ns

APART_NS = int((rank_period_s(100_000) - 1.0) * 1e9)


def facts_after(seconds, apart_ns):
    """The state of a rank that made progress until its last report, `seconds` ago."""
    job = FakeJob(1)
    memory = RankMemory(job.ranks[0].hello, unix_ns(0), "a")
    memory.state_unix_ns = unix_ns(10)
    memory.state = RankState("running", progress_unix_ns=unix_ns(10), iteration=7, step_ms=100.0)
    outside = Outside(None, None, 60.0, apart_ns)
    return fields_of(0, memory, outside, None, unix_ns(10 + seconds), POLICY)


@pytest.mark.parametrize("seconds", [0.5, 2.9, 6.0, 8.0])
def test_a_rank_whose_next_report_is_not_due_is_not_silent(seconds):
    assert facts_after(seconds, APART_NS).state is State.RUNNING


def test_a_rank_that_misses_its_turn_is_silent():
    assert facts_after(8.7, APART_NS).state is State.SILENT
    assert facts_after(3.6, 0).state is State.SILENT


def test_its_step_is_no_older_than_its_report():
    assert not facts_after(5.0, APART_NS).progress.stale
    assert facts_after(5.0, 0).progress.stale
    assert facts_after(8.0, APART_NS).progress.stale


def test_where_all_reports_come_ages_are_those_of_the_reports():
    assert facts_after(2.5, 0).agent.report_age_s == 2.5
    assert facts_after(2.5, APART_NS).agent.report_age_s == 0.0
