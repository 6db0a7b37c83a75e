"""`memory-pressure`, `disk-full`, `oversubscribed`: what is nearly used up, or shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from ddtop.diagnosis.evidence import (
    ADDRESSES,
    at_most,
    delay_of,
    is_full,
    is_short_of,
    limits_of,
    size_text,
    threads_delay_of,
    used_cores_of,
)
from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.straggler_cause import LIMIT, cause_of
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Disk, HostState
from ddtop.words.sentences import about, ranks_text, verb

# -- `memory-pressure` and `disk-full`: resources of a rank or its host that are nearly used up


@dataclass(frozen=True)
class ResourceLimits(Limits, of="resources", was=""):
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


def rule(context: Context) -> list[Finding]:
    """Findings for each host, and for single ranks with their own limit."""
    snapshot, policy = context.snapshot, context.policy
    findings: list[Finding] = []
    for host, every in snapshot.by_host():
        ranks = [rank for rank in every if not rank.gone and rank.state is not State.LOST]
        if ranks:
            findings += _of_memory(host, ranks, snapshot, policy)
            findings += _of_disks(host, ranks, snapshot, policy)
    return findings


def _of_memory(
    host: HostState, ranks: list[RankFacts], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    everyone = tuple(rank.rank for rank in ranks)
    if _is_little(host.memory_available_bytes, host.memory_total_bytes, policy):
        left = (
            f"{size_text(host.memory_available_bytes)} of {size_text(host.memory_total_bytes)}"
            " memory left"
        )
        advice = (
            "use fewer DataLoader workers, or smaller caches or prefetch; otherwise the OOM killer"
            " may end a rank or a worker"
        )
        yield _memory(everyone, f"{host.host} has {left}", _largest_lines(ranks), advice, snapshot)
    elif (
        host.load is not None
        and (host.load.memory_stall_ratio or 0.0) >= policy.of(ResourceLimits).memory_stall_ratio
    ):
        stall = (
            f"{host.host} waits {about(host.load.memory_stall_ratio or 0.0)} of the time for memory"
            " (reclaim or swap)"
        )
        yield _memory(
            everyone,
            stall,
            _largest_lines(ranks),
            "data that does not fit is swapped or read again: see `vmstat 1`, columns si and so",
            snapshot,
        )
    shm = host.shm_free_bytes, host.shm_total_bytes
    if _is_little(*shm, policy) or at_most(
        *shm, policy.of(ResourceLimits).shm_low_ratio, policy.of(ResourceLimits).shm_low_bytes
    ):
        left = (
            f"/dev/shm of {host.host} has {size_text(host.shm_free_bytes)} of"
            f" {size_text(host.shm_total_bytes)} left"
        )
        advice = (
            "start the container with more (--shm-size, --ipc=host), use fewer workers, or remove"
            " files that others left behind: ls -lS /dev/shm"
        )
        yield _memory(everyone, left, [], advice, snapshot)
    yield from _of_cgroups(ranks, snapshot, policy)
    yield from _of_files(ranks, snapshot, policy)
    yield from _of_own_limits(ranks, snapshot, policy)


def _of_cgroups(ranks: list[RankFacts], snapshot: Snapshot, policy: Policy) -> Iterator[Finding]:
    limited = [rank for rank in ranks if _over_limit(rank, policy)]
    if limited:
        load = limited[0].process.report.load if limited[0].process.report else None
        assert load is not None
        used = f"{size_text(load.memory_used_bytes)} of its {size_text(load.memory_limit_bytes)}"
        numbers = tuple(rank.rank for rank in limited)
        text = f"the cgroup of {ranks_text(numbers)} uses {used} memory limit"
        yield _memory(
            numbers,
            text,
            _largest_lines(limited),
            "raise the limit (--mem, resources.limits.memory), or use less memory: beyond the"
            " limit the OOM killer ends a rank",
            snapshot,
        )


def _of_files(ranks: list[RankFacts], snapshot: Snapshot, policy: Policy) -> Iterator[Finding]:
    for rank in ranks:
        load = rank.process.report.load if rank.process.report else None
        if (
            load
            and load.files
            and load.files_limit
            and load.files >= policy.of(ResourceLimits).files_full_ratio * load.files_limit
        ):
            text = (
                f"rank {rank.rank} has {load.files:,} of at most {load.files_limit:,} descriptors"
                " open"
            )
            advice = (
                "raise the limit (ulimit -n), close files that are kept open, or call"
                ' torch.multiprocessing.set_sharing_strategy("file_system")'
            )
            yield _memory(
                (rank.rank,),
                text,
                [f"ls -l /proc/{rank.pid}/fd shows what they are"],
                advice,
                snapshot,
            )


def _of_own_limits(ranks: list[RankFacts], snapshot: Snapshot, policy: Policy) -> Iterator[Finding]:
    """Limits of a rank's process, and of the threads of its cgroup."""
    crowded: dict[tuple[int, int], list[RankFacts]] = {}
    for rank in ranks:
        for limit in limits_of(rank):
            if is_short_of(limit, policy):
                what, setting = ADDRESSES[limit.name]
                text = (
                    f"rank {rank.rank} uses {size_text(limit.used)} of at most"
                    f" {size_text(limit.limit)} of {what} ({limit.name})"
                )
                advice = (
                    f"raise the limit ({setting}), or use less: beyond it the next allocation"
                    " raises MemoryError or ends the rank"
                )
                evidence = [
                    f"prlimit --pid {rank.pid}; VmSize counts all mapped memory, not only resident"
                    " memory"
                ]
                late = rank.late
                victims: tuple[int, ...] = ()
                if late is not None and cause_of(rank, late, snapshot, policy).word == LIMIT:
                    text += (
                        f"; {ranks_text(late.waiters)} {verb(late.waiters, 'waits', 'wait')}"
                        f" {late.share_ratio:.0%} of the time for it"
                    )
                    evidence.append(
                        f"it is late in {late.late_ratio:.0%} of the last {late.steps} steps; the"
                        " waiting ranks have room below their limits"
                    )
                    victims = late.waiters
                finding = _memory((rank.rank,), text, evidence, advice, snapshot)
                yield replace(finding, victims=victims)
            elif (
                limit.name == "pids.max"
                and limit.used >= policy.of(ResourceLimits).pids_full_ratio * limit.limit
            ):
                crowded.setdefault((limit.used, limit.limit), []).append(rank)
    for (used, most), theirs in crowded.items():
        numbers = tuple(rank.rank for rank in theirs)
        text = (
            f"the cgroup of {ranks_text(numbers)} has {used:,} of at most {most:,} threads"
            " (pids.max)"
        )
        advice = (
            "use fewer DataLoader workers or a smaller OMP_NUM_THREADS, or raise the limit"
            " (--pids-limit); otherwise new threads cannot start"
        )
        yield _memory(numbers, text, [], advice, snapshot)


