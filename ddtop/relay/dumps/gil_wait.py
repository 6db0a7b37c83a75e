"""Whether C code holds the GIL of a process, from two looks at its threads.

A silent agent is no proof. On a crowded host, the agent and the thread that runs Python may get no
CPU for seconds, and a relay without CPU has not read what was sent. The proof has two parts. First,
a thread that waits for the GIL wakes every 5 ms to ask for it again. Second, a thread that runs
Python releases the GIL on request, as soon as it has a CPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ddtop.policy import Policy
from ddtop.procfs import stat_fields, switches

THREADS_MAX = 512
"""The limit of threads: a look at this many takes 20 ms."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread. `letter`: its state; `ran_ns`: CPU time; `wakes`: voluntary switches."""

    letter: str
    ran_ns: int
    wakes: int


def threads_of(pid: int) -> dict[int, Thread] | None:
    """All threads of a process; None where they cannot be read, or are too many.

    Source: /proc/PID/task/TID/stat, schedstat and status. Caveat: a thread without a CPU waits in
    state R, and schedstat counts that wait only once it is over.
    """
    found: dict[int, Thread] = {}
    try:
        names = os.listdir(f"/proc/{pid}/task")
        if len(names) > THREADS_MAX:
            return None
        for name in names:
            task = Path(f"/proc/{pid}/task/{name}")
            fields = stat_fields(f"{pid}/task/{name}")
            wakes = switches(task / "status")
            if fields is None or wakes is None:
                return None
            ran_ns = int((task / "schedstat").read_bytes().split(None, 1)[0])
            found[int(name)] = Thread(fields[0], ran_ns, wakes)
    except (OSError, ValueError, IndexError):
        return None
    return found


def python_may_run(
    before: dict[int, Thread] | None,
    now: dict[int, Thread] | None,
    seconds: float,
    policy: Policy,
) -> str | None:
    """Why Python may run in this process, from two looks that lie so far apart.

    None: C code holds the GIL.
    """
    if before is None or now is None:
        return "its threads cannot be read: Python may run"
    if before.keys() != now.keys():
        return "its threads come and go: Python may run"
    waits = {
        number
        for number, thread in now.items()
        if thread.wakes - before[number].wakes >= policy.gil_wakes_per_s * seconds
    }
    if not waits:
        return "no thread of it waits for the GIL: Python may run"
    for number in now.keys() - waits:
        ran_ns = now[number].ran_ns - before[number].ran_ns
        if now[number].letter == "R" and ran_ns < policy.busy_ratio * seconds * 1e9:
            return "a thread of it lacks CPU time: Python may run"
    return None


def is_asleep(pid: int) -> bool:
    """Whether all of its threads sleep; False where that cannot be read."""
    threads = threads_of(pid)
    return threads is not None and all(one.letter in "SD" for one in threads.values())
