"""The processes of this host, from /proc without special rights: one record per process.

`read` is the main function that accesses /proc. `outside_jobs` finds jobs in its result, so tests
can pass an invented host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddtop.procfs import stat_fields
from ddtop.relay.processes import sockets
from ddtop.relay.processes.candidates import has_agent

_PARENT, _START, _EXIT_STATUS = 1, 19, 49
"""Fields of /proc/PID/stat, counted from the third."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    `state` is the letter of /proc/PID/stat. `exit_status` is the wait status of a zombie, else
    None. `readable` is False where its environment belongs to another user, or is hidden by a rule
    of the kernel: then nothing but its command line is known. `python`: its program is a Python.
    """

    pid: int
    parent: int
    owner: int
    start_ticks: int
    state: str = "S"
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: bool = False
    readable: bool = True
    exit_status: int | None = None
    started_unix_ns: int = 0


@dataclass(frozen=True, slots=True)
class HostProcesses:
    """The processes by pid, and functions that read more about single ones.

    `connections`: the inodes of the TCP sockets that a process has; None where that may not be
    looked at. `watched`: whether an agent of ddtop runs in it.
    """

    processes: Mapping[int, Process]
    connections: Callable[[int], frozenset[int] | None] = lambda _pid: None
    watched: Callable[[int], bool] = lambda _pid: False

    def children(self, pid: int) -> list[Process]:
        """Its children in the order of their start."""
        found = [one for one in self.processes.values() if one.parent == pid]
        return sorted(found, key=lambda one: (one.start_ticks, one.pid))

    def ancestors(self, pid: int) -> list[Process]:
        """Its parent, the parent of that, and so on; never `init`."""
        found: list[Process] = []
        one = self.processes.get(pid)
        while one is not None and (above := self.processes.get(one.parent)) is not None:
            if above.pid <= 1 or above in found:
                break
            found.append(above)
            one = above
        return found


def read(uid: int | None = None) -> HostProcesses:
    """All processes of this user; of all users where `uid` is 0 or None.

    Source: /proc/PID/stat, cmdline, environ and exe. Caveat: the environment is that of the start;
    what a program sets itself later does not show. Check: `ps -eo pid,ppid,args`,
    `tr '\\0' '\\n' < /proc/PID/environ`.
    """
    boot_unix_ns = _boot_unix_ns()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        one = read_one(int(name), boot_unix_ns)
        if one is not None and (not uid or one.owner == uid):
            found[one.pid] = one
    return HostProcesses(found, own_connections, has_agent)


_OF_NODE = ("SLURM_JOB_ID", "SLURMD_NODENAME")


def of_node(host: HostProcesses, environ: Mapping[str, str]) -> HostProcesses:
    """Inside a step of Slurm: the processes of the same job on the same node, and those that Slurm
    did not start. Outside of one: all of them.

    Other jobs may share the node, and a host may be several nodes.
    """
    own = {name: environ[name] for name in _OF_NODE if name in environ}
    return replace(
        host,
        processes={
            pid: one
            for pid, one in host.processes.items()
            if all(one.environment.get(name, value) == value for name, value in own.items())
        },
    )


def read_one(pid: int, boot_unix_ns: int | None = None) -> Process | None:
    """The process with this pid; None if there is none."""
    folder = Path(f"/proc/{pid}")
    fields = stat_fields(pid)
    if fields is None:
        return None
    try:
        owner = folder.stat().st_uid
        argv = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    boot_unix_ns = _boot_unix_ns() if boot_unix_ns is None else boot_unix_ns
    environment = _environment(folder) if argv[0] else {}
    ticks = int(fields[_START])
    return Process(
        pid=pid,
        parent=int(fields[_PARENT]),
        owner=owner,
        start_ticks=ticks,
        state=fields[0],
        argv=tuple(argv[:-1]),
        environment=environment or {},
        python=_is_python(folder, argv),
        readable=environment is not None,
        exit_status=_exit_status(fields) if fields[0] in "ZX" else None,
        started_unix_ns=boot_unix_ns + ticks * _TICK_NS,
    )


def own_connections(pid: int) -> frozenset[int] | None:
    """The TCP sockets of a process, by their inodes: those that listen, connect or are connected.

    Source: /proc/PID/fd and /proc/PID/net/tcp. Check: `ss -tanp`.
    """
    own = sockets.inodes(pid)
    table = sockets.table(pid)
    if own is None or table is None:
        return None
    return frozenset(one.inode for one in table if one.inode in own)


def _boot_unix_ns() -> int:
    """When the host was started, unix ns. Source: btime of /proc/stat."""
    try:
        text = Path("/proc/stat").read_text()
        return int(text.partition("\nbtime ")[2].split(None, 1)[0]) * 1_000_000_000
    except (OSError, ValueError, IndexError):
        return 0


def _environment(folder: Path) -> dict[str, str] | None:
    try:
        entries = folder.joinpath("environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return {name: value for name, _, value in (entry.partition("=") for entry in entries) if name}


def _is_python(folder: Path, argv: list[str]) -> bool:
    try:
        return "python" in folder.joinpath("exe").readlink().name
    except OSError:
        # The link of another user's process may not be read.
        return "python" in os.path.basename(argv[0])


def _exit_status(fields: list[str]) -> int | None:
    try:
        return int(fields[_EXIT_STATUS])
    except (IndexError, ValueError):
        return None
