"""`memory-pressure`, `disk-full`, `oversubscribed`: what is nearly used up, or shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    MOVES,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
    job_has_ended,
)
from ddtop.diagnosis.shortage import (
    ADDRESSES,
    at_most,
    delay_of,
    is_full,
    is_short_of,
    limits_of,
    threads_delay_of,
    used_cores_of,
)
from ddtop.diagnosis.straggler_cause import LIMIT, cause_of
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.wire.records import Disk, HostState, Limit

# -- `memory-pressure` and `disk-full`: resources of a rank or its host that are nearly used up


@dataclass(frozen=True)
class ResourceLimits(Limits, of="resources"):
    """`memory-pressure` and `disk-full`, and the quota of a host that is `cpu-oversubscribed`."""

    throttled_ratio: float = 0.2
    """Share of the time in which their cgroup's CPU quota holds a host's ranks."""
    memory_low_ratio: float = 0.04
    """Share of the memory (host, cgroup limit, /dev/shm) that is left: the OOM killer is one
    allocation away."""
    shm_low_ratio: float = 0.1
    """Share of a small /dev/shm that is left: 64 MiB, what a container gets by default, hold a few
    batches."""
    shm_low_bytes: float = 16 * 2.0**20
    """... and no more than this: the batches that workers have ready."""
    memory_stall_ratio: float = 0.2
    """Share of the time in which some thread of the host waits for memory (reclaim, swap)."""
    pids_full_ratio: float = 0.9
    """Share of the threads that a cgroup may have. DataLoader workers have dozens."""
    files_full_ratio: float = 0.9
    """Share of a rank's descriptors. DataLoader workers hand tensors over by dozens of them."""
    disk_full_inodes: int = 100_000
    """A disk has no more inodes than this left, beside `disk_full_ratio`: caches of small files use
    this many in an hour."""


HOST, STALL, SHM, CGROUP, FILES, THREADS = "host", "stall", "shm", "cgroup", "files", "threads"


class Short(NamedTuple):
    """Memory that is nearly used up, or something else of a process. `of`: one of the above, or the
    name of one of `ADDRESSES`. `amount`: what is used of `most`, with HOST and SHM what is left,
    with STALL a share of the time.
    """

    of: str
    host: HostState
    amount: float
    most: int = 0


class FullDisk(NamedTuple):
    """A disk with little space or few inodes left."""

    disk: Disk
    host: HostState


def rule(context: Context) -> list[Finding]:
    """Findings for each host, and for single ranks with their own limit."""
    snapshot, policy = context.snapshot, context.policy
    findings: list[Finding] = []
    for host, every in snapshot.by_host():
        ranks = [rank for rank in every if not rank.gone and rank.state is not State.LOST]
        if ranks:
            found = [*_of_memory(host, ranks, policy), *_of_ranks(host, ranks, policy)]
            findings += [_memory(concerned, seen, context) for concerned, seen in found]
            findings += _of_disks(host, ranks, snapshot, policy)
    return findings


_Found = Iterator[tuple[list[RankFacts], Short]]


def _of_memory(host: HostState, ranks: list[RankFacts], policy: Policy) -> _Found:
    limits, left, total = (
        policy.of(ResourceLimits),
        host.memory_available_bytes,
        host.memory_total_bytes,
    )
    stall = (host.load.memory_stall_ratio or 0.0) if host.load is not None else 0.0
    if _is_little(left, total, policy):
        yield ranks, Short(HOST, host, left or 0, total or 0)
    elif stall >= limits.memory_stall_ratio:
        yield ranks, Short(STALL, host, stall)
    left, total = host.shm_free_bytes, host.shm_total_bytes
    if _is_little(left, total, policy) or at_most(
        left, total, limits.shm_low_ratio, limits.shm_low_bytes
    ):
        yield ranks, Short(SHM, host, left or 0, total or 0)


