"""Hosts and ranks that run out of something: CPUs, memory, descriptors, disk."""

import pytest

from ddtop.wire.records import Disk, HostLoad, Limit, ProcessLoad
from tests.diagnosis.rules.crowded import GIB, loaded
from tests.jobs import FakeJob

# -- cpu-oversubscribed


@pytest.mark.parametrize(
    ("ranks", "cores", "load"),
    [
        pytest.param(
            4, 1.0, {"run_delay_ns": 0.2, "throttled_ns": 0.02}, id="busy now and then"
        ),
        pytest.param(4, 0.1, {"run_delay_ns": 0.6}, id="a host that others fill"),
        pytest.param(
            2, 0.3, {"run_delay_ns": 0.8, "threads_delay_ns": 1.0},
            id="a few threads beside a neighbour that has all CPUs",
        ),
        # Three ranks among sixty processes: even gloo's threads wait for a CPU.
        pytest.param(
            3, 0.08, {"run_delay_ns": 0.93, "threads_delay_ns": 2.5},
            id="threads that wake for moments where others have nearly all CPUs",
        ),
        # Light ranks of MPI: each wake-up waits for other processes.
        pytest.param(
            24, 0.005,
            {"run_delay_ns": 0.4, "threads_delay_ns": 0.2, "cpus": "0-1", "cpus_count": 2},
            id="many ranks that nearly always sleep",
        ),
        # Processes at the lowest priority read a cache and spin in the background.
        pytest.param(
            2, 1.0, {"run_delay_ns": 0.05, "threads_delay_ns": 8.0},
            id="threads that wait while the main thread hardly does",
        ),
    ],
)  # fmt: skip
def test_what_others_cause_or_costs_little_is_no_crowd(ranks, cores, load):
    job = FakeJob(ranks)
    for rank in job.ranks:
        rank.cores = cores
    loaded(job, 40, **load)

    assert job.ever() == []


def test_a_crowd_that_computes_in_turns_is_named_without_a_break():
    """The ranks use 0.95 cores on average, 0.6 in some seconds and 1.3 in others."""
    job = FakeJob(4)
    loaded(job, 40, run_delay_ns=0.45)
    seen = []
    for turn in range(40):
        for rank in job.ranks:
            rank.cores = 0.6 if turn % 8 < 4 else 1.3
        loaded(job, 1, run_delay_ns=0.45)
        seen.append([kind for _, kind, _ in job.kinds()])

    assert seen == [["cpu-oversubscribed"]] * 40


# -- memory-pressure


@pytest.mark.parametrize(
    "limit",
    [
        Limit("RLIMIT_AS", 9 * GIB, 10 * GIB),
        Limit("RLIMIT_AS", 960 * GIB, 1000 * GIB),
        Limit("RLIMIT_DATA", 0, GIB),
        Limit("pids.max", 800, 1000),
    ],
)
def test_a_limit_that_leaves_room_is_no_news(limit):
    job = FakeJob(2)
    job.ranks[1].seen_outside = {"load": ProcessLoad(limits=(limit,))}

    assert job.trains(10).ever() == []


@pytest.mark.parametrize(
    "says",
    [
        {"memory_total_bytes": 1024 * GIB, "memory_available_bytes": 30 * GIB},
        {"memory_total_bytes": 16 * GIB, "memory_available_bytes": 2 * GIB},
        {"shm_total_bytes": 64 << 20, "shm_free_bytes": 40 << 20},
        {"shm_total_bytes": 64 << 20, "shm_free_bytes": 8 << 20},
        {"shm_total_bytes": 8 << 20, "shm_free_bytes": 7 << 20},
        {"shm_total_bytes": GIB, "shm_free_bytes": 80 << 20},
        {"shm_total_bytes": 0, "shm_free_bytes": 0},
        {"load": HostLoad(memory_stall_ratio=0.05)},
        {"load": HostLoad(disks=(Disk("/", "cwd", 1000 * GIB, 10 * GIB),))},
        {"load": HostLoad(disks=(Disk("/tmp", "TMPDIR", GIB, GIB // 2, 0, 0),))},
        {"load": HostLoad(disks=(Disk("/dev/shm", "shm", GIB, 0),))},
    ],
)
def test_what_is_low_and_yet_enough_is_no_news(says):
    job = FakeJob(2)
    job.host_says = says

    assert job.trains(10).ever() == []
