"""How long others may wait for a rank: another threshold in the policy gives another verdict."""

import pytest

from tests.diagnosis.habits import used_to, validated
from tests.diagnosis.rules.calls_differ import parted
from tests.diagnosis.rules.other_job import ASLEEP, asks, shares_a_group
from tests.diagnosis.rules.phases import saving
from tests.diagnosis.rules.starting import (
    early,
    enter,
    missing,
    spawned,
    works_before_init_with_a_short_timeout,
)
from tests.jobs import FakeJob, trained, unix_ns
from tests.second_policy import Case, stands

WARNED = [("warning", "not-in-collective", (0,))]
CROSSED = [("critical", "waits-for-job", (0,))]
HANGS = [("critical", "not-in-collective", (0,))]
LEFT = [("critical", "left-early", (2,))]
LATE = [("critical", "late-to-init", (2,))]
LATE_WARNED = [("warning", "late-to-init", (2,))]


def left_in_training():
    job = trained(3)
    job.ranks[2].ends(0)
    job.others_wait(2)
    return job.passes(5)


def left_before_init():
    job = early(3)
    enter(job, 0, 1)
    job.ranks[2].ends(0)
    return job.passes(5)


def sleeps_again():
    """It wakes twice a second from its sleeps."""
    job = trained(3)
    job.ranks[0].stands_at("watch")
    job.ranks[0].wchan, job.ranks[0].wakes_per_s = "hrtimer_nanosleep", 2.0
    job.others_wait(0)
    return job.passes(8)


def works_longer_than_its_validations():
    """Two validations took eight seconds."""
    job = FakeJob(3).trains(5)
    for _ in range(2):
        validated(job, 8.0, then_s=5.0)
    job.ranks[0].works_at("validate")
    job.others_wait(0)
    return job.passes(11)


def works_after_long_waits():
    """The others have waited 20 s before, and it was no fault."""
    job = used_to(20.0)
    job.ranks[0].works_at("save_checkpoint")
    job.others_wait(0)
    return job.passes(80)


def reads(cores, io_per_s):
    job = trained(3)
    job.ranks[0].works_at("fetch")
    job.ranks[0].cores, job.ranks[0].io_per_s = cores, io_per_s
    job.others_wait(0)
    return job.passes(120)


def stands_after_long_waits():
    job = used_to(9.0)
    job.ranks[0].stands_at("next_rollouts", waits_on="pipe")
    job.others_wait(0, op="broadcast")
    return job.passes(12)


def stands_where_it_stood():
    """The master of a farm sleeps between bursts, for 12 s the last time."""
    job = used_to(0.02)
    job.ranks[0].says = {"stayed_s": 12.0}
    job.ranks[0].stands_at("serve")
    job.others_wait(0, op="broadcast")
    return job.passes(20)


def writes_in_a_handler():
    job = used_to(0.02)
    job.ranks[0].stands_at("report")
    job.ranks[0].says = {"writes_since_unix_ns": unix_ns(job.now)}
    job.others_wait(0)
    return job.passes(20)


def saves(seconds, **more):
    return saving(**more).passes(seconds)


def works_with_a_short_timeout():
    job = trained()
    job.ranks[0].works_at("validate")
    job.others_wait(0, timeout_ms=40_000)
    return job.passes(22)


def made_a_call_more():
    """Five seconds ago; nothing stands."""
    return parted(0)