def _memory(
    ranks: tuple[int, ...], text: str, evidence: list[str], advice: str, snapshot: Snapshot
) -> Finding:
    return Finding(
        Kind.MEMORY_PRESSURE,
        WARNING,
        ranks,
        (),
        snapshot.time_unix_ns,
        text,
        tuple(evidence),
        advice,
    )


def _is_little(left: int | None, total: int | None, policy: Policy) -> bool:
    """Whether the rest of a memory is small."""
    return at_most(left, total, policy.of(ResourceLimits).memory_low_ratio, policy.memory_low_bytes)


def _over_limit(rank: RankFacts, policy: Policy) -> bool:
    load = rank.process.report.load if rank.process.report is not None else None
    if load is None or load.memory_limit_bytes is None or load.memory_used_bytes is None:
        return False
    return _is_little(
        max(0, load.memory_limit_bytes - load.memory_used_bytes), load.memory_limit_bytes, policy
    )


def _largest_lines(ranks: list[RankFacts]) -> list[str]:
    known = sorted(
        (rank for rank in ranks if rank.process.rss_bytes),
        key=lambda rank: -(rank.process.rss_bytes or 0),
    )
    return [
        f"rank {rank.rank} (pid {rank.pid}): {size_text(rank.process.rss_bytes)} resident"
        for rank in known[:4]
    ]


