"""Which process has a lock in memory that processes share: a lock of multiprocessing, the writers'
lock of a database file.

Source: the address of the futex in /proc/PID/syscall, and /proc/PID/maps of the processes that may
share it. A mutex of pthread says in its memory which thread has it. A semaphore does not: then the
only process counts that has mapped it and does not wait for it. Check: `grep sem.mp /proc/*/maps`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddtop.procfs import children, parents, read, stat_fields, status, status_of, tasks
from ddtop.relay.processes import sockets

ABOVE_MAX, FAMILY_MAX, TASKS_MAX = 2, 64, 16
"""Parents of the process, processes of its family, and threads of each that are looked at."""
_PRIVATE, _TID = 128, 0x3FFFFFFF
MUTEX = struct.Struct("=IIi")
"""Of a mutex of glibc: the word of the futex, which is the thread that has it if the mutex is
robust; how often it was taken; the thread."""
_GONE = ("Z", "X")


class Lock(NamedTuple):
    """A lock in shared memory. `memory`: device and inode of that memory. `at`: the place in it."""

    memory: tuple[str, str]
    at: int
    path: str


def lock_of(pid: int, name: str | None, arguments: Sequence[int]) -> Lock | None:
    """The lock in shared memory for which this call waits; None if it waits for another thread."""
    if name != "futex" or len(arguments) < 2 or arguments[1] & _PRIVATE:
        return None
    for line in (read(pid, "maps") or b"").decode(errors="replace").splitlines():
        words = line.split(maxsplit=5)
        start, end = (int(one, 16) for one in words[0].split("-"))
        if start <= arguments[0] < end:
            shared = words[1].endswith("s") and words[4] != "0" and len(words) > 5
            at = arguments[0] - start + int(words[2], 16)
            return Lock((words[3], words[4]), at, words[5]) if shared else None
    return None


def holder(pid: int, lock: Lock, memory: bytes) -> int | None:
    """The other process that has the mutex with these bytes; None if it is no mutex, or its thread
    is gone. The words of a semaphore may be the number of a thread too, of any process: so it must
    have the lock mapped."""
    if len(memory) != MUTEX.size:
        return None
    word, _, owner = MUTEX.unpack(memory)
    found = (int(status_of(status(tid), "Tgid") or 0) for tid in (word & _TID, owner) if tid > 2)
    return next((one for one in found if one not in (0, pid) and _maps(one, lock)), None)


def others(pid: int, lock: Lock, waiting: Iterable[int]) -> tuple[int, ...] | None:
    """The processes of its family that have this lock mapped and do not wait for it, nor for one
    that does (`waiting`); None if there are too many to look at."""
    above = parents(pid, ABOVE_MAX)
    family = dict.fromkeys(
        (*children(pid), *above[:1], *(one for at in above for one in children(at)))
    )
    if len(family) > FAMILY_MAX:
        return None
    theirs = [one for one in family if one != pid and one not in set(waiting) and _maps(one, lock)]
    return tuple(one for one in theirs if not _waits(one, lock))


def _maps(pid: int, lock: Lock) -> bool:
    if (stat_fields(pid) or "Z")[0] in _GONE:
        return False
    device, inode = lock.memory
    return f" {device} {inode} ".encode() in (read(pid, "maps") or b"")


def _waits(pid: int, lock: Lock) -> bool:
    """Whether a thread of this process waits for it too."""
    calls = ((read(task, "syscall") or b"").decode() for task in tasks(pid)[:TASKS_MAX])
    return any(lock_of(pid, *sockets.parsed_wait(call)) == lock for call in calls)
