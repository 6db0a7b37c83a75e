"""What the model keeps of GPUs from report to report, and the devices that it makes of it."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.follow.tape import Tape
from ddtop.model.facts import Own
from ddtop.model.gpu_memory import JobGpus
from ddtop.model.gpus import devices_of, take
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.wire import frames
from ddtop.wire.records import (
    CudaState,
    Gpu,
    GpuProcess,
    GpuWatch,
    GroupProgress,
    HostClock,
    HostState,
    RankState,
)
from tests.gpu_jobs import GIB, GpuJob, card
from tests.jobs import SECOND, FakeJob, unix_ns

START = 1_700_000_000 * SECOND


def reported(steps=None, calls=0, refused=0):
    """The last report of the only rank on a GPU. It shows how far the rank is."""
    groups, cuda = (GroupProgress("0", calls, calls),), CudaState(0, retries=refused)
    return (RankState("running", iteration=steps, groups=groups, cuda=cuda),)


def looked_at(gpus, host, owns, second):
    """The host's devices after this report."""
    take(gpus, host, owns, START + second * SECOND, POLICY, {0: reported(second)[0]}, host.host)
    return devices_of(gpus, POLICY)[host.host]


REPORTED = st.fixed_dictionaries(
    {
        "step": st.integers(0, 12),
        "cards": st.lists(
            st.fixed_dictionaries(
                {
                    "util_ratio": st.none() | st.sampled_from((0.2, 0.9, 1.0)),
                    "power_watts": st.none() | st.sampled_from((90.0, 300.0, 600.0)),
                    "throttle": st.sampled_from((None, (), ("hw_thermal",))),
                    "ecc_uncorrected": st.none() | st.integers(0, 3),
                    "lost": st.booleans(),
                    "processes": st.none()
                    | st.lists(st.sampled_from((0, 1, 77, 78)), unique=True, max_size=3).map(
                        lambda pids: tuple(
                            GpuProcess(pid, GIB, rank=pid if pid < 2 else None) for pid in pids
                        )
                    ),
                }
            ),
            max_size=2,
        ),
        "owned": st.sampled_from(((), (0,), (0, 1))),
        "age_ms": st.sampled_from((300, 5000)),
        "node": st.sampled_from(("node0", "node1")),
        "what": st.sampled_from(("report", "report", "report", "look", "move", "copy")),
    }
)


@given(st.lists(REPORTED, max_size=40))
def test_devices_made_on_demand_are_those_that_each_report_would_have_made(reports):
    """Devices that are made only at the end equal those that are made after each step."""
    lazy, eager, at = JobGpus(), JobGpus(), START
    for one in reports:
        at += one["step"] * SECOND
        gpus = tuple(
            Gpu(number, f"GPU-{number}", **values) for number, values in enumerate(one["cards"])
        )
        host = HostState(one["node"], 4, 0.5, gpus=gpus, gpu_watch=GpuWatch(one["age_ms"]))
        owns = {rank: Own(gpus[rank % len(gpus)], "torch") for rank in one["owned"]} if gpus else {}
        for remembered in (lazy, eager):
            if one["what"] == "report":
                take(
                    remembered,
                    host,
                    owns,
                    at,
                    POLICY,
                    {0: reported(one["step"], at)[0]},
                    one["node"],
                    (0, 1),
                )
            elif one["what"] == "move":
                remembered.move(one["node"], SECOND)
        if one["what"] == "look":
            devices_of(lazy, POLICY)
        elif one["what"] == "copy":
            lazy = copy.copy(lazy)
        devices_of(eager, POLICY)

    fresh = copy.copy(eager)
    fresh.devices.clear()
    assert devices_of(lazy, POLICY) == devices_of(eager, POLICY) == devices_of(fresh, POLICY)


def test_a_copy_and_its_original_change_independently():
    gpu = card(0, 0, throttle=("hw_thermal",), ecc_uncorrected=1)
    host, owns, gpus = HostState("node0", 4, 0.5, gpus=(gpu,)), {0: Own(gpu, "torch")}, JobGpus()
    for second in range(25):
        looked_at(gpus, host, owns, second)
    twin = copy.copy(gpus)
    then = looked_at(twin, host, owns, 25)
    for second in range(25, 60):
        cooler = HostState("node0", 4, 0.5, gpus=(card(0, 0, ecc_uncorrected=9),))
        now = looked_at(gpus, cooler, owns, second)
    again = looked_at(twin, host, owns, 25)

    assert (then[0].throttled_since_unix_ns, again[0].throttled_since_unix_ns) == (START, START)
    assert (now[0].throttled_since_unix_ns, now[0].ecc_new, again[0].ecc_new) == (None, 8, 0)
    assert again[0].spans == then[0].spans != now[0].spans


