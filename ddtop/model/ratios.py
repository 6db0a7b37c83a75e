"""Which share of its time a rank spent on something, from the growth of its counters."""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.model.memory import RankMemory, Series
from ddtop.policy import Limits, Policy
from ddtop.wire.records import RankState


@dataclass(frozen=True)
class Working(Limits, of="working"):
    """Whether a rank works."""

    cpu_waning_ratio: float = 0.025
    """Between this and `cpu_working_ratio` the mean over `window_s` decides, so that a rank near
    the limit does not change at every snapshot."""
    child_working_wakes_per_s: float = 5.0
    """A rank that waits for a child process counts as working if the child's main thread wakes this
    often. A child that hangs does not wake; one that polls wakes once or twice a second."""


@dataclass(frozen=True)
class Transfers(Limits, of="transfers"):
    """Whether a rank that works does I/O."""

    busy_io_bytes_per_s: float = 1048576.0
    """A rank that uses more than `busy_ratio` of a core transfers data from this rate on: pickling
    and checksums of a checkpoint take a core. A loop that writes a log stays below 100 KB/s."""


SERVED = ("socket", "asyncio", "checkpoint-save", "checkpoint-load")
"""Waits in which a thread that wakes often is served by a server. Checkpoints also go to object
stores."""

Grown = tuple[float, tuple[float, ...]] | None
"""The result of `Series.grown`."""

WAITS, AGENT, SPINS_AT, ACTIVITIES = slice(0, 2), slice(2, 5), 5, slice(6, None)
"""Which of the counters in `RankMemory.counters` are what."""
OWN = (AGENT.start, SPINS_AT)
"""Those of ddtop's own thread in the rank, and of threads that only poll."""


def counters(state: RankState) -> tuple[int, ...]:
    """All counters that grow with every report.

    They share one series, because adding to a second one costs as much as all of these values.
    """
    return (
        state.wait_samples,
        state.all_samples,
        state.agent_cpu_ns,
        state.held_samples,
        state.gc_total_ns,
        state.rpc.spins_ns if state.rpc is not None else 0,
        *state.activity_samples,
    )


def part(grown: Grown, of: slice) -> Grown:
    """The growth of only those counters."""
    return (grown[0], grown[1][of]) if grown is not None else None


QUARTERS = 4
"""A wait of half the window leaves one of its quarters untouched, wherever it is."""


def loader_ratios(
    series: Series, whole: Grown, now: int, policy: Policy
) -> tuple[float | None, float | None]:
    """Share of the window spent waiting for data, and the lowest share of its quarters."""
    if whole is None or whole[0] < policy.window_min_s:
        return None, None
    ratio = min(1.0, whole[1][0] / (whole[0] * 1e9))
    if ratio < policy.input_bound_ratio * policy.input_bound_others:
        # Nobody needs it then, and it is a fifth of the work for a healthy rank.
        return ratio, None
    lowest, seconds, waited_ns = ratio, 0.0, 0.0
    batches = []
    for quarter in range(1, QUARTERS + 1):
        part = (
            whole
            if quarter == QUARTERS
            else series.growth(policy.window_s * quarter / QUARTERS, now)
        )
        if part is None or part[0] - seconds < policy.window_s / QUARTERS / 2:
            return ratio, None
        lowest = min(lowest, (part[1][0] - waited_ns) / ((part[0] - seconds) * 1e9))
        seconds, waited_ns = part[0], part[1][0]
        batches.append(part[1][1])
    # A single wait that fills the middle of the window is not a rhythm, however long it is.
    return ratio, max(0.0, lowest) if batches[-2] > batches[0] else 0.0


def cpu(
    memory: RankMemory, now: int, policy: Policy
) -> tuple[float | None, bool | None, float | None]:
    """(cores used without the agent's, whether the process works, how often its main thread wakes
    per second)."""
    if memory.exit is not None:
        return None, None, None
    # A relay that is being replaced does not look: its last look is still what is known.
    now = max(min(now, memory.process_unix_ns), now - int(policy.relay_away_s * 1e9))
    grown = memory.cpu.growth(policy.cpu_window_s, now)
    if grown is None:
        return None, None, None
    seconds, (cpu_ns, io_bytes, switches) = grown
    wakes_per_s = switches / seconds
    own_ratio = _own_ratio(memory, policy.cpu_window_s, now)
    ratio = max(0.0, cpu_ns / (seconds * 1e9) - own_ratio)
    if asks_for_lock(memory, wakes_per_s, policy):
        # To ask a thousand times a second, in a file, takes as much CPU and I/O as work does.
        return ratio, ratio >= policy.busy_ratio, wakes_per_s
    if ratio >= policy.cpu_working_ratio or io_bytes / seconds >= policy.io_working_bytes_per_s:
        return ratio, True, wakes_per_s
    if ratio >= policy.of(Working).cpu_waning_ratio:
        whole = memory.cpu.growth(policy.window_s, now)
        if _cpu_mean(memory, whole, now, policy) >= policy.cpu_working_ratio:
            return ratio, True, wakes_per_s
    served = _is_served(memory) and wakes_per_s >= policy.socket_working_switches_per_s
    return ratio, served or _child_runs(memory, policy), wakes_per_s


