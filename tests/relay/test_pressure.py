"""The load of the host and its disks, and cgroups as files."""

import os
import threading
import time

import pytest

from ddtop.patience import CALLS_MAX
from ddtop.relay import disks, host
from ddtop.relay.processes import cgroup
from ddtop.wire.records import Hello


def test_the_host_has_threads_that_run_and_the_disks_that_its_ranks_use():
    hello = Hello("j", "r", 0, 0, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/dev/shm"})
    watch = host.HostWatch()
    watch.look([hello])
    while (found := watch.look([hello])).steal_ratio is None or len(found.disks) < 2:
        time.sleep(0.005)  # the kernel counts in ticks

    assert found.runnable >= 0
    assert 0.0 <= found.steal_ratio <= 1.0
    assert {disk.path for disk in found.disks} == {os.getcwd(), "/dev/shm"}
    assert all(0 <= disk.free_bytes <= disk.total_bytes for disk in found.disks)


def test_disks_of_ranks_that_are_gone_are_left_out():
    hello = Hello("j", "r", 0, 0, 0, 1, "h", 1 << 30, 1, environment={"TMPDIR": "/nowhere"})

    assert [disk.path for disk in host.HostWatch().look([hello]).disks] == ["/dev/shm"]


def test_a_folder_that_does_not_answer_holds_nobody_up_and_is_reported_with_its_age(monkeypatch):
    go, hung = threading.Event(), threading.Event()
    real = os.statvfs

    def statvfs(path):
        if path == "/data":
            hung.set()
            assert go.wait(20.0)
        return real("/" if path == "/data" else path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    hello = Hello("j", "r", 0, 0, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/data"})
    watch = disks.DiskWatch()
    uses = watch.ask([hello], 100.0)
    assert hung.wait(20.0)
    while not (found := watch.disks(uses, time.monotonic())) or found[0].uses != "cwd":
        pass
    begun = watch._asked["/data"]
    watch.ask([hello], 105.0)
    names = [disk.path for disk in watch.disks(uses, time.monotonic())]
    unanswered = dict(watch.unanswered_paths(112.0))
    go.set()
    threads = [one for one in threading.enumerate() if one.name == "ddtop-file-call"]
    for thread in threads:
        thread.join(20.0)

    assert names == [os.getcwd(), "/dev/shm"]
    assert unanswered["/data"] == 12.0
    assert watch._asked["/data"] is begun
    assert sum(one.is_alive() for one in threads) == 0


def test_what_a_folder_said_long_ago_is_not_known_any_more():
    watch = disks.DiskWatch()
    hello = Hello("j", "r", 0, 0, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/dev/shm"})
    uses = watch.ask([hello], time.monotonic())
    while len(watch.disks(uses, time.monotonic())) < 2:
        pass

    assert [disk.path for disk in watch.disks(uses, time.monotonic() + disks.DISK_FRESH_S + 1)] == [
        "/dev/shm"
    ]


def asked(watch, hello):
    """The folders whose disks are read, by their use."""
    return {one.path: one for one in watch.ask([hello], time.monotonic()).values()}


def test_the_folder_of_a_file_that_is_open_for_writing_is_asked_for(tmp_path):
    """A checkpoint folder is neither TMPDIR nor the working folder."""
    (tmp_path / "read").mkdir()
    (tmp_path / "read" / "data").write_bytes(b"x")
    (tmp_path / "ckpt").mkdir()
    hello = Hello("j", "r", 0, 3, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/dev/shm"})
    watch = disks.DiskWatch()
    with (tmp_path / "read" / "data").open("rb"), (tmp_path / "ckpt" / "model.pt").open("wb"):
        found = asked(watch, hello)
    later = asked(watch, hello)

    assert str(tmp_path / "read") not in found
    assert found[str(tmp_path / "ckpt")].use == "files"
    assert found[str(tmp_path / "ckpt")].ranks == {3}
    assert str(tmp_path / "ckpt") in later


def test_a_folder_in_which_a_rank_has_saved_is_asked_for_though_no_file_is_open():
    """A small checkpoint is open for milliseconds, so that no look finds it."""
    hello = Hello(
        "j", "r", 0, 3, 0, 1, "h", os.getpid(), 1,
        environment={"TMPDIR": "/dev/shm"}, saves_to=("/ckpt",),
    )  # fmt: skip
    found = asked(disks.DiskWatch(), hello)

    assert (found["/ckpt"].use, found["/ckpt"].ranks) == ("files", {3})


def test_a_folder_to_which_nobody_has_written_for_long_is_asked_for_no_more(tmp_path):
    hello = Hello("j", "r", 0, 0, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/dev/shm"})
    watch = disks.DiskWatch()
    with (tmp_path / "model.pt").open("wb"):
        now = time.monotonic()
        watch.ask([hello], now)
    uses = watch.ask([hello], now + disks.DISK_WRITTEN_S + 1)

    assert str(tmp_path) not in {one.path for one in uses.values()}


def test_a_rank_in_a_mount_namespace_of_its_own_is_asked_through_its_root(monkeypatch):
    """In a container /ckpt is another file system than here."""
    monkeypatch.setattr(disks, "link", lambda pid, _: "here" if pid == "self" else "container")
    hello = Hello("j", "r", 0, 0, 0, 1, "h", os.getpid(), 1, environment={"TMPDIR": "/ckpt"})
    found = asked(disks.DiskWatch(), hello)

    assert found["/ckpt"].where == f"/proc/{os.getpid()}/root/ckpt"


def test_a_folder_is_that_of_the_ranks_that_use_it_and_a_disk_that_of_all_its_folders(tmp_path):
    """One rank's container has another TMPDIR: a full disk there is not that of the others."""
    (tmp_path / "a").mkdir()
    hellos = [
        Hello("j", "r", 0, 0, 0, 3, "h", 1 << 30, 1, environment={"TMPDIR": "/dev/shm"}),
        Hello("j", "r", 0, 1, 1, 3, "h", 1 << 30, 1, environment={"TMPDIR": str(tmp_path)}),
        Hello("j", "r", 0, 2, 2, 3, "h", 1 << 30, 1, environment={"TMPDIR": str(tmp_path / "a")}),
    ]
    watch = disks.DiskWatch()
    uses = watch.ask(hellos, time.monotonic())
    while len(found := watch.disks(uses, time.monotonic())) < 2 or len(found[1].ranks) < 2:
        pass

    assert {disk.path: disk.ranks for disk in found} == {"/dev/shm": (0,), str(tmp_path): (1, 2)}


def test_so_many_paths_that_hang_hold_a_bounded_number_of_threads(monkeypatch):
    go = threading.Event()
    monkeypatch.setattr("ddtop.relay.disks._size", lambda path: go.wait(20.0) and None)
    watch = disks.DiskWatch()
    for number in range(200):
        watch.ask(
            [Hello("j", "r", 0, 0, 0, 1, "h", 1 << 30, 1, environment={"TMPDIR": f"/{number}"})],
            1.0 + number,
        )
    alive = sum(one.name == "ddtop-file-call" for one in threading.enumerate())
    go.set()

    assert alive == len(watch._asked) == CALLS_MAX


@pytest.fixture
def group(tmp_path):
    """`group(version, files)`: a cgroup of this process, as its folder."""

    def make(version, **files):
        folder = tmp_path / "cg" / ("cpu" if version == 1 else "") / "job"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "cgroup").write_text(
            "4:cpu:/job\n4:memory:/job\n" if version == 1 else "0::/job\n"
        )
        return cgroup.cpu_stat(7, tmp_path / "cg", tmp_path)

    return make


def test_a_quota_is_read_from_both_versions_of_cgroups(group):
    stat = group(2, cpu__stat="nr_throttled 3\nthrottled_usec 1500\n", cpu__max="150000 100000\n")

    assert cgroup.quota_cores(stat) == 1.5
    assert cgroup.throttled_ns(stat) == 1_500_000


def test_version_one_counts_in_nanoseconds_and_has_minus_one_for_no_limit(group):
    stat = group(
        1, cpu__stat="throttled_time 77\n", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n"
    )

    assert cgroup.quota_cores(stat) is None
    assert cgroup.throttled_ns(stat) == 77


def test_memory_that_the_kernel_can_drop_is_not_used(tmp_path):
    """Reading a file once fills the page cache up to any limit."""
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("anon 90\ninactive_file 900\n")

    assert cgroup.memory(tmp_path) == (1000, 90)


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), "garbage"])
def test_without_a_limit_there_is_no_pressure(tmp_path, limit):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("990\n")

    assert cgroup.memory(tmp_path) == (None, None)
