"""A job without progress: the policy decides which pause is usual, and which ranks are idle."""

import pytest

from tests.diagnosis.rules.no_progress import all_stand
from tests.jobs import trained, unix_ns
from tests.second_policy import Case, stands

KIND = "no-progress"
WARNED = [("warning", KIND, (0, 1))]
IDLE = [("info", KIND, ())]
POLLS = [("warning", "not-in-collective", (0,))]


def pauses_as_twice_before():
    """Two pauses took 15 s, this one has taken 22 s so far."""
    job = trained(2)
    for _ in range(2):
        all_stand(job, "evaluate_elsewhere", waits_on="lock")
        job.passes(15)
        job.goes_on()
        job.trains(5)
    all_stand(job, "evaluate_elsewhere", waits_on="lock")
    return job.passes(22)


def pauses_for_twelve_long_steps():
    job = trained(2)
    for rank in job.ranks:
        rank.says = {"step_ms": 6000.0}
    all_stand(job, waits_on="lock")
    return job.passes(72)


def compiles():
    job = trained(2)
    all_stand(job, waits_on="compile")
    return job.passes(100)


def master_polls(source=None, usual_wait_ms=4000.0, **says):
    """Rank 0 polls for a request, and the others wait for its orders."""
    job = trained(3)
    for rank in job.ranks:
        rank.usual_wait_ms = usual_wait_ms
        rank.says = says
        if source is None:
            rank.iteration = None
        else:
            rank.says = says | {"iteration_source": source}
    job.ranks[0].stands_at("serve", "/home/ada/serve.py", 8)
    job.ranks[0].wakes_per_s, job.ranks[0].wchan = 5.0, "hrtimer_nanosleep"
    job.others_wait(0, op="broadcast")
    return job.passes(30)


def master_sleeps():
    """It wakes in 20 s, and looks for a request then."""
    job = trained(3)
    for rank in job.ranks:
        rank.iteration, rank.usual_wait_ms = None, 4000.0
    job.ranks[0].stands_at("serve", "/home/ada/serve.py", 8)
    job.ranks[0].wchan = "hrtimer_nanosleep"
    job.ranks[0].says = {"sleeps_until_unix_ns": unix_ns(job.now + 45)}
    job.others_wait(0, op="broadcast")
    return job.passes(25)


CASES = [
    Case(
        "a usual pause", "standstill.no_progress_habit_factor", 1.0, stands(pauses_as_twice_before),
        [], WARNED,
    ),
    Case(
        "long steps", "standstill.no_progress_habit_factor", 1.0,
        stands(pauses_for_twelve_long_steps), WARNED, [("critical", KIND, (0, 1))],
    ),
    Case(
        "a compiler", "no_progress_patient_s", 80.0, stands(compiles),
        WARNED, [("critical", KIND, (0, 1))],
    ),
    Case("a master that polls", "poll_wakes_per_s", 10.0, stands(master_polls), IDLE, POLLS),
    Case(
        "a task farm", "standstill.idle_habit_s", 5.0, stands(master_polls, "collectives"), IDLE,
        POLLS,
    ),
    Case(
        "a master that sleeps", "standstill.poll_sleep_s", 5.0, stands(master_sleeps), IDLE,
        POLLS,
    ),
    Case(
        "late orders", "standstill.idle_stay_factor", 3.0,
        stands(master_polls, None, 20.0, stayed_s=7.0), IDLE, POLLS,
    ),
    Case(
        "first orders", "standstill.idle_first_collectives", 200, stands(master_polls, None, 20.0),
        POLLS, IDLE,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_when_a_job_without_progress_is_at_fault(case):
    assert case.said_by_both() == (case.ours, case.theirs)