def test_a_look_back_finds_the_gpus_as_they_were():
    """The copy from which the past begins must not contain what came later."""
    job = GpuJob(world_size=2)
    job.change(1, throttle=("hw_thermal",))
    job.trains(30)
    job.change(1, throttle=(), power_watts=690.0)
    job.trains(40)
    tape, model = Tape(), Job(job.name, POLICY)
    for data in job.frames:
        envelope = frames.open_envelope(data)
        model.apply(envelope, frames.open_record(envelope))
        tape.add(envelope, data, model)

    tape.at(unix_ns(job.now))
    past, _ = tape.at(unix_ns(25.0))

    live = FakeJob.model(_until(job, 25.0)).snapshot(unix_ns(25.0))
    assert past.devices == live.devices
    assert past.devices[1].throttled_since_unix_ns is not None
    assert past.devices[1].power_peak_watts == pytest.approx(600.0)


def _until(job, second):
    job.records = [one for one in job.records if one[0].unix_ns <= unix_ns(second)]
    return job


def test_times_of_gpus_move_with_the_clock_of_their_host():
    """The start of throttling must not jump back with the next report of a leaf."""
    job = GpuJob(world_size=2)
    job.change(1, throttle=("hw_thermal",))
    job.trains(5)
    job.host_says["clock"] = HostClock(3 * SECOND, 1_000_000)

    assert job.trains(5).snapshot().devices[1].throttled_since_unix_ns == unix_ns(1.0) + 3 * SECOND


def test_numbers_that_the_relay_repeats_do_not_count():
    job = GpuJob(world_size=1).trains(25)
    job.change(0, power_watts=100.0)
    job.host_says["gpu_watch"] = GpuWatch(5000)

    assert job.trains(20).snapshot().devices[0].power_mean_watts == pytest.approx(600.0)


def test_gpus_without_a_rank_are_not_followed():
    own, other = GpuJob(card(0, 0), card(1), world_size=1).trains(25).snapshot().devices

    assert (own.util_mean_ratio, len(own.spans)) == (pytest.approx(0.9), 2)
    assert (other.util_mean_ratio, other.spans) == (None, ())


def test_ranks_of_another_launcher_on_the_host_are_no_strangers():
    """Each launcher has its own relay, which lists the ranks of the other one as strangers."""
    job = FakeJob(2)
    lists = [
        (
            GpuProcess(4800, 30 * GIB, rank=0),
            GpuProcess(4801, 30 * GIB, user="ada"),
            GpuProcess(77, 9 * GIB),
        ),
        (
            GpuProcess(4800, 30 * GIB, user="ada"),
            GpuProcess(4801, 30 * GIB, rank=1),
            GpuProcess(77, 9 * GIB),
        ),
    ]
    job.host_of = lambda rank: f"node0.{rank.number}"
    job.ranks = [type(rank)(job, rank.number, rank.pid) for rank in job.ranks]
    job.records.clear()
    for rank in job.ranks:
        job.say(rank.hello(), rank, sender=f"node0.{rank.number}")
    for second in range(20):
        job.now = second + 1.0
        for rank, listed in zip(job.ranks, lists, strict=True):
            gpu = card(0, processes=listed)
            host = HostState(
                "node0", 4, 0.5, processes=(rank.process(),), gpus=(gpu,), gpu_watch=GpuWatch(300)
            )
            job.say(rank.state(), rank, sender=f"node0.{rank.number}")
            job.say(host, sender=f"node0.{rank.number}")

    (device,) = job.snapshot().devices
    assert (device.ranks, [one.pid for one in device.foreign]) == ((0, 1), [77])
    assert (device.ours_bytes, device.foreign_bytes) == (60 * GIB, 9 * GIB)
    assert {one.pid: one.rank for one in device.gpu.processes} == {4800: 0, 4801: 1, 77: None}


def test_a_gpu_that_is_busy_at_a_third_of_its_power_waits_if_no_stranger_uses_it():
    job = GpuJob(world_size=1)
    job.ranks[0].told["backend"] = "nccl"
    job.greet(job.ranks[0])
    before = job.trains(25).snapshot().ranks[0].gpu.waits
    job.change(0, util_ratio=1.0, power_watts=190.0)
    job.ranks[0].waits_in()
    waits = job.passes(25).snapshot().ranks[0].gpu.waits
    job.change(0, processes=(GpuProcess(4800, 20 * GIB, rank=0), GpuProcess(5, 20 * GIB)))

    assert (before, waits, job.passes(2).snapshot().ranks[0].gpu.waits) == (False, True, None)


def test_without_an_open_nccl_collective_low_power_is_the_programs_kernel():
    job = GpuJob(world_size=1)
    job.ranks[0].told["backend"] = "nccl"
    job.greet(job.ranks[0])
    job.trains(25)
    job.change(0, util_ratio=1.0, power_watts=190.0)

    assert job.trains(25).snapshot().ranks[0].gpu.waits is False


def test_a_rank_whose_gpu_is_a_guess_has_no_gpu_wait():
    job = GpuJob(card(0), world_size=1)
    job.ranks[0].told["backend"] = "nccl"
    job.greet(job.ranks[0])
    guessed = job.trains(25).snapshot().ranks[0]
    job.ranks[0].says["cuda"] = CudaState(0, "0")
    known = job.trains(25).snapshot().ranks[0]

    assert (guessed.gpu.own.certain, guessed.gpu.waits) == (False, None)
    assert (known.gpu.own.certain, known.gpu.waits) == (True, False)
