"""The ends of ranks of a job that was started without ddtop: those that end during the look, and
those that had ended before.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ddtop.relay.processes import sample
from ddtop.relay.processes.exits import is_gone
from ddtop.viewer.routes.outside_jobs import Departed
from ddtop.wire.outside import OutsideLook

STARTED_S = 10.0
"""torchrun starts all ranks of a host at once, so a rank without a process after this time has
ended."""
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
_MASKS = ("SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:")


def ended(living: Iterable[sample.Watched]) -> list[sample.Watched]:
    """The exits of those that have ended by now."""
    poll, held, found = select.poll(), {}, []
    for one in living:
        if one.pidfd is not None:
            held[one.pidfd] = one
            poll.register(one.pidfd, select.POLLIN)
        elif is_gone(one.hello.pid, one.hello.start_ticks):
            found.append(one)
    return found + [held[pidfd] for pidfd, _ in poll.poll(0)]


class DepartedRanks:
    """The ranks of a job that had ended before the first look, at `began_unix_ns`."""

    def __init__(self, departed: Sequence[Departed], pids: Sequence[int]) -> None:
        """`pids`: those of the ranks that live."""
        self.began_unix_ns = time.time_ns()
        may_outlive = any(_outlives_sigterm(pid) for pid in pids)
        self._waiting = [_unknown(one) if may_outlive else one for one in departed]

    def add(self, one: Departed) -> None:
        """Add a rank that ended before it could be watched."""
        self._waiting.append(one)

    def due(
        self, looks: Mapping[int, OutsideLook | None], last_start_unix_ns: int
    ) -> list[Departed]:
        """The ranks that certainly existed. A rank without a zombie may not have been started yet,
        as long as the others are still starting.

        `looks`: the last look at each living rank. `last_start_unix_ns`: when the last of these was
        started.
        """
        known = [look for look in looks.values() if look is not None]
        began = any(look.waits and look.asleep for look in known)
        age_s = (time.time_ns() - last_start_unix_ns) / 1e9
        found = [
            one
            for one in self._waiting
            if one.pid is not None or began or (one.by_torchrun and age_s > STARTED_S)
        ]
        self._waiting = [one for one in self._waiting if one not in found]
        return found


def _unknown(one: Departed) -> Departed:
    """torchrun ends the other ranks when one has failed, but some may survive that. Then a rank
    without a process may have failed."""
    return Departed(one.rank, one.pid, one.exit_status, by_torchrun=False)


def _outlives_sigterm(pid: int) -> bool:
    """Whether SIGTERM would not have ended it at once. Source: the masks of /proc/PID/status."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(_MASKS)]
    return any(mask & _SIGTERM_BIT for mask in masks)
