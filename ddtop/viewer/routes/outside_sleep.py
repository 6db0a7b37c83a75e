"""Since when a thread sleeps: the kernel's scheduler remembers when it last ran.

A hang is minutes old when somebody looks at it from outside, and a look of seconds cannot tell that
from a slow step. The scheduler can.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PROCESSOR = 36
"""Field 39 of /proc/PID/stat, counted from the third: the CPU on which the thread ran last."""
_SLEEPS = "SD"
_LEAST_S = 0.05


def asleep_since_unix_ns(pid: int, tid: int | None = None) -> int | None:
    """When the thread of `pid` last ran, unix ns; None where it runs, or the kernel does not say.

    Source: `se.exec_start` of /proc/PID/task/TID/sched (ms on the clock of the CPU that it ran on;
    kernels with CONFIG_SCHED_DEBUG). That clock stops while the host of a virtual machine runs
    something else, so it is read on the same CPU: a thread of this process moves there for a
    moment. Caveat: the result may be late, by that lost time, and is never early. Check: `grep
    exec_start /proc/PID/sched`.
    """
    task = f"{pid}/task/{tid or pid}"
    before = _ran_at(task)
    cpu, state = _cpu_of(task)
    if before is None or cpu is None or state not in _SLEEPS:
        return None
    here = _clock_of(cpu)
    # In this order: if the thread had run in between, its time would differ now.
    if here is None or _ran_at(task) != before:
        return None
    seconds = (here - before) / 1000
    return time.time_ns() - int(seconds * 1e9) if seconds >= _LEAST_S else None


def _clock_of(cpu: int) -> float | None:
    """The clock of that CPU now, ms; None where this process may not run on it."""
    found: list[float | None] = []

    def read() -> None:
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError:
            return
        found.append(_ran_at(f"self/task/{threading.get_native_id()}"))

    # On a separate thread, so that the CPU affinity of the others does not change.
    thread = threading.Thread(target=read, name="ddtop-cpu-clock", daemon=True)
    thread.start()
    thread.join(1.0)
    return found[0] if found else None


def _ran_at(task: str) -> float | None:
    try:
        text = Path(f"/proc/{task}/sched").read_text()
        line = text[text.index("se.exec_start") :].partition("\n")[0]
        return float(line.rpartition(":")[2])
    except (OSError, ValueError):
        return None


def _cpu_of(task: str) -> tuple[int | None, str]:
    try:
        text = Path(f"/proc/{task}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()
        return int(fields[_PROCESSOR]), fields[0]
    except (OSError, ValueError, IndexError):
        return None, ""
