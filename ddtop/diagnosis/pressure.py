"""How much a rank waits for a CPU and how much it uses, over the same seconds (`Pressure`).

Each is 0 where the relay does not measure it: then no rule reports a lack of CPU time.
"""

from __future__ import annotations

from ddtop.model.state.facts import RankFacts


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
