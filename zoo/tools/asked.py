"""The common part of tools that are asked once: when they are asked, and which process is which
rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tools.benchmarks.stage import Stage
from zoo.tool import Job, Look

AFTER_FAULT_S = 8.0
"""Somebody notices and looks so long after the fault. A torchrun whose rank has failed ends the
other ranks before that.
"""
HEALTHY_LOOKS_S = (4.0, 6.0)
"""When a healthy job is looked at: seconds after its start, and after the look before."""
OVER = "the job was over when it was asked"


def asked(job: Job, ask: Callable[[], Look]) -> Iterator[Look]:
    """One look after the fault; of a healthy job two, or as many as it lives for.

    What takes longer to show is looked at when it should be named.
    """
    if not job.case.healthy:
        fault = job.wait_for_fault()
        after_s = AFTER_FAULT_S if job.case.expected[0][0] == "straggler" else job.case.within_s
        time.sleep(max(0.0, (after_s or AFTER_FAULT_S) - (time.time_ns() - fault) / 1e9))
        yield ask()
        return
    for seconds in HEALTHY_LOOKS_S:
        time.sleep(seconds)
        if job.over:
            return
        look = ask()
        yield look if not look.unable else Look(look.at_unix_ns)


def processes(stage: Stage) -> list[int]:
    """All processes of the job that live, by pid."""
    mark = f"DDTOP_STATE={stage.home / 'state'}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and lives(int(path.parent.name)):
                found.append(int(path.parent.name))
    return sorted(found)


def ranks_of(stage: Stage, program: Path, world: int) -> dict[int, int]:
    """Rank -> pid: by RANK in the environment, as torchrun and shells set it. Where the program
    starts its ranks itself they are its `world` youngest generation, in the order of their pids.
    """
    pids = [pid for pid in processes(stage) if _is_rank(pid, program)]
    by_number: dict[int, int] = {}
    for pid in pids:
        number = _variable(pid, "RANK") or _variable(pid, "OMPI_COMM_WORLD_RANK")
        if number is not None and _parent(pid) not in by_number.values():
            by_number.setdefault(int(number), pid)
    if by_number:
        return by_number
    roots = {process.pid for process in stage.processes}
    children = [pid for pid in pids if _parent(pid) in roots]
    return dict(enumerate(children[-world:]))


def lives(pid: int) -> bool:
    """Whether it runs: neither gone nor a zombie."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """The letter of its state; empty if it is gone."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _variable(pid: int, name: str) -> str | None:
    with suppress(OSError):
        for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if part.startswith(f"{name}=".encode()):
                return part.partition(b"=")[2].decode()
    return None


def _is_rank(pid: int, program: Path) -> bool:
    """Whether the process runs the program, or was spawned by one that does; torchrun, mpirun and
    shells do not count.
    """
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(b"torch.distributed.run" in word or b"mpirun" in word for word in words):
            return False
        named = any(word.endswith(program.name.encode()) for word in words)
        spawned = any(b"spawn_main" in word for word in words)
        return b"python" in words[0] and (named or spawned)
    return False


class Tracers(threading.Thread):
    """Measures for how long a tracer holds each process: TracerPid of /proc/PID/status, every 2
    ms. A process that another one already traces cannot be traced by a tool, so it is left out.
    """

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.held_s = {pid: 0.0 for pid in pids if not _is_traced(pid)}
        self._stop_it = threading.Event()

    def __enter__(self) -> Tracers:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join()

    @property
    def longest_s(self) -> float:
        """Of all the processes."""
        return max(self.held_s.values(), default=0.0)

    def run(self) -> None:
        """Until the block ends."""
        before = time.monotonic()
        while not self._stop_it.wait(0.002):
            now = time.monotonic()
            for pid in self.held_s:
                if _is_traced(pid):
                    self.held_s[pid] += now - before
            before = now


def _is_traced(pid: int) -> bool:
    """Not if it is gone."""
    with suppress(OSError):
        return "\nTracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    return False
