"""Hosts and ranks that run out of something: CPUs, memory, descriptors, disk."""

import pytest

from ddtop.wire.records import Disk, HostLoad, Limit, ProcessLoad
from tests.diagnosis.rules.crowded import GIB, loaded
from tests.jobs import FakeJob


def said(job):
    return [(kind, ranks) for _, kind, ranks in job.kinds()]


# -- cpu-oversubscribed


@pytest.mark.parametrize(
    ("threads", "advice"),
    [
        ("1", "use fewer DataLoader workers"),
        ("4", "set OMP_NUM_THREADS to cores / ranks (1)"),
        (None, "set OMP_NUM_THREADS"),
    ],
)
def test_who_has_one_openmp_thread_a_rank_already_is_not_told_to_have_one(threads, advice):
    job = FakeJob(4)
    for rank in job.ranks:
        rank.told["environment"] = {"OMP_NUM_THREADS": threads} if threads else {}
        job.greet(rank)
    loaded(job, 40, run_delay_ns=0.55)

    assert job.finding().advice.startswith(advice)


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


@pytest.mark.parametrize(("cores", "told"), [(0.5, []), (0.9, ["cpu-oversubscribed"])])
def test_ranks_that_would_fit_by_themselves_wait_for_somebody_else(cores, told):
    """With one thread more on each rank the shortage would be their own."""
    job = FakeJob(4)
    for rank in job.ranks:
        rank.cores = cores
    loaded(job, 40, run_delay_ns=0.55)

    assert [kind for _, kind, _ in job.ever()] == told


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
    ("says", "words"),
    [
        (
            {"shm_total_bytes": 64 << 20, "shm_free_bytes": 1 << 20},
            "/dev/shm of node0 has 1.0 MiB of 64.0 MiB left",
        ),
        (
            {"shm_total_bytes": 64 << 20, "shm_free_bytes": 4 << 20},
            "/dev/shm of node0 has 4.0 MiB of 64.0 MiB left",
        ),
        (
            {"load": HostLoad(memory_stall_ratio=0.4)},
            "node0 waits 40% of the time for memory (reclaim or swap)",
        ),
    ],
)
def test_what_else_of_a_host_is_short(says, words):
    job = FakeJob(2)
    job.host_says = says

    assert job.trains(10).finding().summary == words


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            Limit("RLIMIT_AS", 96 * GIB // 10, 10 * GIB),
            "uses 9.6 GiB of at most 10.0 GiB of address space (RLIMIT_AS)",
        ),
        (
            Limit("RLIMIT_DATA", 96 * GIB // 10, 10 * GIB),
            "uses 9.6 GiB of at most 10.0 GiB of data (RLIMIT_DATA)",
        ),
    ],
)
def test_a_rank_near_a_limit_of_its_own_is_named_alone(limit, words):
    """ulimit -v, or h_vmem of a batch system: at 96 % there was no finding."""
    job = FakeJob(3)
    job.ranks[2].seen_outside = {"load": ProcessLoad(limits=(limit,))}
    job.trains(10)

    assert (job.finding().kind, job.finding().ranks) == ("memory-pressure", (2,))
    assert job.finding().summary == f"rank 2 {words}"


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


# -- disk-full


@pytest.mark.parametrize(("free", "kinds"), [(50_000, ["disk-full"]), (300_000, [])])
def test_few_inodes_are_few_of_a_large_disk_too(free, kinds):
    job = FakeJob(2)
    disk = Disk("/tmp", "TMPDIR", 100 * GIB, 50 * GIB, 10_000_000, free)
    job.host_says = {"load": HostLoad(disks=(disk,))}

    assert [kind for kind, _ in said(job.trains(3))] == kinds


@pytest.mark.parametrize(("steal", "told"), [(0.1, True), (0.01, False)])
def test_what_the_hypervisor_takes_is_told_beside_a_crowd(steal, told):
    job = FakeJob(4)
    job.host_says = {"load": HostLoad(runnable=9, steal_ratio=steal)}
    loaded(job, 40, run_delay_ns=0.55)

    assert any("the hypervisor gives" in line for line in job.finding().evidence) == told
