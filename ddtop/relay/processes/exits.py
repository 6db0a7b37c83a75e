"""How a process ended that is not our child: pidfd, then PIDFD_GET_INFO, then the zombie in /proc.

PIDFD_GET_INFO (Linux >= 6.15) answers after the parent has reaped the process. Before that, the
last field of /proc/PID/stat is the wait status. Where neither can be read the answer is "unknown",
never a guess. The kernel may give no pidfd (an old one, a seccomp filter, no descriptor left). Then
the end of a process is read from /proc, too.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from dataclasses import dataclass

from ddtop.procfs import read_stat, stat_fields

_INFO = struct.Struct(
    "<QQ11Ii"
)  # mask, cgroup id, 11 ids, exit code; 64 bytes, the first published size
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, size)
_TRIES, _BETWEEN_S = 10, 0.002
"""After the end of a process there is a moment in which neither source answers."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Exit code or signal; neither if unknown. `how`: pidfd, zombie or unknown."""

    code: int | None
    signal: int | None
    how: str


def is_gone(pid: int, start_ticks: int) -> bool | None:
    """Whether the process that started then has ended.

    None where /proc cannot be read now, as with no descriptor left.

    A process lives as long as one of its threads, even if its main thread has ended. Check:
    `ps -o stat=,nlwp=,lstart= -p PID`.
    """
    try:
        fields = read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError):
        return None
    letter, threads, started = fields[0], int(fields[17]), int(fields[19])
    return started != start_ticks or (letter in ("Z", "X") and threads <= 1)


def ending(pidfd: int | None, pid: int, start_ticks: int | None = None) -> Ending:
    """How a process ended. Check: the launcher prints the same exit code.

    `pidfd`: readable; None if there is none and `is_gone` is true. `start_ticks`: of that process;
    None if its pid cannot have a new owner.
    """
    for _ in range(_TRIES if pidfd is not None else 1):
        status = _from_pidfd(pidfd) if pidfd is not None else None
        if status is not None:
            return _decoded(status, "pidfd")
        status = _from_zombie(pid, start_ticks)
        if status is not None:
            return _decoded(status, "zombie")
        if pidfd is not None:
            time.sleep(_BETWEEN_S)
    return Ending(None, None, "unknown")


def _from_pidfd(pidfd: int) -> int | None:
    buffer = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 13)))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    fields = _INFO.unpack(buffer)
    return int(fields[-1]) if fields[0] & _PIDFD_INFO_EXIT else None


def _from_zombie(pid: int, start_ticks: int | None) -> int | None:
    fields = stat_fields(pid)
    if fields is None or fields[0] != "Z":
        return None
    is_other = start_ticks is not None and int(fields[19]) != start_ticks
    return None if is_other else int(fields[-1])


def _decoded(status: int, how: str) -> Ending:
    if os.WIFSIGNALED(status):
        return Ending(None, os.WTERMSIG(status), how)
    return Ending(os.WEXITSTATUS(status), None, how)
