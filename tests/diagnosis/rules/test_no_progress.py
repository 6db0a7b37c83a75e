"""A job that made steps and now makes none, and the long pauses that are no fault."""

import pytest

from ddtop.diagnosis.standstill import StandstillLimits
from ddtop.policy import POLICY
from tests.diagnosis.rules.no_progress import (
    LOCK,
    a_pool,
    all_stand,
    makes_groups,
    starting,
    workers_of_an_engine,
)
from tests.jobs import FakeJob, trained, unix_ns

KIND = "no-progress"


# -- the fault of one rank that no number shows


def test_it_is_a_warning_from_twenty_seconds_and_critical_from_a_minute():
    job = trained(3)
    makes_groups(job, (34, 34, 31))
    job.passes(19)
    assert job.ever() == []
    job.passes(40)
    assert job.ever() == [("warning", KIND, (2,))]
    job.passes(4)

    assert job.kinds() == [("critical", KIND, (2,))]
    assert job.verdict().health == "critical"


def test_a_job_whose_first_calls_differ_has_made_no_progress_ever_and_is_found_too():
    """The groups are made right after init_process_group, before the first step."""
    job = FakeJob(3)
    for rank in job.ranks:
        rank.iteration, rank.says = None, {"progress_unix_ns": None}
    makes_groups(job, (34, 34, 31))

    assert job.passes(70).ever() == [("warning", KIND, (2,)), ("critical", KIND, (2,))]


def test_a_rank_outside_of_all_calls_is_marked_though_half_of_them_are_there():
    """Send and receive on NCCL: the awaited rank is not known, but these ranks do wait for one."""
    job = trained(4)
    for rank in job.ranks:
        rank.stands_at("exchange", callee="recv", waits_on="p2p", activity="collective")
    for number in (1, 3):
        job.ranks[number].stands_at("read_table", line=12, waits_on="lock")
    job.passes(70)

    assert job.kinds() == [("critical", KIND, (1, 3))]
    assert job.finding().victims == (0, 2)
    assert "give the wait of rank 1 a timeout, and see which thread holds" in job.finding().advice


def test_a_rule_that_knows_more_replaces_it():
    """The wait in a collective is only known after a while."""
    job = trained(3)
    all_stand(job, waits_on="p2p")
    job.passes(30)
    assert job.kinds() == [("warning", KIND, (0, 1, 2))]
    job.others_wait(2)
    job.ranks[2].stands_at("fetch", waits_on="socket")

    assert job.passes(10).kinds() == [("critical", "not-in-collective", (2,))]


# -- all ranks in one place


@pytest.mark.parametrize("begun", [True, False])
def test_a_stale_lock_file_is_named(begun):
    """A build was killed; all ranks wait for its lock file, maybe before the first step."""
    job = trained(2) if begun else starting(2)
    all_stand(
        job,
        "load_ops",
        waits_on="lock",
        callee="wait",
        waits_for=LOCK,
        since_unix_ns=unix_ns(job.now),
    )
    for rank in job.ranks:
        rank.wakes_per_s = 10.0
    job.passes(70)

    assert job.kinds() == [("critical", KIND, (0, 1))]
    assert f"waiting for the lock file {LOCK} (train.py:40 load_ops)" in job.finding().summary
    assert f"rm '{LOCK}'" in job.finding().advice


def test_all_ranks_in_one_call_of_the_file_system_are_found():
    """A named pipe without a writer: state S, so no rule of disks applies."""
    job = trained(2)
    all_stand(job, "read_labels")
    for rank in job.ranks:
        rank.seen_outside, rank.wchan = {"syscall": "openat"}, "wait_for_partner"
    job.passes(70)

    assert job.kinds() == [("critical", KIND, (0, 1))]
    assert "opening a named pipe (nobody at the other end) in read_labels" in job.finding().summary


def test_all_ranks_in_one_dead_file_system_become_critical():
    """No rank waits for them in a collective; still the whole job makes no progress."""
    job = trained(2)
    for rank in job.ranks:
        rank.is_stalled("load", syscall="read", file="/data/a.tar")
    job.passes(25)
    assert job.ever() == []
    job.passes(25)
    assert job.kinds() == [("warning", "io-stall", (0, 1))]

    assert job.passes(15).kinds() == [("critical", "io-stall", (0, 1))]


