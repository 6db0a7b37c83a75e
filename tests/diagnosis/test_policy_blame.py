"""The policy decides which rank is blamed: for a wait, an error, or no progress."""

from dataclasses import replace

import pytest

from ddtop.diagnosis.standstill import standstill_of
from ddtop.model.account import activity_text
from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.say.told import diagnose
from ddtop.wire.records import Loader
from tests.diagnosis.rules.comm_error import fails
from tests.diagnosis.rules.no_progress import all_stand
from tests.diagnosis.rules.rendezvous import file_store, meets
from tests.diagnosis.rules.starting import enter
from tests.jobs import trained, unix_ns


def errors_while_one_leaves():
    """Rank 1 has left its group, and its process is slow to end."""
    job = trained(3)
    job.ranks[1].phase = "leaving"
    fails(job, 0, 2, leaves=False)
    return job.passes(3.5)


def one_leaves_after_the_errors(seconds):
    job = trained(3)
    fails(job, 0, 2)
    job.passes(seconds)
    job.ranks[1].phase = "leaving"
    job.passes(1)
    job.ranks[1].ends(signal=15)
    return job.passes(3)


def a_store_before_the_job(seconds):
    job = meets(2, **file_store(seconds))
    enter(job, 0, 1)
    return job.passes(10)


def out_of_batches(seconds):
    """Rank 2's loader was exhausted this long before its last progress; the others' are not."""
    job = trained()
    for rank in job.ranks:
        rank.loader = Loader(0, batches=90)
    last = job.ranks[2]
    last.loader = Loader(0, batches=50, exhausted=1, exhausted_unix_ns=unix_ns(job.now - seconds))
    last.stands_at("main", line=99)
    job.others_wait(2)
    return job.passes(8)


def on_its_way_out(seconds):
    """The others wait for rank 3, which is ending and reported this long ago."""
    job = trained()
    job.ranks[3].stands_at("upload", line=99)
    job.others_wait(3)
    job.passes(8)
    job.ranks[3].seen_outside, job.ranks[3].reports = {"exiting": True}, False
    return job.passes(seconds)


def found(job, **changes):
    """The findings of this moment under this policy."""
    job.policy = POLICY.with_limits(changes)
    return [(one.kind.value, one.ranks) for one in diagnose(job.snapshot(), job.policy)]


CASES = [
    (errors_while_one_leaves, {"comm-error.leaving_s": 3.0}, [], [("comm-error", (1,))]),
    (lambda: one_leaves_after_the_errors(1.5), {"comm-error.with_it_s": 2.5}, [("comm-error", ())],
     [("comm-error", (1,))]),
    (lambda: a_store_before_the_job(3), {"rendezvous.store_clock_s": 5.0},
     [("stale-store", (0, 1))], []),
    (lambda: out_of_batches(4), {"not-in-collective.dry_before_progress_s": 6.0},
     [("not-in-collective", (2,))], [("left-early", (2,))]),
    (lambda: on_its_way_out(1), {"not-in-collective.last_report_s": 0.5}, [],
     [("left-early", (3,))]),
]  # fmt: skip


STANCES = [
    (lambda: one_line_after_another(0, 7), {"same_line_s": 9.0}, "spins", "works"),
    (lambda: one_line_after_another(4, 6), {"standstill.same_line_quiet_ratio": 0.4}, "works",
     "spins"),
    (lambda: one_line_after_another(2, 8), {"standstill.same_line_quiet_ratio": 0.7}, "works",
     "spins"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "changes", "ours", "theirs"), CASES, ids=[next(iter(case[1])) for case in CASES]
)
def test_the_policy_says_who_is_blamed(scenario, changes, ours, theirs):
    job = scenario()

    assert (found(job), found(job, **changes)) == (ours, theirs)


def test_the_policy_says_from_when_a_rank_computes_at_the_same_line():
    job = trained()
    job.ranks[2].works_at("evaluate")
    job.others_wait(2)
    rank = job.passes(5).snapshot().ranks[2]

    assert activity_text(rank).startswith("computing at the same line")
    assert activity_text(rank, replace(POLICY, same_line_s=8.0)) == "computing in Python"


def one_line_after_another(first_s, then_s):
    """Each rank uses a core. It is at one line for this long and then at the next."""
    job = trained(2)
    for line, seconds in ((10, first_s), (11, then_s)):
        for rank in job.ranks:
            rank.works_at("tokenize", line=line)
        job.passes(seconds)
    return job


@pytest.mark.parametrize(
    ("scenario", "changes", "ours", "theirs"),
    STANCES,
    ids=[next(iter(case[1])) for case in STANCES],
)
def test_the_policy_says_which_rank_of_a_quiet_job_spins(scenario, changes, ours, theirs):
    snapshot = scenario().snapshot()

    assert set(standstill_of(snapshot, POLICY).stances.values()) == {ours}
    assert set(standstill_of(snapshot, POLICY.with_limits(changes)).stances.values()) == {theirs}


def test_the_policy_says_of_how_many_ranks_it_is_asked_whether_they_are_at_one_place():
    job = trained()
    all_stand(job)
    snapshot = job.passes(8).snapshot()

    assert calm_text(snapshot, POLICY).endswith("; ranks 0-3 are in main (train.py:40)")
    assert "ranks 0-3" not in calm_text(snapshot, POLICY.with_limits({"calm.stand_most_ranks": 3}))
