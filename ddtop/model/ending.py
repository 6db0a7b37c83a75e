"""How a run ended, and who went first."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ddtop.model.facts import Ended
from ddtop.model.policy import Policy

if TYPE_CHECKING:
    from ddtop.model.job import Job, RankMemory

CANCEL_SIGNALS = (int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGHUP))


def exit_text(code: int | None, number: int | None, oom: bool | None = None) -> str:
    """`exit code 1`, `SIGKILL`, `SIGKILL (out of memory)`, or that nobody could tell."""
    if number is not None:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"{name} (out of memory)" if oom else name
    return f"exit code {code}" if code is not None else "an unknown end"


def failed_at(memory: RankMemory) -> int:
    """When a rank failed: its exception came before its process's end."""
    exception = memory.exit.exception if memory.exit else None
    return min(memory.exit_unix_ns, exception.unix_ns) if exception else memory.exit_unix_ns


def went_well(memory: RankMemory) -> bool:
    """Exit code 0 without an exception on the main thread."""
    return memory.exit is not None and memory.exit.code == 0


def was_cancelled(gone: list[RankMemory], policy: Policy) -> bool:
    """All of them ended by one act from outside: a signal to all, Ctrl-C, a time limit.

    A launcher that cleans up after a death does so later than `cancel_gap_s`, because it polls; and a rank that a signal
    of its own killed leaves connection errors behind on the others, which an act on all does not.
    """
    if not gone or not all(_by_cancel(memory) for memory in gone):
        return False
    times = sorted(failed_at(memory) for memory in gone)
    if times[-1] - times[0] > policy.together_s * 1e9:
        return False
    interrupted = [memory for memory in gone if _interrupted(memory)]
    return len(interrupted) == len(gone) or len(times) < 2 or times[1] - times[0] <= policy.cancel_gap_s * 1e9


def _interrupted(memory: RankMemory) -> bool:
    exception = memory.exit.exception if memory.exit else None
    return (exception is not None and exception.type == "KeyboardInterrupt") or (
        memory.exit is not None and memory.exit.signal == int(signal.SIGINT)
    )


def _by_cancel(memory: RankMemory) -> bool:
    if memory.exit is None:
        return False
    return memory.exit.signal in CANCEL_SIGNALS or memory.exit.code in (128 + 15, 128 + 2) or _interrupted(memory)


def ended(job: Job, launcher_alive: bool) -> Ended | None:
    """None while a rank lives, or while a launcher that may restart them does."""
    gone = [memory for memory in job.ranks.values() if memory.exit is not None]
    if not gone or len(gone) < len(job.ranks) or launcher_alive:
        return None
    last = max(memory.exit_unix_ns for memory in gone)
    bad = [memory for memory in gone if not went_well(memory)]
    if not bad:
        return Ended("all ranks finished", None, last)
    if was_cancelled(gone, job.policy):
        return Ended("cancelled", None, last)
    first = min(bad, key=failed_at)
    assert first.exit is not None
    how = exit_text(first.exit.code, first.exit.signal, first.exit.oom)
    return Ended(f"rank {first.hello.rank} went first: {how}", first.hello.rank, last)