def lacks_cpu(memory: RankMemory, now: int, policy: Policy) -> bool:
    """Whether its main thread is ready to run and other processes have the CPUs.

    It uses little CPU then, and is not stuck. False where the relay does not measure it. A wait is
    counted only once it is over, so a thread that is ready now is also judged by a longer time.
    """
    if memory.load is None or memory.process is None:
        return False
    now = max(min(now, memory.process_unix_ns), now - int(policy.relay_away_s * 1e9))
    spans_s = (policy.cpu_window_s, policy.window_s)
    for span_s in spans_s if memory.process.state == "R" else spans_s[:1]:
        grown = memory.load.growth(span_s, now)
        if grown is not None and grown[1][0] >= policy.oversubscribed_ratio * grown[0] * 1e9:
            return True
    return False


def transfers(memory: RankMemory, now: int, policy: Policy) -> bool:
    """Whether data has come or gone for the whole window: much of it, or with little CPU.

    An endless loop may write a log as well, but it uses a core. Only for a process that works.
    """
    now = max(min(now, memory.process_unix_ns), now - int(policy.relay_away_s * 1e9))
    grown = memory.cpu.growth(policy.window_s, now)
    if grown is None:
        return False
    seconds, (_, io_bytes, switches) = grown
    busy = _cpu_mean(memory, grown, now, policy) >= policy.busy_ratio
    least = policy.of(Transfers).busy_io_bytes_per_s if busy else policy.io_working_bytes_per_s
    return io_bytes / seconds >= least or (
        not busy
        and _is_served(memory)
        and switches / seconds >= policy.socket_working_switches_per_s
    )


def _is_served(memory: RankMemory) -> bool:
    """Whether its main thread reads from a socket or a pipe. A download through sockets costs
    little CPU and is in no I/O counter, but each chunk wakes the thread.
    """
    place = memory.state.place if memory.state else None
    if place is not None and place.waits_on in SERVED:
        return True
    # Reading from a pipe has no library frame: only the kernel reports it. A thread that handles
    # what it has read, or waits for a CPU to do so, is in no call at that moment.
    return "pipe_read" in (memory.slept_in or "")


def asks_for_lock(memory: RankMemory, wakes_per_s: float | None, policy: Policy) -> bool:
    """Whether its main thread is in a library's call for a lock, and asks for it again and again.
    Between two questions it may be in any call."""
    place = memory.state.place if memory.state else None
    again = (wakes_per_s or 0.0) >= policy.poll_wakes_per_s
    again = again or "nanosleep" in (memory.slept_in or "")
    return place is not None and place.waits_on == "lock" and again


def _child_runs(memory: RankMemory, policy: Policy) -> bool:
    """Whether it waits for a child process that is not asleep all the time, however little CPU that
    one uses: a scorer between two requests, a sync of files.
    """
    process, place = memory.process, memory.state.place if memory.state else None
    if (
        process is None
        or (process.child_wakes_per_s or 0.0) < policy.of(Working).child_working_wakes_per_s
    ):
        return False
    is_child = place is not None and place.waits_on == "child"
    return is_child or process.syscall in ("wait4", "waitid")


def _cpu_mean(memory: RankMemory, grown: Grown, now: int, policy: Policy) -> float:
    """Cores used over the whole window, without the agent's. `grown`: of `memory.cpu` over it."""
    own_ratio = _own_ratio(memory, policy.window_s, now)
    return grown[1][0] / (grown[0] * 1e9) - own_ratio if grown else 0.0


def _own_ratio(memory: RankMemory, window_s: float, now: int) -> float:
    """Cores that ddtop's own thread in the rank and threads that only poll use; 0 where that is not
    known.
    """
    grown = memory.counters.grown_of(OWN, window_s, now)
    return grown[1] / (grown[0] * 1e9) if grown is not None else 0.0


def agent_ratio(grown: Grown) -> float | None:
    """Cores that ddtop's own thread in the rank uses, from the growth of `RankMemory.counters`."""
    return grown[1][AGENT.start] / (grown[0] * 1e9) if grown else None


def of_samples(grown: Grown, policy: Policy) -> float | None:
    """Share of the samples that the first counter counts; None while there are too few."""
    if grown is None or grown[0] < policy.window_min_s or not grown[1][1]:
        return None
    return min(1.0, grown[1][0] / grown[1][1])


def of_each(grown: Grown) -> tuple[float, ...]:
    """The share of each counter in the growth of all; empty where nothing has grown."""
    total = sum(grown[1]) if grown else 0
    return tuple([value / total for value in grown[1]]) if grown and total else ()
