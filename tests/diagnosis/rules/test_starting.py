"""Ranks that wait in init_process_group for ranks that have not joined."""

from dataclasses import replace

import pytest

from ddtop.diagnosis.rules.starting import Starting
from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.wire.records import Rendezvous
from tests.diagnosis.rules.starting import (
    early,
    enter,
    killed,
    late,
    missing,
    spawned,
    works_before_init_with_a_short_timeout,
)
from tests.jobs import FakeJob, trained, unix_ns

# -- rank-missing


def test_a_rank_that_nobody_started_is_named_with_those_who_wait():
    """WORLD_SIZE=4, and a loop over three hosts' shells."""
    finding = missing().passes(10).finds("critical", "rank-missing", 3)

    assert finding.victims == (0, 1, 2)
    assert finding.summary == (
        "rank 3 has not joined: WORLD_SIZE is 4, ranks 0-2 wait in init_process_group (store"
        " node0:29500), 10 s so far; no process with RANK=3 was seen on any host that reports"
    )
    assert finding.advice.startswith(
        "start it with RANK=3, or set WORLD_SIZE=3 on all ranks; init_process_group times out in"
        " 29 min"
    )


def test_a_rank_that_comes_at_last_ends_the_finding():
    job = missing().passes(10)
    job.greet(job.ranks[3])
    job.ranks[3].reports = True
    for rank in job.ranks:
        rank.calls, rank.phase = [], "running"
        rank.comes_back()

    assert job.passes(3).kinds() == []


@pytest.mark.parametrize(
    "variables",
    [{"GROUP_WORLD_SIZE": "2"}, {"SLURM_NNODES": "4"}, {"LOCAL_WORLD_SIZE": "3"}, {"NNODES": "2"}],
)
def test_a_rank_that_may_live_on_a_host_that_is_not_seen_is_a_warning(variables):
    """One of two nodes has no ddtop. The rank there may run."""
    finding = missing(**variables).passes(12).finds("warning", "rank-missing", 3)

    assert "only node0 reports here" in finding.summary