def _of_disks(
    host: HostState, ranks: list[RankFacts], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    for disk in host.load.disks if host.load is not None else ():
        # A file system in memory is reported as memory.
        if disk.uses == "shm":
            continue
        what = _full_text(disk, policy)
        if what is not None:
            every = tuple(rank.rank for rank in ranks)
            numbers = tuple(rank for rank in disk.ranks if rank in every) or every
            uses = {"TMPDIR": "TMPDIR", "files": "files"}.get(disk.uses, "the working folder")
            yield Finding(
                kind=Kind.DISK_FULL,
                severity=WARNING,
                ranks=numbers,
                victims=(),
                since_unix_ns=snapshot.time_unix_ns,
                summary=(
                    f"the disk of {disk.path} on {host.host} has {what} ({uses} of"
                    f" {ranks_text(numbers)})"
                ),
                evidence=(
                    (
                        f"{size_text(disk.free_bytes)} of {size_text(disk.total_bytes)} free for"
                        f" {verb(numbers, 'its user', 'their user')}"
                    ),
                ),
                advice=(
                    "the next checkpoint or cache file may be cut off: free some space or write"
                    " elsewhere: df -h, df -i"
                ),
                group=disk.path,
            )


def _full_text(disk: Disk, policy: Policy) -> str | None:
    if is_full(disk.free_bytes, disk.total_bytes, policy):
        return f"{size_text(disk.free_bytes)} of {size_text(disk.total_bytes)} left"
    if (
        disk.inodes
        and disk.inodes_free <= policy.disk_full_ratio * disk.inodes
        and disk.inodes_free < policy.of(ResourceLimits).disk_full_inodes
    ):
        return f"inodes for {disk.inodes_free:,} more files"
    return None


# -- `cpu-oversubscribed`: half of a host's ranks are often ready to run but get no CPU


@dataclass(frozen=True)
class Oversubscribed(Limits, of=Kind.CPU_OVERSUBSCRIBED, was="oversubscribed_"):
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
    thread that wakes for a moment is ready for long, so ready threads are no measure."""
    window_ratio: float = 0.9
    """... in most of `oversubscribed_window_s`: reports come every half second, so that is rarely
    full."""


def oversubscribed(context: Context) -> list[Finding]:
    """One finding for each host."""
    snapshot, policy = context.snapshot, context.policy
    findings, limits = [], policy.of(Oversubscribed)
    for host, every in snapshot.by_host():
        ranks = [rank for rank in every if rank.process.pressure and not rank.gone]
        if len(ranks) < 2 or not all(_is_settled(rank, snapshot, policy) for rank in ranks):
            continue
        throttled = median([_throttled_ratio(rank) for rank in ranks])
        delayed = median([delay_of(rank) for rank in ranks])
        if throttled >= policy.of(ResourceLimits).throttled_ratio:
            findings.append(
                _finding(
                    host,
                    ranks,
                    f"are throttled by a CPU quota {about(throttled)} of the time",
                    snapshot,
                    policy,
                )
            )
        elif (delayed >= policy.oversubscribed_ratio and _of_their_own(host, ranks, limits)) or (
            delayed >= limits.threads_ratio and _by_threads(host, ranks, limits)
        ):
            findings.append(
                _finding(
                    host, ranks, f"wait {about(delayed)} of the time for a CPU", snapshot, policy
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


def _throttled_ratio(rank: RankFacts) -> float:
    return (
        (rank.process.pressure.throttled_ratio or 0.0) if rank.process.pressure is not None else 0.0
    )


def _of_their_own(host: HostState, ranks: list[RankFacts], limits: Oversubscribed) -> bool:
    """Whether the ranks and their children use much of their CPUs and need more.

    Two single-threaded ranks on two cores wait only because of other processes.
    """
    cpus = _cpus(host, ranks)
    used = sum(used_cores_of(rank) for rank in ranks)
    wanted = used + sum(delay_of(rank) for rank in ranks)
    return used >= limits.own_ratio * cpus and wanted > cpus + limits.room_cores * len(ranks)


def _by_threads(host: HostState, ranks: list[RankFacts], limits: Oversubscribed) -> bool:
    """Whether far more of their own threads are ready to run than there are CPUs.

    Other processes can make these threads wait, but cannot increase their number, unless they take
    nearly all CPU time.
    """
    used = sum(used_cores_of(rank) for rank in ranks)
    if used < limits.threads_own_ratio * _cpus(host, ranks):
        return False
    wanted = used + sum(delay_of(rank) + threads_delay_of(rank) for rank in ranks)
    return wanted >= limits.threads_factor * _cpus(host, ranks)


def _cpus(host: HostState, ranks: list[RankFacts]) -> int:
    """The CPUs that these ranks may use."""
    pinned = _pinned_cpus(host, ranks)
    return pinned[1] if pinned is not None else host.cores


def _beside_others(host: HostState, ranks: list[RankFacts], policy: Policy) -> str | None:
    """How many CPUs other processes use, if all CPUs are in use."""
    others = _cpus(host, ranks) - sum(used_cores_of(rank) for rank in ranks)
    if others < policy.foreign_cores:
        return None
    return (
        f"other processes take about {others:.1f} of the {_cpus(host, ranks)} CPUs, so they cause"
        " part of the wait"
    )


def _pinned_cpus(host: HostState, ranks: list[RankFacts]) -> tuple[str, int] | None:
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


def _reduction_text(omp: set[str | None], share: int, threads: float) -> str:
    """What to reduce. `share`: threads of OpenMP for each rank. `threads`: how many of a rank's
    other threads lack a CPU.
    """
    if threads >= 1.0:
        return (
            f"call torch.set_num_threads({share}) on each rank: OMP_NUM_THREADS alone does not"
            " limit the threads that compute"
        )
    if omp and all(
        value is not None and value.isdigit() and 0 < int(value) <= share for value in omp
    ):
        return (
            "use fewer DataLoader workers or fewer ranks on this host, and see what else runs"
            " there: top"
        )
    return (
        f"set OMP_NUM_THREADS to cores / ranks ({share}), and use fewer DataLoader workers or"
        " fewer ranks on this host"
    )


def _finding(
    host: HostState, ranks: list[RankFacts], what: str, snapshot: Snapshot, policy: Policy
) -> Finding:
    numbers = tuple(rank.rank for rank in ranks)
    pinned = _pinned_cpus(host, ranks)
    threads = sum(rank.process.report.threads or 0 for rank in ranks if rank.process.report)
    summary = f"{ranks_text(numbers)} of {host.host} {what}"
    evidence = [
        f"rank {rank.rank}: {delay_of(rank):.0%} of the last {pressure.seconds:.0f} s ready to run"
        f" without a CPU, {used_cores_of(rank):.2f} cores used"
        for rank in ranks[:8]
        if (pressure := rank.process.pressure) is not None
    ]
    omp = {
        rank.hello.environment.get("OMP_NUM_THREADS") for rank in ranks if rank.hello is not None
    }
    if pinned is not None:
        cpus = f"CPU {pinned[0]}" if pinned[1] == 1 else f"CPUs {pinned[0]}"
        summary += f": all of them are bound to {cpus} of {host.cores} cores"
        advice = "give each rank its own CPUs (srun --cpu-bind=cores, numactl, taskset -cp)"
    elif any(_throttled_ratio(rank) >= policy.throttled_told_ratio for rank in ranks):
        summary += ": more threads run than the CPU quota of its cgroup allows"
        advice = (
            "raise the container's CPU limit, or start fewer threads: OMP_NUM_THREADS, num_workers"
        )
    else:
        # The number of runnable threads changes with each sample, so it is not part of the
        # sentence.
        summary += f": {host.cores} cores for {len(ranks)} ranks with {threads} threads"
        waiting = sum(threads_delay_of(rank) for rank in ranks) / len(ranks)
        advice = _reduction_text(omp, max(1, host.cores // len(ranks)), waiting)
    throttled = any(_throttled_ratio(rank) >= policy.throttled_told_ratio for rank in ranks)
    beside = _beside_others(host, ranks, policy) if not throttled else None
    if beside is not None:
        summary += ", and other processes run there too"
        evidence.append(beside)
    evidence += _load_lines(host, ranks, policy)
    values = ", ".join(sorted(value if value else "not set" for value in omp))
    evidence.append(f"OMP_NUM_THREADS: {values}; {len(ranks)} ranks with {threads} threads")
    seconds = ranks[0].process.pressure.seconds if ranks[0].process.pressure else 0.0
    return Finding(
        kind=Kind.CPU_OVERSUBSCRIBED,
        severity=WARNING,
        ranks=numbers,
        victims=(),
        since_unix_ns=snapshot.time_unix_ns - int(seconds * 1e9),
        summary=summary,
        evidence=tuple(evidence),
        advice=advice,
    )


def _load_lines(host: HostState, ranks: list[RankFacts], policy: Policy) -> list[str]:
    """Other threads of the ranks, all threads of the host, and the hypervisor."""
    runnable = host.load.runnable if host.load is not None else None
    evidence = []
    wanting = sum(threads_delay_of(rank) for rank in ranks)
    if wanting >= 1.0:
        evidence.append(
            f"on average, {wanting:.0f} threads of the ranks besides the main threads were ready"
            " to run without a CPU"
        )
    if runnable is not None:
        evidence.append(
            f"{host.host}: {runnable} threads ran or were ready to run at the last look, on"
            f" {host.cores} cores"
        )
    if host.load is not None and (host.load.steal_ratio or 0.0) >= policy.throttled_told_ratio:
        evidence.append(
            f"{host.host}: the hypervisor gives {host.load.steal_ratio:.0%} of its CPUs' time to"
            " others"
        )
    return evidence