def _of_ranks(host: HostState, ranks: list[RankFacts], policy: Policy) -> _Found:
    """Limits of a rank's process, and of its cgroup."""
    limits = policy.of(ResourceLimits)
    loads = [(rank, report.load) for rank in ranks if (report := rank.process.report) is not None]
    known = [(rank, load) for rank, load in loads if load is not None]
    over = [
        (rank, Short(CGROUP, host, used, most))
        for rank, load in known
        if (used := load.memory_used_bytes) is not None
        and (most := load.memory_limit_bytes) is not None
        and _is_little(max(0, most - used), most, policy)
    ]
    if over:
        yield [rank for rank, _ in over], over[0][1]
    for rank, load in known:
        if (
            load.files
            and load.files_limit
            and load.files >= limits.files_full_ratio * load.files_limit
        ):
            yield [rank], Short(FILES, host, load.files, load.files_limit)
    crowded: dict[Limit, list[RankFacts]] = {}
    for rank in ranks:
        for limit in limits_of(rank):
            if is_short_of(limit, policy):
                yield [rank], Short(limit.name, host, limit.used, limit.limit)
            elif limit.name == "pids.max" and limit.used >= limits.pids_full_ratio * limit.limit:
                crowded.setdefault(limit, []).append(rank)
    for limit, theirs in crowded.items():
        yield theirs, Short(THREADS, host, limit.used, limit.limit)


def _memory(ranks: list[RankFacts], seen: Short, context: Context) -> Finding:
    numbers, now = tuple(rank.rank for rank in ranks), context.snapshot.time_unix_ns
    late, victims = ranks[0].late, tuple[int, ...]()
    if seen.of in ADDRESSES and late is not None:
        cause = cause_of(ranks[0], late, context.snapshot, context.policy)
        victims = late.waiters if cause.word == LIMIT else ()
    return Finding(Kind.MEMORY_PRESSURE, WARNING, numbers, victims, now, seen=seen)


def _is_little(left: int | None, total: int | None, policy: Policy) -> bool:
    """Whether the rest of a memory is small."""
    return at_most(left, total, policy.of(ResourceLimits).memory_low_ratio, policy.memory_low_bytes)


