"""CPU and memory of another process, as the kernel accounts for them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def cpu_ns(pid: int) -> int:
    """CPU time of all threads that are alive, in nanoseconds. /proc/PID/stat counts in units of 10
    ms.
    """
    used_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            used_ns += int((task / "schedstat").read_text().split()[0])
    return used_ns


def memory_mib(pid: int) -> dict[str, float]:
    """`rss`, `pss` (shared pages divided among the processes that map them) and `private`."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {
        "rss": found["Rss"],
        "pss": found["Pss"],
        "private": found["Private_Clean"] + found["Private_Dirty"],
    }
