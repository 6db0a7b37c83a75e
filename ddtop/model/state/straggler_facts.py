"""Which ranks and GPUs come last, how even the others are, and what kept them: frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.wire.samples import Spot


@dataclass(frozen=True, slots=True)
class Late:
    """These ranks of a group come last into its collectives.

    `cost_ms`: how long the others wait for them in a step, `share_ratio`: of the step; the median over `steps`.
    `late_ratio`: in how many of these steps. `unix_ns`: when the arrivals were read. `counted`: steps are the program's
    iterations; else nothing counts those, and each collective is one. `few`: there were no more steps to look at. `hosts`: of so many hosts
    ranks were compared, their clocks may be off each other by `error_ms`; `hosts_apart`: ranks of so many others were not, because of their clocks.
    """

    group: str
    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    cost_ms: float
    step_ms: float
    steps: int
    late_ratio: float
    unix_ns: int
    counted: bool = True
    few: bool = False
    hosts: int = 1
    error_ms: float = 0.0
    hosts_apart: int = 0

    @property
    def share_ratio(self) -> float:
        """Of each step."""
        return min(1.0, self.cost_ms / self.step_ms) if self.step_ms else 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the ranks of a group are: `waiting_ratio` is how much of its time a rank waits for the last to arrive, mean of all.

    `per_step`: collectives in a step of `step_ms`, of which `reduce_ratio` are all_reduce. What a collective takes besides that is communication.
    """

    group: str
    ranks: tuple[int, ...]
    waiting_ratio: float
    per_step: int
    reduce_ratio: float
    step_ms: float
    unix_ns: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """What the host does to one rank's process, over `seconds`; None is not measured.

    `delay_ratio`: share of the time in which its main thread was ready to run and had no CPU. `throttled_ratio`: in which its
    cgroup's quota held it. `faults_per_s`: pages that had to be read from a disk. `threads_delay_cores`: how many of its other
    threads were ready and had no CPU, mean over the time.
    """

    seconds: float
    delay_ratio: float | None = None
    throttled_ratio: float | None = None
    faults_per_s: float | None = None
    threads_delay_cores: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """What kept the interpreter of one rank, over the last `seconds`.

    `held_ratio`: share of the agent's looks that came late, because C code held the GIL or there was no CPU; `spot`: where
    such looks found it. `gc_ratio`: share of the time in full garbage collections.
    """

    seconds: float
    held_ratio: float = 0.0
    gc_ratio: float = 0.0
    spot: Spot | None = None


@dataclass(frozen=True, slots=True)
class CardLate:
    """The cards of these ranks of a group come last: over the last `seconds` those of `waiters` were busy all the time and waited in NCCL.

    `power_watts`, `sm_mhz`: means of the late cards; `others_...`: of those that wait, `others_peak_ratio` what they draw of the most that they have drawn.
    `others_there`: somebody else's process is on a late card.
    """

    group: str
    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    power_watts: float
    others_watts: float
    others_peak_ratio: float | None
    sm_mhz: float
    others_mhz: float
    seconds: float
    others_there: bool = False