def _of_disks(
    host: HostState, ranks: list[RankFacts], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    for disk in host.load.disks if host.load is not None else ():
        # A file system in memory is reported as memory.
        if disk.uses == "shm":
            continue
        few = disk.inodes_free < policy.of(ResourceLimits).disk_full_inodes
        no_inodes = disk.inodes and few and disk.inodes_free <= policy.disk_full_ratio * disk.inodes
        if no_inodes or is_full(disk.free_bytes, disk.total_bytes, policy):
            every = tuple(rank.rank for rank in ranks)
            numbers = tuple(rank for rank in disk.ranks if rank in every) or every
            yield Finding(
                kind=Kind.DISK_FULL,
                severity=WARNING,
                ranks=numbers,
                victims=(),
                since_unix_ns=snapshot.time_unix_ns,
                group=disk.path,
                seen=FullDisk(disk, host),
            )


# -- `cpu-oversubscribed`: half of a host's ranks are often ready to run but get no CPU


@dataclass(frozen=True)
class Oversubscribed(Limits, of=Kind.CPU_OVERSUBSCRIBED):
    """`cpu-oversubscribed`."""

    own_ratio: float = 0.5
    """Beside `oversubscribed_ratio`, the ranks use this share of their CPUs: a neighbour's load is
    not theirs to fix."""
    room_cores: float = 0.25
    """... for each rank: CPU time used and waited for may exceed the CPUs by this much and fit."""
    threads_factor: float = 2.0
    """... or this many threads for each CPU run or are ready to run, over all threads of the ranks.
    Those alone would not fit, even on a host without other processes. OpenMP's threads lack CPUs
    while the main thread, asleep until they are done, lacks none."""
    threads_ratio: float = 0.2
    """... and the main threads wait for a CPU this share of the time. Less costs little."""
    threads_own_ratio: float = 0.2
    """... and the ranks get this share of the CPUs at least. Where others have nearly all, each
    thread that wakes for a moment is ready for long, so ready threads are not a measure."""
    window_ratio: float = 0.9
    """... in most of `oversubscribed_window_s`: reports come every half second, so that is rarely
    full."""


class Crowded(NamedTuple):
    """The share of the time in which its ranks wait for a CPU, or in which their quota holds
    them."""

    host: HostState
    ratio: float
    by_quota: bool


def oversubscribed(context: Context) -> list[Finding]:
    """One finding for each host."""
    snapshot, policy = context.snapshot, context.policy
    findings, limits = [], policy.of(Oversubscribed)
    for host, every in snapshot.by_host():
        ranks = [rank for rank in every if rank.process.pressure and not rank.gone]
        if len(ranks) < 2 or not all(_is_settled(rank, snapshot, policy) for rank in ranks):
            continue
        throttled = median([throttled_ratio(rank) for rank in ranks])
        delayed = median([delay_of(rank) for rank in ranks])
        by_quota = throttled >= policy.of(ResourceLimits).throttled_ratio
        if (
            by_quota
            or (delayed >= policy.oversubscribed_ratio and _of_their_own(host, ranks, limits))
            or (delayed >= limits.threads_ratio and _by_threads(host, ranks, limits))
        ):
            seconds = ranks[0].process.pressure.seconds if ranks[0].process.pressure else 0.0
            findings.append(
                Finding(
                    kind=Kind.CPU_OVERSUBSCRIBED,
                    severity=WARNING,
                    ranks=tuple(rank.rank for rank in ranks),
                    victims=(),
                    since_unix_ns=snapshot.time_unix_ns - int(seconds * 1e9),
                    seen=Crowded(host, throttled if by_quota else delayed, by_quota),
                )
            )
    return findings


def _is_settled(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it has trained for a whole window."""
    window_s = policy.of(Oversubscribed).window_ratio * policy.oversubscribed_window_s
    if (
        rank.process.pressure is None
        or rank.process.pressure.seconds < window_s
        or rank.reported.phase != "running"
    ):
        return False
    return (
        snapshot.time_unix_ns - (rank.reported.phase_since_unix_ns or snapshot.time_unix_ns)
        >= window_s * 1e9
    )


def throttled_ratio(rank: RankFacts) -> float:
    """Share of the time in which a quota holds it."""
    pressure = rank.process.pressure
    return (pressure.throttled_ratio or 0.0) if pressure is not None else 0.0


def _of_their_own(host: HostState, ranks: list[RankFacts], limits: Oversubscribed) -> bool:
    """Whether the ranks and their children use much of their CPUs and need more.

    Two single-threaded ranks on two cores wait only because of other processes.
    """
    cpus = cpus_of(host, ranks)
    used = sum(used_cores_of(rank) for rank in ranks)
    wanted = used + sum(delay_of(rank) for rank in ranks)
    return used >= limits.own_ratio * cpus and wanted > cpus + limits.room_cores * len(ranks)


def _by_threads(host: HostState, ranks: list[RankFacts], limits: Oversubscribed) -> bool:
    """Whether far more of their own threads are ready to run than there are CPUs.

    Other processes can make these threads wait, but cannot increase their number, unless they take
    nearly all CPU time.
    """
    used = sum(used_cores_of(rank) for rank in ranks)
    if used < limits.threads_own_ratio * cpus_of(host, ranks):
        return False
    wanted = used + sum(delay_of(rank) + threads_delay_of(rank) for rank in ranks)
    return wanted >= limits.threads_factor * cpus_of(host, ranks)


def cpus_of(host: HostState, ranks: list[RankFacts]) -> int:
    """The CPUs that these ranks may use."""
    pinned = pinned_cpus(host, ranks)
    return pinned[1] if pinned is not None else host.cores


def pinned_cpus(host: HostState, ranks: list[RankFacts]) -> tuple[str, int] | None:
    """(CPUs, how many), where all ranks may use only the same CPUs, and those are not all of the
    host.
    """
    lists = {
        (load.cpus, load.cpus_count)
        for rank in ranks
        if rank.process.report and (load := rank.process.report.load)
    }
    if len(lists) != 1:
        return None
    cpus, count = lists.pop()
    return (cpus, count) if cpus and count and count < host.cores else None


ROWS = (
    RuleRow(
        oversubscribed,
        (Kind.CPU_OVERSUBSCRIBED,),
        "the share of the time in which the ranks of a host are ready to run but have no CPU",
        needs=("hosts",),
        unless=MOVES,
    ),
    RuleRow(
        rule,
        (Kind.MEMORY_PRESSURE, Kind.DISK_FULL),
        "memory, /dev/shm, cgroup limits, disks, and limits of each process",
        needs=("hosts",),
        unless=(job_has_ended,),
    ),
)
PAGES = (
    Explanation(
        kind=Kind.CPU_OVERSUBSCRIBED,
        severity="warning",
        brief="a host's ranks are ready to run but get no CPU",
        meaning=(
            "More threads want to run than there are cores, or the ranks are pinned to the same"
            " few cores. Everything becomes slow, by a different amount in each step. Threads that"
            " spin while they wait (OpenMP, MPI) make it worse."
        ),
        found=(
            (
                "The main threads of half the host's ranks waited for a CPU for"
                " {oversubscribed_ratio} of {oversubscribed_window_s} (run delay in"
                " /proc/PID/schedstat), and the ranks used {cpu-oversubscribed.own_ratio} of the"
                " CPUs and need more. Or a CPU quota throttled them for {resources.throttled_ratio}"
                " of that time. It is shown once it has stood for {brief.stood_s}."
            ),
        ),
        steps=(
            (
                "Set the number of threads to cores divided by ranks, in the environment of all "
                "ranks:\nexport OMP_NUM_THREADS=4"
            ),
            "Use fewer DataLoader workers: ranks x (1 + workers) should not exceed the cores.",
            (
                "Pinned ranks: see which CPUs they may use:\ntaskset -cp PID; srun"
                " --cpu-bind=cores --cpus-per-task=8"
            ),
            "A container's quota:\ncat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu.stat",
            "MPI with more ranks than cores:\nmpirun --mca mpi_yield_when_idle 1",
        ),
    ),
    Explanation(
        kind=Kind.MEMORY_PRESSURE,
        severity="warning",
        brief="memory, /dev/shm, files or threads are nearly used up",
        meaning=(
            "A host, its /dev/shm, a rank's cgroup or its table of open files is nearly full. Soon"
            " the out-of-memory killer may end a process, a worker may die of SIGBUS, or a call"
            ' may fail with "too many open files".'
        ),
        found=(
            (
                "At most {resources.memory_low_ratio} and at most {memory_low_bytes} of memory is"
                " left. Memory that the kernel can free at once counts as free. Or threads of the"
                " host waited for memory for {resources.memory_stall_ratio} of the time. For"
                " /dev/shm the limits are {resources.shm_low_ratio} and {resources.shm_low_bytes}."
            ),
            (
                "A rank has {resources.files_full_ratio} of its allowed descriptors open, or its"
                " cgroup uses {resources.pids_full_ratio} of its threads (pids.max)."
            ),
            (
                "At most {space.address_low_ratio} of a rank's RLIMIT_AS or RLIMIT_DATA is left. If"
                " only this rank is late in most steps, that is why the others wait for it."
            ),
        ),
        steps=(
            "See which processes use the memory:\nps -eo pid,rss,args --sort=-rss | head",
            (
                "Use fewer DataLoader workers or a smaller prefetch_factor. Each worker copies the"
                " Python lists of its dataset."
            ),
            (
                "/dev/shm: docker run --shm-size=8g; remove files that dead jobs left behind:\nls"
                " -lS /dev/shm"
            ),
            (
                "Descriptors: ulimit -n 65536,"
                " or\ntorch.multiprocessing.set_sharing_strategy('file_system')"
            ),
        ),
        no_demo="it takes a host whose memory is nearly used up, and yours should not be",
    ),
    Explanation(
        kind=Kind.DISK_FULL,
        severity="warning",
        brief="a disk that ranks write to is full",
        meaning=(
            "The next checkpoint, log or cache file may fail or be incomplete. Usually one rank "
            "fails first, and the others wait for it."
        ),
        found=(
            (
                "ddtop checks the file systems of each rank's working folder, its TMPDIR and the"
                " folders that it writes or saves to. On one of them, at most {disk_full_ratio}"
                " and at most {space.disk_full_bytes} is free, or at most that share of the inodes."
            ),
        ),
        steps=(
            "What fills it?\ndf -h .; df -i .; du -xsh * | sort -h | tail",
            "Keep only the last few checkpoints, or write them to another file system.",
            "TMPDIR=/path/with/room moves caches and temporary files.",
        ),
        no_demo="it takes a disk that is nearly full",
    ),
)
