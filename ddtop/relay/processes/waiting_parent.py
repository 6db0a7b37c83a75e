"""A parent that waits for "any child" and has none but relays: it would wait until this one ends.

Problem: a relay is nobody's child on purpose, so the kernel gives it to the nearest subreaper. In a
container that is the process with pid 1. A launcher that loops on `os.wait()` until there are no
more children then waits for the relay. What does not work: a process in between that stays. It
would be a copy of the rank, and `exec` makes it visible to `wait` again. What we do: look once a
second whether a parent waits like that, and end if one does. A living agent starts another relay,
which ends again if it is in the way again. What remains uncertain: if /proc does not say in which
call a process sleeps, nothing is done."""

from __future__ import annotations

import os
from pathlib import Path

from ddtop.policy import Policy
from ddtop.procfs import children, wchan

_WAITS = ("do_wait", "kernel_waitid", "kernel_wait4")
_OURS = b"\0-m\0ddtop.relay\0"


class WaitingParent:
    """Used by the relay's loop only, about once a second."""

    def __init__(self, policy: Policy) -> None:
        self._found, self._enough = 0, policy.parent_waits_looks

    def look(self) -> bool:
        """Whether our parent can only go on when we have ended.

        Check: `cat /proc/PPID/wchan`, `pgrep -P PPID`.
        """
        parent = os.getppid()
        theirs = children(parent) if parent > 0 and _waits(parent) else ()
        # Where the kernel does not list children there are none.
        is_so = os.getpid() in theirs and all(_is_relay(pid) for pid in theirs)
        self._found = self._found + 1 if is_so else 0
        return self._found >= self._enough


def _waits(pid: int) -> bool:
    """One of its threads is in wait() for a child."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(wchan(f"{pid}/task/{thread}") in _WAITS for thread in threads[:64])


def _is_relay(pid: int) -> bool:
    try:
        return _OURS in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # It has ended in between, so nothing has to be done.
        return True
