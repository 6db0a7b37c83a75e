"""Every rule judges by the policy that is passed in, and by no other number."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import ddtop.diagnosis
from ddtop.policy import POLICY
from ddtop.say.told import diagnose
from ddtop.wire.records import Disk, HostLoad, OpenCall
from tests.diagnosis.rules.comm_error import fails
from tests.diagnosis.rules.crowded import loaded
from tests.diagnosis.rules.exception_swallowed import catching, caught, job_in_which
from tests.diagnosis.rules.gpus import memory, refuses
from tests.diagnosis.rules.input_bound import loading
from tests.diagnosis.rules.io_stall import stalled
from tests.diagnosis.rules.loader_stuck import starving
from tests.diagnosis.rules.misuse import (
    PLAIN,
    communicating,
    fed,
    on_gloo,
    taking_turns,
    taking_turns_at_cpus,
    transferring,
    transferring_beside_others,
)
from tests.diagnosis.rules.nccl import launches_outside
from tests.diagnosis.rules.no_progress import all_stand
from tests.diagnosis.rules.rendezvous import all_enter, file_store, meets
from tests.diagnosis.rules.starting import early, enter, missing, spawned
from tests.diagnosis.rules.straggler import job_with, read_once
from tests.gpu_jobs import GIB, GpuJob, card, holding, stranger
from tests.jobs import FakeJob, hung, trained, unix_ns
from tests.spread import SpreadJob

LONG_S = 3600.0
ROOM = Path(ddtop.diagnosis.__file__).parent


def a_stopped_rank():
    job = trained()
    job.ranks[1].is_stopped()
    return job.passes(6)


def a_rank_at_work():
    job = trained()
    job.ranks[2].works_at("evaluate")
    job.others_wait(2)
    return job.passes(75)


def a_stuck_collective():
    job = trained()
    job.others_wait()
    return job.passes(8)


def a_cycle():
    job = trained(3)
    for rank in job.ranks:
        rank.stands_at("exchange", "/home/ada/pipe.py", 30)
        rank.calls.append(OpenCall("recv", unix_ns(job.now), (rank.number - 1) % 3, 0, 1))
    return job.passes(8)


def a_dead_file_server(seconds=8, awaited=True):
    job = stalled(3) if awaited else trained()
    if not awaited:
        job.ranks[3].is_stalled()
    return job.passes(seconds)


def a_dead_worker():
    return starving().passes(10)


def a_cut_link():
    job = trained(3)
    job.others_wait()
    job.passes(1)
    fails(job, 1, leaves=False)
    return job.passes(12)


def nobody_moves():
    job = trained(3)
    all_stand(job)
    return job.passes(25)


def a_rank_that_never_came():
    return missing().passes(10)


def a_rank_that_imports():
    job = early().passes(2)
    enter(job, 0, 1, 2)
    return job.passes(14)


def slow_loaders():
    return loading().trains(15)


def too_few_cpus():
    job = FakeJob(4)
    job.host_says = {"load": HostLoad(runnable=9)}
    loaded(job, 40, run_delay_ns=0.55)
    return job


def little_memory():
    job = FakeJob(4)
    job.host_says = {"memory_total_bytes": 64 * GIB, "memory_available_bytes": GIB}
    return job.trains(10)


def a_full_disk():
    job = FakeJob(4)
    job.host_says = {"load": HostLoad(disks=(Disk("/scratch", "cwd", 1000 * GIB, GIB),))}
    return job.trains(10)


def a_straggler():
    return read_once(job_with())


def the_same_data_on_all_ranks():
    return fed(**PLAIN).trains(10)


def a_swallowed_exception():
    return job_in_which(catching(), catching(), catching(caught()), catching())


def gradients_through_gloo():
    return on_gloo().trains(10)


def a_gpu_of_two():
    job = GpuJob()
    job.has(card(0, 0), holding(card(1, 1), stranger()), card(2, 2), card(3, 3))
    return job.trains(14)


def a_full_gpu():
    job = GpuJob(card(0, 0, used_bytes=79 * GIB), card(1, 1), world_size=2)
    refuses(job, memory())
    return job


def a_hot_gpu():
    job = GpuJob()
    job.change(2, throttle=("hw_thermal", "hw_slowdown"), sm_mhz=1005, celsius=91)
    return job.trains(10)


def a_frozen_interpreter():
    job = trained().passes(0.5)
    job.ranks[1].freezes()
    job.others_wait(1)
    return job.passes(8)


def a_host_that_is_down():
    job = SpreadJob(8, 4).trains(6)
    job.goes_silent("node2")
    job.others_wait(4, 5)
    return job.passes(12)


def a_peer_at_the_address_of_a_bridge():
    job = meets(2)
    all_enter(job, 0, listens=("172.17.0.1:41234", "0.0.0.0:29500"))
    all_enter(job, 1, dials=("172.17.0.1:41234",))
    return job.passes(10)


CASES = [
    (a_frozen_interpreter, "interpreter-frozen", {"still_limit_s": LONG_S}),
    (a_host_that_is_down, "host-lost", {"host_lost_s": LONG_S}),
    (a_peer_at_the_address_of_a_bridge, "peer-unreachable", {"init_missing_limit_s": LONG_S}),
    (a_stopped_rank, "rank-stopped", {"stopped_limit_s": LONG_S}),
    (hung, "not-in-collective", {"still_limit_s": LONG_S}),
    (a_rank_at_work, "not-in-collective", {"blame.working_limit_s": LONG_S}),
    (a_stuck_collective, "collective-stuck", {"still_limit_s": LONG_S}),
    (a_cycle, "wait-cycle", {"still_limit_s": LONG_S}),
    (a_dead_file_server, "io-stall", {"still_limit_s": LONG_S}),
    (lambda: a_dead_file_server(45, False), "io-stall", {"stall_alone_limit_s": LONG_S}),
    (a_dead_worker, "loader-stuck", {"still_limit_s": LONG_S}),
    (a_cut_link, "comm-error", {"comm-error.after_s": LONG_S}),
    (nobody_moves, "no-progress", {"no_progress_s": LONG_S}),
    (nobody_moves, "no-progress", {"standstill.no_progress_step_factor": 1e9}),
    (a_rank_that_never_came, "rank-missing", {"init_missing_limit_s": LONG_S}),
    (a_rank_that_imports, "late-to-init", {"starting.init_late_warning_s": LONG_S}),
    (slow_loaders, "input-bound", {"input_bound_ratio": 0.9}),
    (slow_loaders, "input-bound", {"input-bound.window_s": LONG_S}),
    (slow_loaders, "input-bound", {"input-bound.steps": 1_000_000}),
    (
        too_few_cpus,
        "cpu-oversubscribed",
        {"oversubscribed_ratio": 0.9, "cpu-oversubscribed.threads_ratio": 0.9},
    ),
    (too_few_cpus, "cpu-oversubscribed", {"cpu-oversubscribed.window_ratio": 9.0}),
    (little_memory, "memory-pressure", {"resources.memory_low_ratio": 0.001}),
    (little_memory, "memory-pressure", {"memory_low_bytes": 1.0}),
    (a_full_disk, "disk-full", {"disk_full_ratio": 0.0001}),
    (a_full_disk, "disk-full", {"space.disk_full_bytes": 1.0}),
    (a_straggler, "straggler", {"straggler.ratio": 0.9}),
    (
        the_same_data_on_all_ranks,
        "sampler-not-distributed",
        {"sampler-not-distributed.feed_steps": 1_000_000},
    ),
    (a_swallowed_exception, "exception-swallowed", {"exception-swallowed.windows": 100}),
    (gradients_through_gloo, "wrong-backend", {"wrong-backend.gloo_bytes": 1 << 60}),
    (a_gpu_of_two, "gpu-busy", {"gpu_foreign_ratio": 0.9}),
    (a_gpu_of_two, "gpu-busy", {"gpu.foreign_s": LONG_S}),
    (a_full_gpu, "gpu-memory-low", {"gpu-memory-low.memory_low_ratio": 0.001}),
    (a_full_gpu, "gpu-memory-low", {"gpu-memory-low.retries": 1_000_000}),
    (a_hot_gpu, "gpu-throttled", {"gpu_throttled_s": LONG_S}),
    (a_hot_gpu, "gpu-throttled", {"gpu_slow_ratio": 0.1}),
    (a_hot_gpu, "gpu-throttled", {"gpu_busy_ratio": 1.1}),
    (lambda: communicating(0.8), "sync-bound", {"sync-bound.ratio": 0.99}),
    (lambda: communicating(0.8), "sync-bound", {"sync-bound.calls": 1000}),
    (lambda: communicating(0.8), "sync-bound", {"sync-bound.uneven_factor": 0.1}),
    (taking_turns, "imbalance", {"imbalance.ratio": 0.9}),
    (taking_turns, "imbalance", {"imbalance.steps": 1000}),
    (taking_turns, "imbalance", {"imbalance.last_ratio": 0.1}),
    (taking_turns, "imbalance", {"imbalance.wait_ratio": 5.0}),
    (taking_turns, "imbalance", {"imbalance.job_s": LONG_S}),
    (lambda: taking_turns_at_cpus(0.05), "imbalance", {"imbalance.delay_ratio": 0.01}),
    (transferring, "transfer-bound", {"transfer-bound.ratio": 0.99}),
    (transferring, "transfer-bound", {"transfer-bound.call_bytes": 1 << 30}),
    (transferring, "transfer-bound", {"transfer-bound.blocked_ratio": 1.5}),
    (transferring, "transfer-bound", {"transfer-bound.job_s": LONG_S}),
    (
        lambda: transferring_beside_others(1.0),
        "transfer-bound",
        {"transfer-bound.cpu_factor": 0.1},
    ),
    (
        lambda: transferring(0.95, blocked=0.0),
        "transfer-bound",
        {"transfer-bound.overlapped_ratio": 0.99},
    ),
]


@pytest.mark.parametrize(
    ("scenario", "kind", "changes"),
    CASES,
    ids=[f"{kind}-{next(iter(more))}" for _, kind, more in CASES],
)
def test_a_rule_is_silent_with_a_larger_limit(scenario, kind, changes):
    job = scenario()

    assert kind in [found for _, found, _ in job.kinds()]
    job.policy = POLICY.with_limits(changes)
    assert kind not in [found for _, found, _ in job.kinds()]


@pytest.mark.parametrize(
    ("scenario", "changes", "severities"),
    [
        (a_rank_at_work, {"working_critical_s": LONG_S}, ("critical", "warning")),
        (a_straggler, {"cost.critical_ratio": 0.9}, ("critical", "warning")),
        (nobody_moves, {"standstill.no_progress_critical_s": 20.0}, ("warning", "critical")),
        (a_rank_that_imports, {"starting.init_late_critical_s": 11.0}, ("warning", "critical")),
    ],
)
def test_the_policy_says_when_a_finding_is_critical(scenario, changes, severities):
    job = scenario()
    before = job.finding().severity
    job.policy = POLICY.with_limits(changes)

    assert (before, job.finding().severity) == severities


def test_no_module_of_the_diagnosis_knows_the_policy_of_the_commands():
    """A program that embeds ddtop, or a test, may judge by other thresholds."""
    found = [
        path.name
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.alias) and node.name == "POLICY"
    ]

    assert found == []


def test_a_finding_tells_which_thresholds_its_reader_has_changed():
    job = hung()
    changed = replace(POLICY, still_limit_s=4.0)

    (ours,), (theirs,) = (diagnose(job.snapshot(), POLICY), diagnose(job.snapshot(), changed))

    line = "you changed still_limit_s to 4 (default 5)"
    assert line not in ours.evidence
    assert theirs.evidence[-1] == line


# -- A rule that compares itself how long a wait has lasted may have a limit of its own for that


CLOSED = "Connection closed by peer"


def errors_after_a_long_wait():
    """Two ranks have waited eight seconds for rank 2 when the backend reports an error."""
    job = trained(3)
    job.ranks[2].stands_at("validate", line=31)
    job.others_wait(2)
    job.passes(8)
    fails(job, 0, 1, text=CLOSED)
    job.passes(0.5)
    job.ranks[2].ends(signal=15)
    return job.passes(4)


def an_old_store():
    job = meets(2, **file_store())
    enter(job, 0, 1)
    return job.passes(10)


def launched_less():
    return launches_outside((812, 812, 811, 812))


OWN_LIMITS = [
    ("not-in-collective.wait_s", hung, "not-in-collective"),
    ("collective-stuck.wait_s", a_stuck_collective, "collective-stuck"),
    ("deadlock.wait_s", a_cycle, "wait-cycle"),
    ("io-stall.wait_s", a_dead_file_server, "io-stall"),
    ("loader-stuck.wait_s", a_dead_worker, "loader-stuck"),
    ("rendezvous.wait_s", an_old_store, "stale-store"),
    ("starting.wait_s", lambda: spawned(seconds=8), "late-to-init"),
    ("gil-held.wait_s", launched_less, "not-in-collective"),
    ("comm-error.wait_s", errors_after_a_long_wait, "comm-error of rank 2"),
]
BEFORE_THE_KIND = "not-in-collective.wait_s"
"""Who is blamed, and from when on, is decided before the kind."""


def found(job, **limits):
    """What is found under this policy; with its ranks where the kind stays and they change."""
    job.policy = POLICY.with_limits(limits)
    findings = diagnose(job.snapshot(), job.policy)
    kinds = [one.kind.value for one in findings]
    return kinds + [f"{one.kind.value} of rank {rank}" for one in findings for rank in one.ranks]


@pytest.mark.parametrize(("name", "scenario", "kind"), OWN_LIMITS)
def test_a_kind_is_named_later_than_others_if_its_own_limit_is_longer(name, scenario, kind):
    job = scenario()

    assert kind in found(job)
    assert kind not in found(job, **{name: LONG_S})


@pytest.mark.parametrize(
    ("name", "scenario", "kind"), [one for one in OWN_LIMITS if one[0] != BEFORE_THE_KIND]
)
def test_a_kind_is_named_earlier_than_others_if_its_own_limit_is_shorter(name, scenario, kind):
    job = scenario()

    assert kind not in found(job, still_limit_s=LONG_S)
    assert kind in found(job, still_limit_s=LONG_S, **{name: 5.0})


def test_no_kind_is_blamed_earlier_than_a_rank_is():
    assert found(hung(), still_limit_s=LONG_S, **{BEFORE_THE_KIND: 5.0}) == []


def test_the_longest_of_these_limits_is_known():
    """A command looks until all rules have judged a wait."""
    policy = POLICY.with_limits({"deadlock.wait_s": 8.0, "io-stall.wait_s": 1.0})

    assert (POLICY.longest_wait_s, policy.longest_wait_s) == (POLICY.still_limit_s, 8.0)
    assert POLICY.with_limits({"still_limit_s": 30.0, "deadlock.wait_s": 8.0}).longest_wait_s == 30