# -- idle: no fault, however long


def test_an_interpreter_at_its_prompt_is_idle():
    """Cells of a notebook have trained. Now the user types nothing."""
    job = trained(2)
    for rank in job.ranks:
        rank.stands_at("select", "/usr/lib/python3.11/selectors.py", 468, waits_on="asyncio")
    job.passes(900)

    assert job.ever() == [("info", KIND, ())]
    assert job.verdict().health == "ok"
    assert job.finding().summary.startswith("idle for 15 min")


def test_workers_whose_engine_has_nothing_to_do_are_idle():
    assert workers_of_an_engine("orders", "orders").passes(1000).ever() == [("info", KIND, ())]


def test_a_worker_that_reads_no_orders_is_named_and_those_that_wait_for_some_are_not():
    """The engine waits for the answer of rank 1, or for a free block in its ring."""
    finding = workers_of_an_engine("orders", "lock").passes(30).finds("warning", KIND, 1)

    assert finding.victims == (0,)
    assert finding.summary == (
        "no progress for 30 s: rank 1 is waiting for a lock (train.py:40 cleanup); rank 0 is"
        " waiting for the next task (train.py:40 dequeue)"
    )


def test_a_pool_in_which_all_wait_asks_for_the_worker_that_has_the_task():
    job = workers_of_an_engine("results", "orders", "orders")
    finding = job.passes(30).finds("warning", KIND, 0)

    assert "which worker has that task" in finding.advice


def test_a_pool_whose_tasks_compute_for_long_is_no_more_than_told():
    job = a_pool()
    for second in range(280):
        job.ranks[3].works_at("simulate", line=30 + second % 3)
        job.passes(1)

    assert job.ever() == []
    assert job.passes(60).ever() == [("info", KIND, ())]


def test_a_pool_that_waits_for_a_worker_that_spins_is_a_warning_after_a_minute():
    """It may be in a call into C that does not come back."""
    job = a_pool()
    job.ranks[3].works_at("simulate", waits_on=None)
    job.passes(55)
    assert job.ever() == []

    assert job.passes(10).ever() == [("warning", KIND, (3,))]


def test_a_master_that_polls_with_sleeps_while_its_workers_wait_in_a_broadcast_is_idle():
    """A loop of requests: `while not requests: time.sleep(0.2)`, then a broadcast."""
    job = trained(3)
    for rank in job.ranks:
        rank.iteration, rank.usual_wait_ms = None, 4000.0
    job.ranks[0].stands_at("serve", "/home/ada/serve.py", 8)
    job.ranks[0].wakes_per_s, job.ranks[0].wchan = 5.0, "hrtimer_nanosleep"
    job.others_wait(0, op="broadcast")

    assert job.passes(120).ever() == [("info", KIND, ())]


def test_a_farm_whose_calls_have_a_rhythm_is_idle_if_it_has_waited_so_long_before():
    job = trained(3)
    for rank in job.ranks:
        rank.says = {"iteration_source": "collectives"}
        rank.usual_wait_ms = 4000.0
    job.ranks[0].stands_at("farm", "/home/ada/farm.py", 8)
    job.ranks[0].wakes_per_s, job.ranks[0].wchan = 2.0, "hrtimer_nanosleep"
    job.others_wait(0, op="Bcast")

    assert job.passes(60).ever() == [("info", KIND, ())]


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        pytest.param({"iteration": 50}, "warning", id="it counted steps"),
        pytest.param({"wakes_per_s": 0.0}, "critical", id="it sleeps once"),
        pytest.param(
            {"says": {"iteration_source": "collectives"}, "iteration": 50},
            "warning",
            id="a simulation",
        ),
    ],
)
def test_a_rank_that_sleeps_in_a_training_is_no_idle_master(change, severity):
    job = trained(3)
    job.ranks[0].stands_at("wait_for_licence", line=8)
    job.ranks[0].wakes_per_s = 5.0
    job.ranks[0].wchan = "hrtimer_nanosleep"
    job.ranks[0].iteration = None
    for name, value in change.items():
        setattr(job.ranks[0], name, value)
    job.others_wait(0, op="broadcast")

    assert job.passes(10).kinds() == [(severity, "not-in-collective", (0,))]


