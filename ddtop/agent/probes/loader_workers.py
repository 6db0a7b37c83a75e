"""DataLoader workers, read from /proc in their rank: whether they are alive and make progress.

Source: /proc/PID/stat of each worker; io, wchan and task/*/status only after a second of waiting,
when the training makes no progress anyway. Caveat: another user's files cannot be read. Check:
`ps -o stat=,cputimes=,wchan= -p PID`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ddtop.agent.notes import LoaderNotes, attribute_of
from ddtop.procfs import descendants, io_bytes, own_letter, read_stat, switches, wchan
from ddtop.wire.loader import WorkerEnd

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_GONE = (None, "Z", "X")
HELPLESS = (*_GONE, "T", "t")
"""State letters of a process that cannot continue by itself."""
FAMILY_MAX = 32
LOCKS = ("futex", "do_wait_intr")
"""Parts of the wchan of a lock: a semaphore, a mutex of C, a condition."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One line of /proc/PID/stat.

    `letter`: None if there is no such process. `cpu_ns`: with the children it has waited for.
    """

    pid: int
    letter: str | None
    cpu_ns: int

    @property
    def alive(self) -> bool:
        """It is neither gone nor a zombie."""
        return self.letter not in _GONE


@dataclass(frozen=True, slots=True)
class Movement:
    """Counters of the worker that only grow (`wire.records.Loader` explains the fields)."""

    wchan: str | None
    cpu_ns: int
    io_bytes: int | None
    switches: int | None
    locked: int | None


def worker(pid: int) -> Worker:
    """The process now. Check: `ps -o stat=,cputimes= -p PID`."""
    try:
        fields = read_stat(pid)
    except (OSError, ValueError):
        return Worker(pid, None, 0)
    cpu_ns = sum(int(ticks) for ticks in fields[11:15]) * _TICK_NS
    return Worker(pid, own_letter(pid, fields[0]), cpu_ns)


def movement(workers: list[Worker], owing: int) -> Movement:
    """The resources that the worker which must deliver, its children and the other workers have
    used so far."""
    family = (owing, *descendants(owing, FAMILY_MAX))
    cpu_ns = sum(one.cpu_ns for one in workers) + sum(worker(pid).cpu_ns for pid in family[1:])
    io = [value for pid in family if (value := io_bytes(pid)) is not None]
    woken = [value for pid in family if (value := _switches(pid)) is not None]
    # Only of living workers: a dead one has no wait channel.
    wchans = {one.pid: wchan(one.pid) for one in workers if one.alive}
    known = [name for name in wchans.values() if name is not None]
    return Movement(
        wchans.get(owing),
        cpu_ns,
        sum(io) if io else None,
        sum(woken) if woken else None,
        sum(1 for name in known if any(part in name for part in LOCKS)) if known else None,
    )


def first_failed(notes: LoaderNotes) -> WorkerEnd | None:
    """How the first worker of the last iterator failed; None if multiprocessing knows of none.

    Reads what multiprocessing has noted: to ask the process would reap it.
    """
    for process in attribute_of(notes.iterator, "_workers", ()) if notes.iterator else ():
        started = getattr(process, "_popen", None)
        code, method = getattr(started, "returncode", None), getattr(started, "method", "fork")
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if code:
            runs = script if code > 0 and method != "fork" else None
            reruns = bool(runs) and "__main__" not in Path(runs or "").read_text(errors="replace")
            return WorkerEnd(process.pid, code, method, reruns)
    return None


def _switches(pid: int) -> int | None:
    """Voluntary context switches of all threads of a process.

    Check: `grep -h ^vol /proc/PID/task/*/status`.
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return None
    found = [value for thread in threads if (value := switches(thread / "status")) is not None]
    return sum(found) if found else None
