"""How much a rank waits for a CPU and how much it uses, over the same seconds (`Pressure`), and how
close it is to the limits of its process.

Each is 0 where the relay does not measure it: then no rule reports a lack of CPU time.
"""

from __future__ import annotations

from ddtop.diagnosis.full import at_most
from ddtop.model.state.facts import RankFacts
from ddtop.policy import Policy
from ddtop.wire.load import Limit

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
    """Cores that it and its children used. Over two seconds instead, a finding would come and
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
    small = at_most(left, limit.limit, policy.address_low_ratio, policy.memory_low_bytes)
    return small and limit.name in ADDRESSES
