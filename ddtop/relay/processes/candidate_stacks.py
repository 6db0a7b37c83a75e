"""The stacks of candidates that make no progress, which py-spy reads without pausing them.

A candidate has no agent that could report. It is read only after it has slept from one look to the
next without waking, and once for each such sleep.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ddtop.relay.processes.pyspy import PySpy
from ddtop.wire.records import ProcessState
from ddtop.wire.stacks import StackFrame

READS_AT_ONCE = 2
DEADLINE_NS = 5_000_000_000
"""py-spy takes 0.1 to 1 s for a process with torch; a machine under load takes longer."""
FRAMES_MAX = 12


@dataclass
class _Sleep:
    """One sleep of one candidate. `read` is None before it began and after it ended."""

    switches: int | None
    asked: bool = False
    read: PySpy | None = None
    deadline_mono_ns: int = 0
    frames: tuple[StackFrame, ...] = ()


class CandidateStacks:
    """The reads under way and what they found. For the relay's thread; no call waits."""

    def __init__(self) -> None:
        self._sleeps: dict[int, _Sleep] = {}

    def look(self, state: ProcessState, now_mono_ns: int) -> tuple[StackFrame, ...]:
        """Frames of the candidate's main thread, innermost first; empty while they are unknown.

        Source: `py-spy dump --nonblocking --json --pid PID`. Check: the same command.
        """
        sleep = self._sleeps.get(state.pid)
        if sleep is None or sleep.switches != state.switches or state.state != "S":
            self._end(state.pid)
            self._sleeps[state.pid] = _Sleep(state.switches)
            return ()
        if not sleep.asked and self._reading() < READS_AT_ONCE:
            sleep.asked, sleep.deadline_mono_ns = True, now_mono_ns + DEADLINE_NS
            sleep.read = PySpy(state.pid, nonblocking=True)
        if sleep.read is not None:
            _take(sleep, now_mono_ns)
        return sleep.frames

    def keep(self, pids: Collection[int]) -> None:
        """Forget all other processes: they are no candidates any more."""
        for pid in [pid for pid in self._sleeps if pid not in pids]:
            self._end(pid)

    def _reading(self) -> int:
        return sum(sleep.read is not None for sleep in self._sleeps.values())

    def _end(self, pid: int) -> None:
        sleep = self._sleeps.pop(pid, None)
        if sleep is not None and sleep.read is not None:
            sleep.read.kill()


def _take(sleep: _Sleep, now_mono_ns: int) -> None:
    assert sleep.read is not None
    found = sleep.read.poll()
    if found is None and now_mono_ns > sleep.deadline_mono_ns:
        sleep.read.kill()
        sleep.read = None
    elif found is not None:
        sleep.read = None
        if not isinstance(found, str):
            main = next((thread for thread in found if thread.main), None)
            sleep.frames = main.frames[:FRAMES_MAX] if main is not None else ()