PARTED = [("warning", "calls-differ", (0,))]
WAITS = [
    Case("calls", "calls-differ.settled_s", 8.0, stands(made_a_call_more), PARTED, []),
    Case("left in training", "gone_limit_s", 10.0, stands(left_in_training), LEFT, []),
    Case("left before init", "gone_limit_s", 10.0, stands(left_before_init), LEFT, []),
    Case(
        "usual work", "blame.working_habit_factor", 1.0,
        stands(works_longer_than_its_validations), [], WARNED,
    ),
    Case(
        "long work", "not-in-collective.working_critical_factor", 1.0,
        stands(works_after_long_waits), WARNED, HANGS,
    ),
    Case(
        "slow I/O", "not-in-collective.transfer_critical_s", 100.0, stands(reads, 0.02, 1e6),
        WARNED, HANGS,
    ),
    Case("busy I/O", "transfers.busy_io_bytes_per_s", 6e6, stands(reads, 1.0, 5e6), WARNED, HANGS),
    Case(
        "usual pause", "not-in-collective.still_habit_factor", 1.0, stands(stands_after_long_waits),
        WARNED, HANGS,
    ),
    Case("the other job", "waits-for-job.wait_s", 30.0, stands(asks), CROSSED, HANGS),
    Case(
        "the other job asleep", "waits-for-job.asleep_s", 30.0,
        stands(shares_a_group, place=ASLEEP), [("info", "no-progress", ())],
        [("warning", "waits-for-job", (0,))],
    ),
    Case("short sleeps", "short-sleeps.per_s", 4.0, stands(sleeps_again), WARNED, HANGS),
    Case("again", "blame.still_stay_factor", 1.0, stands(stands_where_it_stood), [], HANGS),
    Case("its notes", "rank.handler_writes_s", 10.0, stands(writes_in_a_handler), WARNED, HANGS),
    Case(
        "checkpoint at work", "phase.overdue_factor", 2.0,
        stands(saves, 100, usual_s=35.0), WARNED, HANGS,
    ),
    Case(
        "checkpoint asleep", "phase.still_limit_s", 10.0,
        stands(saves, 15, still=True), WARNED, HANGS,
    ),
    Case(
        "checkpoint as long as usual", "phase.usual_factor", 1.0,
        stands(saves, 40, still=True, usual_s=35.0), WARNED, HANGS,
    ),
    Case(
        "short timeout", "timeout_critical_ratio", 0.9,
        stands(works_with_a_short_timeout), HANGS, WARNED,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", WAITS, ids=Case.name)
def test_the_policy_says_how_long_others_may_wait_for_a_rank(case):
    assert case.said_by_both() == (case.ours, case.theirs)


def sleeps_a_second_after_the_others_entered():
    job = early(3).passes(2)
    enter(job, 0, 1)
    job.passes(1)
    job.ranks[2].stands_at("wait_for_licence", line=88)
    return job.passes(5)


def never_came_though_its_launcher_lives():
    job = missing()
    job.host_says = {"launching": True}
    return job.passes(30)


def all_stay_inside():
    job = early(3).passes(1)
    enter(job, 0, 1, 2)
    return job.passes(20)


MISSING = [("critical", "rank-missing", (3,))]
MISSING_WARNED = [("warning", "rank-missing", (3,))]
INSIDE = [("critical", "collective-stuck", ())]
INSIDE_WARNED = [("warning", "collective-stuck", ())]
STARTS = [
    Case(
        "short timeout", "timeout_critical_ratio", 0.9,
        stands(works_before_init_with_a_short_timeout), LATE, LATE_WARNED,
    ),
    Case(
        "short timeout of a child", "timeout_critical_ratio", 0.9,
        stands(spawned, 1, seconds=33, timeout_ms=60_000), LATE, LATE_WARNED,
    ),
    Case(
        "asleep at one line", "starting.init_still_line_slack_s", 0.0,
        stands(sleeps_a_second_after_the_others_entered), LATE, [],
    ),
    Case(
        "asleep without an agent", "starting.init_still_process_slack_s", 0.0,
        stands(spawned, seconds=8), LATE, [],
    ),
    Case(
        "missing", "starting.init_missing_critical_s", 20.0,
        stands(never_came_though_its_launcher_lives), MISSING_WARNED, MISSING,
    ),
    Case(
        "all inside", "peer-unreachable.init_stuck_limit_s", 30.0, stands(all_stay_inside),
        INSIDE_WARNED, [],
    ),
    Case(
        "all inside", "peer-unreachable.init_stuck_rank_s", 5.0, stands(all_stay_inside),
        INSIDE_WARNED, [],
    ),
    Case(
        "all inside", "peer-unreachable.init_stuck_critical_s", 18.0,
        stands(all_stay_inside), INSIDE_WARNED, INSIDE,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", STARTS, ids=Case.name)
def test_the_policy_says_how_long_a_start_may_take(case):
    assert case.said_by_both() == (case.ours, case.theirs)
