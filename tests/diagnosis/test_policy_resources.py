"""Findings about CPUs, memory, descriptors and disks follow the policy that is passed in."""

import pytest

from ddtop.wire.records import Disk, HostLoad, Limit, ProcessLoad
from tests.diagnosis.rules.crowded import loaded
from tests.jobs import FakeJob
from tests.second_policy import Case, kinds, text

GIB = 1 << 30
CROWDED, SHORT = ["cpu-oversubscribed"], ["memory-pressure"]


def crowded(ranks=4, cores=0.9, run_delay_ns=0.55, **load):
    """Each rank uses this many cores, and counters of the host grow at these rates."""
    job = FakeJob(ranks)
    job.host_says = {"load": HostLoad(runnable=9, steal_ratio=0.1)}
    for rank in job.ranks:
        rank.cores = cores
    loaded(job, 40, run_delay_ns=run_delay_ns, **load)
    return job


def too_many_threads():
    return crowded(2, 1.0, 0.3, threads_delay_ns=8.0, cpus="0-1", cpus_count=2)


def too_many_threads_beside_others():
    """Other processes use three of the four CPUs."""
    return crowded(2, 0.5, 0.6, threads_delay_ns=7.0)


def held_by_a_quota():
    return crowded(run_delay_ns=0.0, throttled_ns=0.4, quota_cores=2.0)


def held_by_a_quota_a_little(ranks=4, **load):
    return crowded(ranks, throttled_ns=0.1, quota_cores=2.0, **load)


def held_by_a_quota_beside_others():
    return held_by_a_quota_a_little(2, cores=0.5, run_delay_ns=0.6, threads_delay_ns=7.0)


def limited(**load):
    """A job in which one rank is near a limit of its own."""

    def make():
        job = FakeJob(2)
        job.ranks[1].seen_outside = {"load": ProcessLoad(**load)}
        job.trains(3)
        return job

    return make


def few_inodes():
    """50,000 of ten million inodes are free."""
    job = FakeJob(2)
    disk = Disk("/tmp", "TMPDIR", 100 * GIB, 50 * GIB, 10_000_000, 50_000)
    job.host_says = {"load": HostLoad(disks=(disk,))}
    return job.trains(3)


def a_small_shm():
    """6 % of the 64 MiB that a container gets are left."""
    job = FakeJob(2)
    job.host_says = {"shm_total_bytes": 64 << 20, "shm_free_bytes": 4 << 20}
    return job.trains(3)


def a_host_that_waits_for_memory():
    """Threads of it wait 30 % of the time."""
    job = FakeJob(2)
    job.host_says = {"load": HostLoad(memory_stall_ratio=0.3)}
    return job.trains(3)


ADDRESSES = limited(limits=(Limit("RLIMIT_AS", 96 * GIB // 10, 10 * GIB),))
THREADS = limited(limits=(Limit("pids.max", 930, 1000),))
FILES = limited(files=1001, files_limit=1024)
OTHERS, QUOTA, TAKEN = "and other processes run there", "than the CPU quota", "the hypervisor gives"

CASES = [
    Case("ranks", "cpu-oversubscribed.own_ratio", 0.95, kinds(crowded), CROWDED, []),
    Case("ranks", "cpu-oversubscribed.room_cores", 0.5, kinds(crowded), CROWDED, []),
    Case("ranks", "oversubscribed_window_s", 60.0, kinds(crowded), CROWDED, []),
    Case(
        "threads", "cpu-oversubscribed.threads_factor", 10.0, kinds(too_many_threads), CROWDED, [],
    ),
    Case(
        "threads", "cpu-oversubscribed.threads_own_ratio", 0.3,
        kinds(too_many_threads_beside_others), CROWDED, [],
    ),
    Case("others", "foreign_cores", 3.5, text(too_many_threads_beside_others, OTHERS), True, False),
    Case("quota", "resources.throttled_ratio", 0.5, kinds(held_by_a_quota), CROWDED, []),
    Case("quota", "throttled_told_ratio", 0.2, text(held_by_a_quota_a_little, QUOTA), True, False),
    Case(
        "others", "throttled_told_ratio", 0.2,
        text(held_by_a_quota_beside_others, OTHERS), False, True,
    ),
    Case("hypervisor", "throttled_told_ratio", 0.2, text(crowded, TAKEN), True, False),
    Case(
        "swap", "resources.memory_stall_ratio", 0.5, kinds(a_host_that_waits_for_memory), SHORT, [],
    ),
    Case("addresses", "space.address_low_ratio", 0.03, kinds(ADDRESSES), SHORT, []),
    Case("shm", "resources.shm_low_ratio", 0.05, kinds(a_small_shm), SHORT, []),
    Case("shm", "resources.shm_low_bytes", 2.0 * 2**20, kinds(a_small_shm), SHORT, []),
    Case("threads", "resources.pids_full_ratio", 0.95, kinds(THREADS), SHORT, []),
    Case("files", "resources.files_full_ratio", 0.99, kinds(FILES), SHORT, []),
    Case("disk", "resources.disk_full_inodes", 20_000, kinds(few_inodes), ["disk-full"], []),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_is_nearly_used_up(case):
    assert case.said_by_both() == (case.ours, case.theirs)
