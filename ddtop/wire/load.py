"""How loaded a host is, and what its load does to one process.

Parts of the relay's records; all of it comes from /proc. `FailedSave` is part of a rank's own.
"""

from __future__ import annotations

import msgspec


class Disk(msgspec.Struct, frozen=True, array_like=True):
    """A file system that the job uses.

    `path`: where the job uses it, as its ranks see it. `uses`: what for ("cwd", "TMPDIR", "shm",
    "files": a file there was open for writing within the last minutes). `free_bytes`: what a
    process that is not root may still write. A read-only file system is left out. `ranks`: who
    uses it, empty where that is not known.
    """

    path: str
    uses: str
    total_bytes: int
    free_bytes: int
    inodes: int = 0
    inodes_free: int = 0
    ranks: tuple[int, ...] = ()


class HostLoad(msgspec.Struct, frozen=True, array_like=True):
    """One host. `runnable`: threads that run or want to (procs_running of /proc/stat), the relay's
    own left out.

    `steal_ratio`: share of the CPUs' time that the hypervisor gave to others, since the last look.
    `*_stall_ratio`: share of the last ten seconds in which some thread waited for it
    (/proc/pressure/*: some avg10), None on kernels without. `swapped_pages` only grows: pages in
    and out. `unanswered`: paths of the job, each with for how long (s) a call on its file system
    has not returned; nothing is known of their disks.
    """

    runnable: int | None = None
    steal_ratio: float | None = None
    cpu_stall_ratio: float | None = None
    memory_stall_ratio: float | None = None
    io_stall_ratio: float | None = None
    swapped_pages: int | None = None
    disks: tuple[Disk, ...] = ()
    unanswered: tuple[tuple[str, float], ...] = ()


class Limit(msgspec.Struct, frozen=True, array_like=True):
    """One limit of a process, or of its group, and how much of it is used.

    `name`: "RLIMIT_AS" (used: VmSize) and "RLIMIT_DATA" (VmData), in bytes; "pids.max" of a cgroup
    (pids.current), in threads. Without a limit there is no such struct.
    """

    name: str
    used: int
    limit: int


class ProcessLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank's process. `run_delay_ns` and `ran_ns` of the main thread only grow: ready but
    without a CPU, and running (/proc/PID/task/PID/schedstat). `major_faults` only grows: pages that
    had to come from a disk.

    `cpus`: those that it may use, as the kernel writes them ("0-3"), `cpus_count` how many.
    `quota_cores`: its cgroup's limit, None without one; `throttled_ns` only grows.
    `memory_limit_bytes`, `memory_used_bytes` are of its cgroup, what the kernel could drop at once
    left out. `files`, `files_limit`: open descriptors, and how many it may have. `threads_delay_ns`
    only grows: the time in which its other threads were ready but without a CPU, added up
    (/proc/PID/task/*/schedstat, read every few seconds; of a thread that has ended what was read
    last). `limits`: the others that it has.
    """

    run_delay_ns: int | None = None
    ran_ns: int | None = None
    major_faults: int | None = None
    cpus: str | None = None
    cpus_count: int | None = None
    quota_cores: float | None = None
    throttled_ns: int | None = None
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    files: int | None = None
    files_limit: int | None = None
    threads_delay_ns: int | None = None
    limits: tuple[Limit, ...] = ()


class FailedSave(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A save that raised an exception. `call`: "torch.save". `path`: absolute, as its rank sees it.

    `error`: type and text, one line. `free_bytes`: what was left on that file system afterwards for
    a process that is not root, None where the folder is not there.
    """

    call: str
    path: str
    error: str
    unix_ns: int
    free_bytes: int | None = None
    total_bytes: int | None = None