# -- long pauses of healthy jobs


def test_ten_of_its_steps_are_no_pause():
    job = trained(2)
    for rank in job.ranks:
        rank.says = {"step_ms": 12_000.0}
    all_stand(job, waits_on="lock")
    job.passes(118)
    assert job.ever() == []

    assert job.passes(10).ever() == [("warning", KIND, (0, 1))]


def test_a_pause_that_it_has_made_twice_is_usual():
    """After each epoch it waits for a server that evaluates. The third time is expected."""
    job = trained(2)
    for _ in range(2):
        all_stand(job, "evaluate_elsewhere", waits_on="lock")
        job.passes(15)
        job.goes_on()
        job.trains(10)
    pauses = [rank.progress.usual_pause_s for rank in job.snapshot().ranks]
    all_stand(job, "evaluate_elsewhere", waits_on="lock")
    job.passes(22)

    assert all(15 <= pause <= 16 for pause in pauses)
    assert job.ever() == []


def test_a_long_validation_on_all_ranks_is_silent_and_an_info_in_the_end():
    job = trained(4).passes(1)
    for second in range(320):
        for rank in job.ranks:
            rank.works_at("validate", line=30 + second % 5, callee="forward")
        job.passes(1)
        if second == 280:
            assert job.ever() == []

    assert job.ever() == [("info", KIND, ())]


def test_one_line_of_c_for_minutes_is_a_warning_and_never_critical():
    """A tokenizer, or a library that spins while it waits: both look the same from outside."""
    job = trained(2)
    for rank in job.ranks:
        rank.works_at("tokenize", callee="encode_batch")

    assert job.passes(900).ever() == [("warning", KIND, (0, 1))]


@pytest.mark.parametrize(("asleep", "found"), [(True, [("warning", KIND, (1,))]), (False, [])])
def test_ranks_that_spin_for_their_gpus_wait_where_another_rank_sleeps(asleep, found):
    """Inside CUDA graphs no number shows who waits for whom; a kernel alone may take long."""
    job = trained(3)
    for rank in job.ranks:
        rank.works_at("replay", line=50, waits_on="cuda-sync")
    if asleep:
        job.ranks[1].stands_at("fetch_metrics")

    assert job.passes(24).ever() == found


def test_ranks_that_wait_beside_one_that_computes_are_a_warning_after_a_minute():
    job = trained(3)
    all_stand(job, "wait_for_index", waits_on="lock")
    for second in range(280):
        job.ranks[0].works_at("build_index", line=30 + second % 3)
        job.passes(1)

    assert job.ever() == [("warning", KIND, (0,))]


@pytest.mark.parametrize("word", ["compile", "checkpoint-save", "checkpoint-load"])
def test_a_phase_that_takes_long_is_no_hang_for_five_minutes(word):
    job = trained(2)
    all_stand(job, waits_on=word)
    job.passes(58)
    assert job.ever() == []
    job.passes(230)
    assert job.ever() == [("warning", KIND, (0, 1))]

    assert job.passes(20).kinds() == [("critical", KIND, (0, 1))]


def test_trainers_that_wait_for_an_engine_outside_of_the_job_are_a_warning_for_five_minutes():
    job = trained(2)
    all_stand(job, "next_rollouts", waits_on="pipe")

    assert job.passes(280).ever() == [("warning", KIND, (0, 1))]


def test_what_follows_a_training_that_is_over_is_not_critical_soon():
    """All groups are destroyed, and another process uploads the results."""
    job = trained(2)
    all_stand(job, "upload", waits_on="child")
    for rank in job.ranks:
        rank.phase = "leaving"

    assert job.passes(200).ever() == [("warning", KIND, (0, 1))]


def test_the_limits_are_those_that_are_reported():
    assert POLICY.no_progress_s == 20.0
    assert POLICY.of(StandstillLimits).no_progress_step_factor == 10.0
    assert POLICY.of(StandstillLimits).no_progress_critical_s == 60.0