def test_a_rank_of_two_hosts_that_both_report_is_missing_for_certain():
    job = early(4, absent=[3], hosts=2)
    for rank in job.ranks:
        rank.told["environment"] = {"GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    job.passes(1)
    enter(job, 0, 1, 2)

    assert job.passes(10).kinds() == [("critical", "rank-missing", (3,))]


def test_the_timeout_that_follows_half_an_hour_later_does_not_change_the_cause():
    """After the end, torch's own error names no rank."""
    job = missing().passes(12)
    for rank in job.ranks[:3]:
        rank.raises(
            "DistStoreError",
            "Timed out after 1801 seconds waiting for clients. 3/4 clients joined.",
        )
        rank.ends(1)
    finding = job.passes(2).finds("critical", "rank-missing", 3)

    assert finding.victims == (0, 1, 2)
    assert "ranks 0-2 gave up in init_process_group" in finding.summary
    assert finding.advice.endswith("init_process_group has ended")


# -- rank-killed


def test_a_process_that_was_killed_before_it_joined_is_the_missing_rank():
    """The out-of-memory killer while the weights are loaded. The parent waits for nobody."""
    finding = killed(4711).finds("critical", "rank-killed", 3)

    assert finding.victims == (0, 1, 2)
    assert finding.summary.startswith(
        "rank 3 was killed before init_process_group (pid 4711 by SIGKILL); ranks 0-2 wait in"
    )
    assert "dmesg" in finding.advice


@pytest.mark.parametrize(
    "more",
    [{"absent": (2, 3)}, {"signal": 15}],
    ids=["two ranks are missing", "it was told to end"],
)
def test_a_dead_process_that_does_not_explain_the_missing_ranks_is_none_of_them(more):
    assert killed(4711, **more).kinds() == []


# -- late-to-init


def test_a_rank_that_sleeps_before_init_is_named_with_its_place():
    """It waits for a license server. Torch would report nothing for half an hour."""
    finding = late().passes(8).finds("critical", "late-to-init", 2)

    assert finding.victims == (0, 1)
    assert "rank 2 has been in wait_for_licence (train.py:88)" in finding.summary
    assert "ranks 0,1 wait in init_process_group" in finding.summary


@pytest.mark.parametrize(("sleeps_s", "severity"), [(40, "warning"), (3600, "critical")])
def test_a_rank_that_pauses_before_init_is_a_warning_if_its_sleep_ends_soon(sleeps_s, severity):
    """`time.sleep(10 * rank)`: ranks that all load at once would need too much memory."""
    job = late()
    job.ranks[2].wchan = "hrtimer_nanosleep"
    job.ranks[2].says = {"sleeps_until_unix_ns": unix_ns(job.now + sleeps_s)}
    finding = job.passes(24).finding()

    assert job.ever() == [(severity, "late-to-init", (2,))]
    assert "in wait_for_licence (train.py:88)" in finding.summary


def test_an_import_that_waits_for_the_disk_is_no_standstill():
    """A busy file server: seconds in state D or between two reads."""
    job = early(3)
    job.ranks[2].stands_at("<module>", line=1, waits_on="import")
    enter(job, 0, 1)

    assert job.passes(60).ever() == [("warning", "late-to-init", (2,))]


def test_a_rank_that_works_for_minutes_before_init_is_critical_in_the_end():
    job = early(3)
    job.ranks[2].works_at("tokenise", line=12)
    enter(job, 0, 1)
    job.passes(POLICY.of(Starting).init_late_critical_s + 3)

    assert job.ever() == [("warning", "late-to-init", (2,)), ("critical", "late-to-init", (2,))]


def test_half_of_the_groups_own_timeout_makes_it_critical_sooner():
    """With timeout=timedelta(seconds=60), the finding has to come at 30 s."""
    assert works_before_init_with_a_short_timeout().kinds() == [("critical", "late-to-init", (2,))]


@pytest.mark.parametrize(
    ("happens", "kind"),
    [
        (lambda rank: rank.is_stopped(), "rank-stopped"),
        (
            lambda rank: (rank.raises("ModuleNotFoundError", "no module"), rank.ends(1)),
            "rank-crashed",
        ),
        # `if rank != 0: sys.exit()` is in the wrong place.
        (lambda rank: rank.ends(0), "left-early"),
    ],
    ids=["stopped", "raised", "left in good order"],
)
def test_what_happened_to_a_rank_before_init_is_the_cause_and_it_is_not_late(happens, kind):
    job = early(3)
    enter(job, 0, 1)
    happens(job.ranks[2])

    assert job.passes(12).kinds() == [("critical", kind, (2,))]


def test_the_wait_for_a_rank_that_left_begins_with_its_end():
    """The others had waited before, as for any rank that is late."""
    job = early(3)
    enter(job, 0, 1)
    job.passes(4)
    left_unix_ns = unix_ns(job.now)
    job.ranks[2].ends(0)

    assert job.passes(5).finding().since_unix_ns == left_unix_ns


def test_an_elastic_restart_begins_anew():
    job = missing().passes(10)
    job.restarts()
    for rank in job.ranks:
        rank.phase, rank.trains, rank.iteration = "starting", False, None
    enter(job, 0, 1, 2, 3)

    assert job.passes(3).kinds() == []


def test_a_rank_that_its_launcher_may_still_start_is_a_warning_for_a_minute():
    """Lightning's launcher and shell scripts pause between two ranks."""
    job = missing()
    job.host_says = {"launching": True}
    before = job.passes(56).ever()
    job.passes(10)

    assert before == [("warning", "rank-missing", (3,))]
    assert job.kinds() == [("critical", "rank-missing", (3,))]


# -- candidates


def test_a_child_without_a_number_is_named_by_its_pid():
    """mp.spawn: a process becomes a rank when it calls init. This one sleeps before that."""
    finding = spawned().finds("critical", "late-to-init", 2)

    assert "process 4999 of the same parent is stuck (in clock_nanosleep)" in finding.summary
    assert "ddtop stacks --pid 4999" in finding.advice


@pytest.mark.parametrize("child", [{"cpu_per_s": 1}, {"switches_per_s": 1}])
def test_a_child_without_a_number_that_works_or_wakes_now_and_then_is_a_warning(child):
    """An import from a busy file server reads a little once a second, and uses hardly any CPU."""
    assert spawned(seconds=24, **child).ever() == [("warning", "late-to-init", (2,))]


def test_a_script_that_pauses_before_it_starts_a_rank_is_a_warning_until_the_pause_is_over():
    """`sleep $((RANK * 10))`: ranks that all start at once would overload the file server."""
    pauses = {"mark": "rank 2, started by the launcher", "command": "sleep 0.5m"}
    job = spawned(seconds=20, **pauses)
    before = job.finding().summary
    over = spawned(seconds=40, **pauses)

    assert job.ever() == [("warning", "late-to-init", (2,))]
    assert "(rank 2, started by the launcher) sleeps for another 10 s" in before
    assert over.kinds() == [("critical", "late-to-init", (2,))]
    assert "is stuck (in clock_nanosleep)" in over.finding().summary


@pytest.mark.parametrize("command", ["sleep infinity", "sleep", "sleeper 60", "python sleep 60"])
def test_a_sleep_without_an_end_and_other_commands_are_no_pause(command):
    job = spawned(mark="of the same parent", command=command)

    assert job.kinds() == [("critical", "late-to-init", (2,))]


@pytest.mark.parametrize("child", [{"torch_loaded": False, "seconds": 310}, {"torch_loaded": True}])
def test_an_import_that_takes_longer_than_any_work_and_a_sleep_after_it_are_critical(child):
    job = spawned(mark="of the same parent", **child)

    assert job.kinds() == [("critical", "late-to-init", (2,))]


def test_too_few_children_are_missing_ranks():
    """nprocs=2 and world_size=3."""
    job = early(3, absent=[2])
    for rank in job.ranks:
        rank.claim = "init"
        job.greet(rank) if rank.number < 2 else None
    enter(job, 0, 1)
    finding = job.passes(10).finds("critical", "rank-missing", 2)

    assert "no process" in finding.summary


def test_the_way_to_the_store_is_in_the_evidence():
    job = missing()
    job.ranks[0].way = Rendezvous(
        0,
        4800,
        "node0",
        29500,
        ("ESTABLISHED",),
        local=True,
        listener_pid=4800,
        listener_command="python train.py",
    )

    assert (
        "rank 0 (pid 4800) → node0:29500: ESTABLISHED; pid 4800 (python train.py) listens there"
        in job.passes(10).finding().evidence
    )


# -- no fault yet


def test_ranks_that_have_met_and_made_no_step_yet_are_starting():
    """The first step takes its time: torch imports half of itself when the optimizer is made."""
    new = replace(FakeJob(4).trains(1).snapshot(), moving=0, still_since_unix_ns=None)

    assert calm_text(new, POLICY) == "starting: 4/4 ranks report, none has made a step yet"


def test_who_waits_is_told_while_the_verdict_is_not_there_yet():
    """Between the look that finds a wait and the one that confirms it, ranks do wait."""
    job = trained()
    job.others_wait(2)
    job.ranks[2].stands_at("wait_for_licence")

    assert calm_text(job.passes(6).snapshot(), POLICY).startswith(
        "quiet: no rank has moved for 6 s; ranks 0,1,3 wait in a collective"
    )
