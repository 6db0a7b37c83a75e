"""What several rules ask of a rank or a disk: how full it is, how long it lacks a CPU, whether its
backend has failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.model.ending import comm_failure
from ddtop.model.facts import Blame, RankFacts, Snapshot
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Limit


@dataclass(frozen=True)
class Space(Limits, of="space"):
    """From when there is little room for addresses or files."""

    address_low_ratio: float = 0.06
    """Share of RLIMIT_AS or RLIMIT_DATA that is left, and no more than `memory_low_bytes`. torch
    maps hundreds of megabytes at once, and beyond the limit the next allocation raises."""
    disk_full_bytes: float = 2 * 2.0**30
    """A disk has no more than this left, beside `disk_full_ratio`: the next checkpoint may not
    fit."""


def is_full(free_bytes: int | None, total_bytes: int | None, policy: Policy) -> bool:
    """Whether the rest of a disk is small."""
    return at_most(
        free_bytes, total_bytes, policy.disk_full_ratio, policy.of(Space).disk_full_bytes
    )


def at_most(left: int | None, total: int | None, ratio: float, most_bytes: float) -> bool:
    """Whether the rest is small, both as a share and as an amount."""
    return left is not None and bool(total) and left <= min(ratio * (total or 0), most_bytes)


def timeout_s(snapshot: Snapshot, blame: Blame) -> float | None:
    """The shortest timeout (s) of the collectives in which others wait for a blamed rank."""
    timeouts = [
        call.timeout_ms
        for rank in blame.waiters
        for call in snapshot.rank(rank).comm.open_collectives
        if call.group == blame.group and call.timeout_ms
    ]
    return min(timeouts) / 1000 if timeouts else None


ADDRESSES = {
    "RLIMIT_AS": ("address space", "ulimit -v, or the batch system's h_vmem"),
    "RLIMIT_DATA": ("data", "ulimit -d"),
}
"""The limits of memory by their names: of what, and what sets them."""


def delay_of(rank: RankFacts) -> float:
    """Share of the time in which its main thread was ready to run and had no CPU."""
    pressure = rank.process.pressure
    return (pressure.delay_ratio or 0.0) if pressure is not None else 0.0


def threads_delay_of(rank: RankFacts) -> float:
    """How many of its other threads were ready to run and had no CPU, on average."""
    pressure = rank.process.pressure
    return (pressure.threads_delay_cores or 0.0) if pressure is not None else 0.0


def used_cores_of(rank: RankFacts) -> float:
    """Cores that it and its children used. Measured over only two seconds, a finding would come and
    go."""
    pressure = rank.process.pressure
    return (pressure.used_cores or 0.0) if pressure is not None else 0.0


def limits_of(rank: RankFacts) -> tuple[Limit, ...]:
    """The limits of its process and its cgroup; () where the relay does not know them."""
    load = rank.process.report.load if rank.process.report is not None else None
    return load.limits if load is not None else ()


def is_short_of(limit: Limit, policy: Policy) -> bool:
    """Whether it is a limit of memory that is nearly used up: the next allocation may fail."""
    left = max(0, limit.limit - limit.used)
    small = at_most(left, limit.limit, policy.of(Space).address_low_ratio, policy.memory_low_bytes)
    return small and limit.name in ADDRESSES


def reporters(snapshot: Snapshot) -> set[int]:
    """Ranks that failed because of other ranks. Their present place explains nothing."""
    return {rank.rank for rank in snapshot.ranks if comm_failure(rank)}


def is_reported(snapshot: Snapshot) -> bool:
    """Whether a rank reports such an error. If so, a finding other than `collective-stuck` explains
    a collective that does not complete."""
    return bool(reporters(snapshot)) or any(
        group.error is not None and not rank.gone
        for rank in snapshot.ranks
        for group in rank.comm.groups
    )
