"""GPUs of simulated hosts: what their driver would report at a moment, and what the real rules find
in it.
"""

from __future__ import annotations

import pytest

from ddtop.sim.incidents import DIVIDED, KNOWN_S, SCENARIOS, WHOLE, Incident, Scenario
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import Gpu, HostState, RankState
from tests.sim.watching import BEGAN, Watcher, at, simulated

CULPRIT = 5


def told(job: SimulatedJob, seconds: float) -> HostState:
    """The last report of the first host's relay before that moment."""
    for data in job.frames(at(seconds - 1.0), at(seconds)):
        record = frames.open_record(frames.open_envelope(data))
        if isinstance(record, HostState):
            return record
    raise AssertionError("no report of a host")


def card_of(job: SimulatedJob, seconds: float, rank: int = CULPRIT) -> Gpu:
    return told(job, seconds).gpus[rank]


def test_a_job_whose_script_asks_for_no_gpus_has_none_and_no_driver() -> None:
    job = simulated(8, Incident("loader-stuck", 5.0))
    states = [
        record
        for data in job.frames(at(8.0), at(9.0))
        if isinstance(record := frames.open_record(frames.open_envelope(data)), RankState)
    ]

    assert (told(job, 9.0).gpus, told(job, 9.0).gpu_watch) == ((), None)
    assert {state.cuda for state in states} == {None}


@pytest.mark.parametrize("world", [8, 64])
@pytest.mark.parametrize("kind", ["gpu-throttled", "gpu-busy", "gpu-memory-low", "gpu-error"])
def test_what_is_wrong_with_a_gpu_is_named_and_its_rank(kind: str, world: int) -> None:
    watcher = Watcher(simulated(world, Incident(kind, 3.0, rank=CULPRIT)))

    _, verdict = watcher.until(18.0)

    assert [(one.kind, one.ranks) for one in verdict.findings] == [(kind, (CULPRIT,))]


def test_who_only_waits_is_reported_from_who_makes_them_wait() -> None:
    """Both are 100 % busy. One draws full power at its clock, the others spin."""
    watcher = Watcher(simulated(8, Incident("gpu-throttled", KNOWN_S, rank=CULPRIT)))

    before, _ = watcher.until(KNOWN_S)
    after, _ = watcher.until(KNOWN_S + 45.0)

    assert {rank.gpu.waits for rank in before.ranks} == {False}
    assert {rank.gpu.own.gpu.util_ratio for rank in after.ranks if rank.gpu.own} == {1.0}
    assert [rank.rank for rank in after.ranks if not rank.gpu.waits] == [CULPRIT]


def test_in_a_hang_all_gpus_wait_but_that_of_the_rank_that_is_missing() -> None:
    watcher = Watcher(
        simulated(
            8, Incident("gpu-busy", 1.0, 2.0), Incident("loader-stuck", KNOWN_S, rank=CULPRIT)
        )
    )

    snapshot, verdict = watcher.until(KNOWN_S + 20.0)

    assert [one.ranks for one in verdict.findings] == [(CULPRIT,)]
    assert [rank.rank for rank in snapshot.ranks if not rank.gpu.waits] == [CULPRIT]


def test_a_driver_that_is_silent_says_what_it_said_last_and_that_grows_old() -> None:
    job = simulated(8, Incident("driver-silent", 10.0, 60.0, rank=CULPRIT))
    early, late, after = (told(job, seconds) for seconds in (12.0, 42.0, 62.0))

    assert early.gpus == late.gpus != after.gpus
    assert early.gpu_watch is not None
    assert late.gpu_watch is not None
    assert after.gpu_watch is not None
    assert (late.gpu_watch.age_ms or 0) - (early.gpu_watch.age_ms or 0) == 30_000
    assert (after.gpu_watch.age_ms or 0) < 1000
    _, verdict = Watcher(job, from_s=5.0).until(30.0)
    assert verdict.findings == ()


def test_the_heat_of_a_gpu_follows_from_the_time_alone() -> None:
    job, again = (simulated(8, Incident("gpu-throttled", 10.0, rank=CULPRIT)) for _ in range(2))

    warm, hot = card_of(job, 10.0), card_of(job, 40.0)

    assert (warm.throttle, hot.throttle) == ((), ("hw_slowdown", "hw_thermal"))
    assert (warm.celsius or 0) < 70 < (hot.celsius or 0)
    assert card_of(again, 40.0) == hot


def test_on_divided_gpus_each_rank_has_an_instance() -> None:
    job = SimulatedJob(8, 0, Scenario(gpus=DIVIDED), began_unix_ns=BEGAN)

    snapshot, verdict = Watcher(job).until(5.0)

    assert len(snapshot.devices) == 24
    assert all(
        rank.gpu.own is not None and rank.gpu.own.gpu.parent is not None for rank in snapshot.ranks
    )
    assert verdict.findings == ()


def test_a_host_whose_relay_finds_no_driver_reports_no_gpu() -> None:
    job = SimulatedJob(16, 0, Scenario(gpus=WHOLE, bare_hosts=1), began_unix_ns=BEGAN)

    snapshot, _ = Watcher(job).until(5.0)

    assert {device.host for device in snapshot.devices} == {job.fleet.host_name(0)}
    assert {rank.rank for rank in snapshot.ranks if rank.gpu.own is None} == set(range(8, 16))


def test_every_scenario_of_gpus_has_gpus() -> None:
    named = [name for name in SCENARIOS if name.startswith(("gpu-", "driver-", "no-driver"))]

    assert named
    assert all(SCENARIOS[name].has_gpus for name in named)
