"""What the host's load does to a process: this test's own, and cgroups as files."""

from __future__ import annotations

import os
import resource
import time

import pytest

from ddtop.relay import cgroup, load
from ddtop.relay.processes import stat_fields
from ddtop.wire.records import Hello


def look(watch=None):
    return load.look_at_process(watch or load.ProcessWatch(), os.getpid(), stat_fields(os.getpid()))


def test_a_process_that_computes_has_run_and_its_limits_are_its_own():
    watch = load.ProcessWatch()
    before = look(watch)
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    after = look(watch)

    assert after.ran_ns - before.ran_ns >= 15_000_000
    assert after.run_delay_ns >= before.run_delay_ns
    assert after.cpus_count == len(os.sched_getaffinity(0))
    assert after.files_limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < after.files <= len(os.listdir("/proc/self/fd")) + 1


def test_of_a_process_that_is_gone_nothing_is_measured():
    found = load.look_at_process(load.ProcessWatch(), 1 << 30, ["0"] * 30)

    assert (found.ran_ns, found.cpus, found.files) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "count"), [("0", 1), ("0-3", 4), ("0-3,8,10-11", 7), ("", None), ("x", None), (None, None)]
)
def test_cpus_are_counted_as_the_kernel_lists_them(text, count):
    assert load._count(text) == count


def test_the_host_has_threads_that_run_and_the_disks_that_its_ranks_use():
    hello = Hello("j", "r", 0, 0, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/dev/shm"})
    watch = load.HostWatch()
    watch.look([hello])
    while (found := watch.look([hello])).steal_ratio is None:
        time.sleep(0.005)  # the kernel counts in ticks

    assert found.runnable >= 0
    assert 0.0 <= found.steal_ratio <= 1.0
    assert {disk.path for disk in found.disks} == {os.getcwd(), "/dev/shm"}
    assert all(0 <= disk.free_bytes <= disk.total_bytes for disk in found.disks)


def test_disks_of_ranks_that_are_gone_are_left_out():
    hello = Hello("j", "r", 0, 0, 0, 1, "h", 1 << 30, 1, environment={"TMPDIR": "/nowhere"})

    assert [disk.path for disk in load.HostWatch().look([hello]).disks] == ["/dev/shm"]


@pytest.fixture
def group(tmp_path):
    """`group(version, files)`: a cgroup of this process, as its folder."""

    def make(version, **files):
        folder = tmp_path / "cg" / ("cpu" if version == 1 else "") / "job"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "cgroup").write_text("4:cpu:/job\n4:memory:/job\n" if version == 1 else "0::/job\n")
        return cgroup.cpu_stat(7, tmp_path / "cg", tmp_path)

    return make


def test_a_quota_is_read_from_both_versions_of_cgroups(group):
    stat = group(2, cpu__stat="nr_throttled 3\nthrottled_usec 1500\n", cpu__max="150000 100000\n")

    assert cgroup.quota_cores(stat) == 1.5
    assert cgroup.throttled_ns(stat) == 1_500_000


def test_version_one_counts_in_nanoseconds_and_has_minus_one_for_no_limit(group):
    stat = group(1, cpu__stat="throttled_time 77\n", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")

    assert cgroup.quota_cores(stat) is None
    assert cgroup.throttled_ns(stat) == 77


def test_memory_that_the_kernel_can_drop_is_not_used(tmp_path):
    """A file that was read once fills any limit."""
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("anon 90\ninactive_file 900\n")

    assert cgroup.memory(tmp_path) == (1000, 90)


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), "garbage"])
def test_without_a_limit_there_is_no_pressure(tmp_path, limit):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("990\n")

    assert cgroup.memory(tmp_path) == (None, None)
