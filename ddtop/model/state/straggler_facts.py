"""Which ranks and GPUs are stragglers, how even the others are, and what kept them: frozen values.

Times are unix ns on the hub's clock. None is "not measured".
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.wire.samples import Spot


@dataclass(frozen=True, slots=True)
class Late:
    """These ranks of a group come last into its collectives."""

    group: str
    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    #: How long the others wait for them in a step: median over `steps`, milliseconds.
    cost_ms: float
    step_ms: float
    steps: int
    #: In what share of these steps the others wait.
    late_ratio: float
    #: When the arrivals were read.
    unix_ns: int
    #: Steps are the program's iterations; False: nothing counts those, each collective is a step.
    counted: bool = True
    #: There were no more steps to compare.
    few: bool = False
    #: How many hosts these ranks are on.
    hosts: int = 1
    #: How far the clocks of these hosts may differ, milliseconds.
    error_ms: float = 0.0
    #: How many further hosts were not compared, because of their clocks.
    hosts_apart: int = 0

    @property
    def share_ratio(self) -> float:
        """Share of each step in which the others wait."""
        return min(1.0, self.cost_ms / self.step_ms) if self.step_ms else 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the ranks of a group are.

    What a collective takes beyond the wait for the last rank is communication.
    """

    group: str
    ranks: tuple[int, ...]
    #: Share of its time in which a rank waits for the last to arrive, mean of all ranks.
    waiting_ratio: float
    #: Collectives in a step.
    per_step: int
    #: Share of the collectives that are all_reduce, barrier or have a root.
    reduce_ratio: float
    step_ms: float
    unix_ns: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """What the host does to one rank's process."""

    #: Seconds over which the rest is measured.
    seconds: float
    #: Share of the time in which its main thread was ready to run and had no CPU.
    delay_ratio: float | None = None
    #: Share of the time in which the CPU quota of its cgroup held it.
    throttled_ratio: float | None = None
    #: Pages read from a disk.
    faults_per_s: float | None = None
    #: How many of its other threads were ready to run and had no CPU, mean over the time.
    threads_delay_cores: float | None = None
    #: Cores that it and its children used, mean over the time.
    used_cores: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """What kept the interpreter of one rank."""

    #: Seconds over which the rest is measured.
    seconds: float
    #: Share of the agent's samples that came late: C code held the GIL, or there was no CPU.
    held_ratio: float = 0.0
    #: Share of the time in garbage collections.
    gc_ratio: float = 0.0
    #: Where the samples that came late found the main thread.
    spot: Spot | None = None


@dataclass(frozen=True, slots=True)
class GpuLate:
    """The GPUs of these ranks of a group are stragglers.

    The GPUs of `waiters` were busy all the time and waited in NCCL. Powers and clocks are means.
    """

    group: str
    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    power_watts: float
    #: Power of the GPUs that wait.
    others_watts: float
    sm_mhz: float
    others_mhz: float
    #: Seconds over which the rest is measured.
    seconds: float
    #: A process that is not the job's uses one of these GPUs.
    others_there: bool = False
