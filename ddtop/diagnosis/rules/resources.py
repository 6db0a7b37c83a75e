"""`memory-pressure` and `disk-full`: resources of a rank or its host that are nearly used up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.full import at_most, is_full, size_text
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.pressure import ADDRESSES, is_short_of, limits_of
from ddtop.diagnosis.straggler_cause import LIMIT, cause_of
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.policy import Policy
from ddtop.wire.load import Disk
from ddtop.wire.records import HostState
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.sentences import about


def rule(context: Context) -> list[Finding]:
    """Findings for each host, and for single ranks with their own limit."""
    snapshot, policy = context.snapshot, context.policy
    found: list[Finding] = []
    for host, every in snapshot.by_host():
        ranks = [rank for rank in every if not rank.gone and rank.state is not State.LOST]
        if ranks:
            found += _of_memory(host, ranks, snapshot, policy)
            found += _of_disks(host, ranks, snapshot, policy)
    return found


def _of_memory(
    host: HostState, ranks: list[RankFacts], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    everyone = tuple(rank.rank for rank in ranks)
    if _little(host.memory_available_bytes, host.memory_total_bytes, policy):
        left = (
            f"{size_text(host.memory_available_bytes)} of {size_text(host.memory_total_bytes)} of"
            " its memory left"
        )
        advice = (
            "fewer DataLoader workers, smaller caches or prefetch: otherwise the OOM killer ends"
            " a rank or a worker"
        )
        yield _memory(everyone, f"{host.host} has {left}", _largest(ranks), advice, snapshot)
    elif (
        host.load is not None and (host.load.memory_stall_ratio or 0.0) >= policy.memory_stall_ratio
    ):
        stall = (
            f"{host.host} waits {about(host.load.memory_stall_ratio or 0.0)} of the time for memory"
            " (reclaim or swap)"
        )
        yield _memory(
            everyone,
            stall,
            _largest(ranks),
            "what does not fit is swapped or read again: `vmstat 1`, columns si and so",
            snapshot,
        )
    shm = host.shm_free_bytes, host.shm_total_bytes
    if _little(*shm, policy) or at_most(*shm, policy.shm_low_ratio, policy.shm_low_bytes):
        left = (
            f"/dev/shm of {host.host} has {size_text(host.shm_free_bytes)} of"
            f" {size_text(host.shm_total_bytes)} left"
        )
        advice = (
            "start the container with more (--shm-size, --ipc=host), take fewer workers, or remove"
            " what others left: ls -lS /dev/shm"
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
        used = f"{size_text(load.memory_used_bytes)} of {size_text(load.memory_limit_bytes)}"
        numbers = tuple(rank.rank for rank in limited)
        text = f"the cgroup of {ranks_text(numbers)} uses {used} of its memory limit"
        yield _memory(
            numbers,
            text,
            _largest(limited),
            "raise the limit (--mem, resources.limits.memory), or use less: beyond it the OOM"
            " killer ends a rank",
            snapshot,
        )


def _of_files(ranks: list[RankFacts], snapshot: Snapshot, policy: Policy) -> Iterator[Finding]:
    for rank in ranks:
        load = rank.process.report.load if rank.process.report else None
        if (
            load
            and load.files
            and load.files_limit
            and load.files >= policy.files_full_ratio * load.files_limit
        ):
            text = (
                f"rank {rank.rank} has {load.files:,} of at most {load.files_limit:,} descriptors"
                " open"
            )
            advice = (
                "raise it (ulimit -n), close what is kept, or"
                ' torch.multiprocessing.set_sharing_strategy("file_system")'
            )
            yield _memory(
                (rank.rank,),
                text,
                [f"ls -l /proc/{rank.pid}/fd says what they are"],
                advice,
                snapshot,
            )


def _of_own_limits(ranks: list[RankFacts], snapshot: Snapshot, policy: Policy) -> Iterator[Finding]:
    """Limits of a rank's process, and of the threads of its cgroup."""
    crowded: dict[tuple[int, int], list[RankFacts]] = {}
    for rank in ranks:
        for one in limits_of(rank):
            if is_short_of(one, policy):
                what, setting = ADDRESSES[one.name]
                text = (
                    f"rank {rank.rank} uses {size_text(one.used)} of at most"
                    f" {size_text(one.limit)} of {what} ({one.name})"
                )
                advice = (
                    f"raise it ({setting}), or use less: beyond it the next allocation raises"
                    " MemoryError or ends the rank"
                )
                evidence = [
                    f"prlimit --pid {rank.pid}; VmSize counts what is mapped and not only what is"
                    " resident"
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
                        " ranks that wait have room below their limits"
                    )
                    victims = late.waiters
                finding = _memory((rank.rank,), text, evidence, advice, snapshot)
                yield replace(finding, victims=victims)
            elif one.name == "pids.max" and one.used >= policy.pids_full_ratio * one.limit:
                crowded.setdefault((one.used, one.limit), []).append(rank)
    for (used, most), theirs in crowded.items():
        numbers = tuple(rank.rank for rank in theirs)
        text = (
            f"the cgroup of {ranks_text(numbers)} has {used:,} of at most {most:,} threads"
            " (pids.max)"
        )
        advice = (
            "fewer DataLoader workers or OMP_NUM_THREADS, or a higher limit (--pids-limit): the"
            " next thread cannot start"
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


def _little(left: int | None, total: int | None, policy: Policy) -> bool:
    """Whether the rest of a memory is small."""
    return at_most(left, total, policy.memory_low_ratio, policy.memory_low_bytes)


def _over_limit(rank: RankFacts, policy: Policy) -> bool:
    load = rank.process.report.load if rank.process.report is not None else None
    if load is None or load.memory_limit_bytes is None or load.memory_used_bytes is None:
        return False
    return _little(
        max(0, load.memory_limit_bytes - load.memory_used_bytes), load.memory_limit_bytes, policy
    )


def _largest(ranks: list[RankFacts]) -> list[str]:
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
        what = _full(disk, policy)
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
                    "the next checkpoint or cache file may fail half written: make room, or write"
                    " elsewhere: df -h, df -i"
                ),
                group=disk.path,
            )


def _full(disk: Disk, policy: Policy) -> str | None:
    if is_full(disk.free_bytes, disk.total_bytes, policy):
        return f"{size_text(disk.free_bytes)} of {size_text(disk.total_bytes)} left"
    if (
        disk.inodes
        and disk.inodes_free <= policy.disk_full_ratio * disk.inodes
        and disk.inodes_free < policy.disk_full_inodes
    ):
        return f"room for {disk.inodes_free:,} more files"
    return None
