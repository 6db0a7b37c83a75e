"""Jobs among the processes of this host that were started without ddtop.

A job is a group of Python processes with a launcher's rank in their environment, or the children
of one Python that talk to each other over TCP: `mp.spawn` gives its ranks no variables, so the
order of their start is their number. Everything here is pure; `outside_processes` reads /proc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from ddtop import launch
from ddtop.agent.identity import IGNORED, LAUNCHER, identify
from ddtop.grouped import grouped
from ddtop.launch.command_line import script_base
from ddtop.procfs import (
    CLOCK_TICK_NS,
    command_line,
    environment_of,
    is_python,
    owner_of,
    stat_fields,
)
from ddtop.redaction import redact
from ddtop.relay.processes import sockets
from ddtop.relay.processes.candidates import has_agent
from ddtop.wire.records import Exit
from ddtop.words.sentences import rank_list

# -- The processes of this host, from /proc without special rights: one record per process
#
# `read` is the main function that accesses /proc. `outside_jobs` finds jobs in its result, so tests
# can pass an invented host.


_PARENT, _START, _EXIT_STATUS = 1, 19, 49
"""Fields of /proc/PID/stat, counted from the third."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    `state` is the letter of /proc/PID/stat. `exit_status` is the wait status of a zombie, else
    None. `environment` is empty also where it belongs to another user, or is hidden by a rule of
    the kernel: then nothing but its command line is known. `python`: its program is a Python.
    """

    pid: int
    parent: int
    owner: int
    start_ticks: int
    state: str = "S"
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: bool = False
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
        processes = [process for process in self.processes.values() if process.parent == pid]
        return sorted(processes, key=lambda process: (process.start_ticks, process.pid))

    def ancestors(self, pid: int) -> list[Process]:
        """Its parent, the parent of that, and so on; never `init`."""
        processes: list[Process] = []
        process = self.processes.get(pid)
        while process is not None and (above := self.processes.get(process.parent)) is not None:
            if above.pid <= 1 or above in processes:
                break
            processes.append(above)
            process = above
        return processes


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
        process = read_one(int(name), boot_unix_ns)
        if process is not None and (not uid or process.owner == uid):
            found[process.pid] = process
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
            pid: process
            for pid, process in host.processes.items()
            if all(process.environment.get(name, value) == value for name, value in own.items())
        },
    )


def read_one(pid: int, boot_unix_ns: int | None = None) -> Process | None:
    """The process with this pid; None if there is none."""
    fields, owner, argv = stat_fields(pid), owner_of(pid), command_line(pid)
    if fields is None or owner is None or argv is None:
        return None
    boot_unix_ns = _boot_unix_ns() if boot_unix_ns is None else boot_unix_ns
    environment = environment_of(pid) if argv else {}
    ticks = int(fields[_START])
    return Process(
        pid=pid,
        parent=int(fields[_PARENT]),
        owner=owner,
        start_ticks=ticks,
        state=fields[0],
        argv=argv,
        environment=environment or {},
        python=is_python(pid),
        exit_status=_exit_status(fields) if fields[0] in "ZX" else None,
        started_unix_ns=boot_unix_ns + ticks * CLOCK_TICK_NS,
    )


def own_connections(pid: int) -> frozenset[int] | None:
    """The TCP sockets of a process, by their inodes: those that listen, connect or are connected.

    Source: /proc/PID/fd and /proc/PID/net/tcp. Check: `ss -tanp`.
    """
    own = sockets.inodes(pid)
    table = sockets.table(pid)
    if own is None or table is None:
        return None
    return frozenset(connection.inode for connection in table if connection.inode in own)


def _boot_unix_ns() -> int:
    """When the host was started, unix ns. Source: btime of /proc/stat."""
    try:
        text = Path("/proc/stat").read_text()
        return int(text.partition("\nbtime ")[2].split(None, 1)[0]) * 1_000_000_000
    except (OSError, ValueError, IndexError):
        return 0


def _exit_status(fields: list[str]) -> int | None:
    try:
        return int(fields[_EXIT_STATUS])
    except (IndexError, ValueError):
        return None


# -- Jobs among the processes of this host


LEAST_SPAWNED = 2
"""A single child that uses the network is a server or a download, not a job."""
LOOKED_AT_MAX = 8
"""At most this many stacks are read to find out whether a program's children are ranks."""
TOGETHER_TICKS = 6000
"""A minute. A program starts its ranks one after the other; a child that ended long before is not a
rank."""
_SPAWNED = "--multiprocessing-fork"
_LOOPBACK = re.compile(r"localhost|127\.|::1$|ip6-localhost")
_LAUNCHERS = launch.programs()


@dataclass(frozen=True, slots=True)
class OutsideTarget:
    """One process to look at.

    `rank` is from its environment, or its place in the order of the starts where `guessed`.
    `worker`: a child of another one with the same rank, as DataLoader workers are.
    """

    pid: int
    start_ticks: int
    rank: int
    guessed: bool
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    started_unix_ns: int = 0
    worker: bool = False

    @property
    def script(self) -> str:
        """Name of the program, without folder."""
        return identify(self.environment, self.argv, self.pid).script

    @property
    def world_size(self) -> int | None:
        """Size of the world that its launcher announced."""
        return launch.world_size(self.environment)

    @property
    def local_rank(self) -> int | None:
        """Its number on this host."""
        return launch.local_rank(self.environment)


@dataclass(frozen=True, slots=True)
class Departed:
    """A rank of this host that no longer has a process.

    `pid` and `exit_status` (a wait status) are those of its zombie; None if its parent has reaped
    it. `by_torchrun`: a living torchrun has started it, and would have ended the other ranks after
    a failure.
    """

    rank: int
    pid: int | None = None
    exit_status: int | None = None
    by_torchrun: bool = False


def exit_of(departed: Departed, order: int) -> Exit:
    """Its end as a record, the `order`th of its job."""
    code = signal_number = None
    how = "unknown"
    if departed.exit_status is not None:
        value, how = os.waitstatus_to_exitcode(departed.exit_status), "zombie"
        code, signal_number = (value, None) if value >= 0 else (None, -value)
    elif departed.by_torchrun:
        # torchrun ends all ranks of the host as soon as one fails.
        code, how = 0, "launcher"
    return Exit(departed.rank, departed.pid or 0, code, signal_number, None, order, how)


@dataclass(frozen=True, slots=True)
class OutsideJob:
    """One job that was started without ddtop, as far as it is on this host.

    `launchers`: the processes that started the ranks, torchrun or mpirun or a Python or a shell.
    `world_size`: as announced, else how many ranks were seen; 0 of a launcher that has started none
    and does not tell it. `notes`: what had to be assumed. `program`: what such a launcher is to
    start. `announced`: it was started with DDTOP=1, and its relay will have this name.
    """

    name: str
    launchers: tuple[int, ...]
    ranks: tuple[OutsideTarget, ...]
    world_size: int
    owner: int
    started_unix_ns: int
    departed: tuple[Departed, ...] = ()
    notes: tuple[str, ...] = ()
    program: str = ""
    announced: bool = False

    @property
    def script(self) -> str:
        """Name of the program, without folder."""
        return self.ranks[0].script if self.ranks else self.program

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes: the launchers and the ranks."""
        return (*self.launchers, *(target.pid for target in self.ranks))


def jobs_of(host: HostProcesses) -> tuple[OutsideJob, ...]:
    """The jobs of this host that no agent watches, the newest first."""
    numbered = _numbered_processes(host)
    jobs = [*_by_variables(host, numbered)]
    taken = {pid for job in jobs for pid in job.pids}
    below = {process.pid for process in numbered}
    jobs += _spawned_jobs(host, taken | below)
    return tuple(sorted(jobs, key=lambda job: -job.started_unix_ns))


def job_with(
    host: HostProcesses, pid: int, communicates: Callable[[int], bool] | None = None
) -> OutsideJob | None:
    """The job of which this process is a launcher, or an ancestor of all launchers.

    None for a shell that has started several jobs. `communicates`: whether a process is in
    torch.distributed, by its stack. It is asked of children without variables and connections, as
    ranks are that have not met yet.
    """
    jobs = jobs_of(host)
    started = [job for job in jobs if pid in job.launchers]
    above = started or [
        job for job in jobs if any(_is_below(host, rank.pid, pid) for rank in job.ranks)
    ]
    if not above and communicates is not None:
        return next(_unmet_jobs(host, pid, communicates), None)
    return above[0] if len(above) == 1 else None


def _unmet_jobs(
    host: HostProcesses, pid: int, communicates: Callable[[int], bool]
) -> Iterator[OutsideJob]:
    """The Python children of this process, or of a Python below it, of which one communicates."""
    for parent in (process for process in host.processes.values() if process.python):
        if parent.pid != pid and not _is_below(host, parent.pid, pid):
            continue
        family = [process for process in host.children(parent.pid) if _may_be_rank(process)]
        if len(family) < LEAST_SPAWNED or any(host.watched(process.pid) for process in family):
            continue
        if any(communicates(process.pid) for process in family[:LOOKED_AT_MAX]):
            yield _spawned_job(parent, family)


# -- launchers of jobs that are started with ddtop, before their first rank


def launchers_of(
    host: HostProcesses, name: str | None, own_pid: int
) -> dict[tuple[int, int], Process]:
    """The processes that start the job of this name (its beginning suffices; None: any job), by pid
    and start time, but for the ancestors of `own_pid`.

    The Python or the mpirun that starts ranks tells the job. What counts is the topmost process
    above it that was started with DDTOP too: a script may start its launcher late, or again.
    """
    own_pids = {own_pid, *(process.pid for process in host.ancestors(own_pid))}
    found = {}
    for process in host.processes.values():
        if process.pid not in own_pids and _launches(process, name or ""):
            above = [process, *host.ancestors(process.pid)]
            *_, top = takewhile(lambda up: up.pid not in own_pids and is_on(up), above)
            found[top.pid, top.start_ticks] = top
    return found


def _launches(process: Process, name: str) -> bool:
    if not is_on(process) or process.state in "ZX" or not process.argv:
        return False
    identity = identify(process.environment, process.argv, process.pid)
    job = process.environment.get("DDTOP_JOB") or script_base(identity.script)
    starts = _program(process) in _LAUNCHERS or (process.python and identity.role != IGNORED)
    return starts and job.startswith(name)


def is_on(process: Process) -> bool:
    """Whether it was started with DDTOP=1."""
    return process.environment.get("DDTOP", "0") not in ("", "0")


def keeps_here(process: Process) -> bool:
    """Whether its job will be in the state folder that this command reads."""
    name = "DDTOP_STATE"
    return process.environment.get(name) == os.environ.get(name)


# -- ranks with variables


def _numbered_processes(host: HostProcesses) -> list[Process]:
    """The topmost Pythons that a launcher has numbered; their helpers inherit the variables."""
    processes = []
    for process in host.processes.values():
        if not _may_be_rank(process):
            continue
        if (
            launch.rank(process.environment) is None
            or launch.world_size(process.environment) is None
        ):
            continue
        own = launch.fingerprint(process.environment)
        above = host.ancestors(process.pid)
        if any(_may_be_rank(other) and _same_number(other, own) for other in above):
            continue
        if not host.watched(process.pid):
            processes.append(process)
    # srun numbers the task that starts torchrun, too: ranks below it are the ranks.
    below = {above.pid for process in processes for above in host.ancestors(process.pid)}
    return [
        process
        for process in processes
        if process.pid not in below or launch.rank(process.environment, any_task=False) is not None
    ]


def _may_be_rank(process: Process) -> bool:
    if not process.python or process.state in "ZX" or not process.argv:
        return False
    return identify(process.environment, process.argv, process.pid).role not in (LAUNCHER, IGNORED)


def _same_number(other: Process, fingerprint: str) -> bool:
    numbered = launch.rank(other.environment) is not None
    return numbered and launch.fingerprint(other.environment) == fingerprint


def _by_variables(host: HostProcesses, numbered: list[Process]) -> Iterable[OutsideJob]:
    places = grouped((_meeting_place(host, process), process) for process in numbered)
    for members in places.values():
        numbers = [launch.rank(process.environment) for process in members]
        if len(set(numbers)) == len(numbers):
            yield _job(host, members)
            continue
        # Two jobs with the same variables: each launcher has its own.
        parts = grouped((_launcher_of(host, member), member) for member in members)
        for part in parts.values():
            yield _job(host, part)


def _meeting_place(host: HostProcesses, process: Process) -> tuple[object, ...]:
    """The values that all ranks of one job have in common, with any launcher."""
    environ = process.environment
    start = launch.find_start(environ, lambda: [up.argv for up in host.ancestors(process.pid)])
    size = launch.world_size(environ)
    if "MASTER_PORT" in environ:
        place: tuple[object, ...] = (environ.get("MASTER_ADDR"), environ["MASTER_PORT"])
    elif start is not None:
        place = (start.run,)
    else:
        place = (_launcher_of(host, process),)
    return (process.owner, size, *place, environ.get("TORCHELASTIC_RUN_ID"))


def _launcher_of(host: HostProcesses, process: Process) -> int:
    """The nearest launcher above a rank, else its parent."""
    above = host.ancestors(process.pid)
    for other in above:
        role = identify(other.environment, other.argv, other.pid).role
        if role == LAUNCHER or _program(other) in _LAUNCHERS:
            return other.pid
    return above[0].pid if above else process.parent


def _program(process: Process) -> str:
    return os.path.basename(process.argv[0]) if process.argv else ""


def _job(host: HostProcesses, members: list[Process]) -> OutsideJob:
    ranks = tuple(
        sorted(
            (
                target_of(process, launch.rank(process.environment) or 0, guessed=False)
                for process in members
            ),
            key=lambda target: target.rank,
        )
    )
    launchers = tuple(sorted({_launcher_of(host, process) for process in members}))
    size = max([launch.world_size(process.environment) or 0 for process in members])
    size = max(size, ranks[-1].rank + 1)
    job = OutsideJob(
        _name(ranks[0], launchers),
        launchers,
        ranks,
        size,
        members[0].owner,
        min(target.started_unix_ns for target in ranks),
    )
    if not _all_here(members, size):
        return job
    return replace(job, departed=_departed_ranks(host, job, members))


def target_of(process: Process, rank: int, guessed: bool) -> OutsideTarget:
    """The process as this rank."""
    return OutsideTarget(
        process.pid,
        process.start_ticks,
        rank,
        guessed,
        process.argv,
        process.environment,
        process.started_unix_ns,
    )


def _name(first: OutsideTarget, launchers: tuple[int, ...]) -> str:
    # The launcher of plain shells is the shell: a pid of the job is easier to find again.
    script = script_base(first.script) or "python"
    return f"{redact(script)}-{launchers[0] if launchers else first.pid}"


def _all_here(members: list[Process], size: int) -> bool:
    """Whether all ranks of the job are, or were, on this host."""
    for process in members:
        environ = process.environment
        local = launch.local_and_world_size(environ)
        if (local is not None and local[0] == local[1]) or environ.get("GROUP_WORLD_SIZE") == "1":
            return True
        if _LOOPBACK.match(environ.get("MASTER_ADDR", "")):
            return True
    return len(members) == size


def _departed_ranks(
    host: HostProcesses, job: OutsideJob, members: list[Process]
) -> tuple[Departed, ...]:
    """The ranks of a job of one host that have no process; their zombies by the order of starts."""
    here = {target.rank for target in job.ranks}
    absent = [rank for rank in range(job.world_size) if rank not in here]
    if not absent:
        return ()
    torchruns = any(_is_torchrun(host, pid) for pid in job.launchers)
    parents = {process.parent for process in members}
    alive = {target.pid: target.rank for target in job.ranks}
    zombies: dict[int, Process] = {}
    for parent in parents:
        siblings = [
            process
            for process in host.children(parent)
            if process.pid in alive or process.state == "Z"
        ]
        for rank, process in _in_order(siblings, alive):
            if rank in absent:
                zombies[rank] = process
    return tuple(
        Departed(
            rank,
            zombies[rank].pid if rank in zombies else None,
            zombies[rank].exit_status if rank in zombies else None,
            torchruns,
        )
        for rank in absent
    )


def _in_order(siblings: list[Process], alive: Mapping[int, int]) -> Iterable[tuple[int, Process]]:
    """The rank of each zombie, where the living siblings are numbered in the order of starts.

    Nothing if the numbers do not fit, because a zombie may be any child of a shell.
    """
    living = [
        (at, alive[process.pid]) for at, process in enumerate(siblings) if process.pid in alive
    ]
    offsets = {rank - at for at, rank in living}
    if len(offsets) != 1:
        return
    offset = offsets.pop()
    for at, process in enumerate(siblings):
        if process.pid not in alive:
            yield at + offset, process


def _is_torchrun(host: HostProcesses, pid: int) -> bool:
    process = host.processes.get(pid)
    if process is None or process.state in "ZX":
        return False
    return identify(process.environment, process.argv, pid).role == LAUNCHER


def _is_below(host: HostProcesses, pid: int, above: int) -> bool:
    return any(process.pid == above for process in host.ancestors(pid))


# -- ranks without variables


def _spawned_jobs(host: HostProcesses, below_ranks: set[int]) -> Iterable[OutsideJob]:
    """Children of one Python that have TCP connections of their own, such as those of mp.spawn."""
    parents = {
        process.parent
        for process in host.processes.values()
        if process.python and process.pid not in below_ranks
    }
    for pid in sorted(parents):
        parent = host.processes.get(pid)
        if parent is None or not parent.python:
            continue
        if not below_ranks.isdisjoint({pid, *(up.pid for up in host.ancestors(pid))}):
            continue
        family = [
            process for process in host.children(pid) if _is_of_multiprocessing(process, parent)
        ]
        living = [process for process in family if process.state not in "ZX"]
        if len(living) < LEAST_SPAWNED or any(host.watched(process.pid) for process in living):
            continue
        if not all(_talks(host, process, parent) for process in living):
            continue
        apart = [abs(process.start_ticks - living[0].start_ticks) for process in family]
        together = zip(family, apart, strict=True)
        yield _spawned_job(
            parent, [process for process, ticks in together if ticks <= TOGETHER_TICKS]
        )


def _is_of_multiprocessing(process: Process, parent: Process) -> bool:
    if process.state in "ZX":
        return True
    if not process.python or identify(process.environment, process.argv, process.pid).role in (
        IGNORED,
        LAUNCHER,
    ):
        return False
    return _SPAWNED in process.argv or process.argv == parent.argv


def _talks(host: HostProcesses, process: Process, parent: Process) -> bool:
    """Whether it has a TCP connection that it did not inherit: DataLoader workers have none."""
    own = host.connections(process.pid) or frozenset()
    return not own <= (host.connections(parent.pid) or frozenset())


def _spawned_job(parent: Process, family: list[Process]) -> OutsideJob:
    ranks = tuple(
        replace(target_of(process, at, guessed=True), argv=parent.argv)
        for at, process in enumerate(family)
        if process.state not in "ZX"
    )
    gone = tuple(
        Departed(at, process.pid, process.exit_status)
        for at, process in enumerate(family)
        if process.state in "ZX"
    )
    job = OutsideJob(
        _name(replace(ranks[0], argv=parent.argv), (parent.pid,)),
        (parent.pid,),
        ranks,
        len(family),
        parent.owner,
        min(target.started_unix_ns for target in ranks),
        gone,
    )
    numbers = rank_list(tuple(target.rank for target in ranks))
    note = (
        f"no rank in the environment of the processes: {numbers} is the order in which pid"
        f" {parent.pid} started them"
    )
    return replace(job, notes=(note,))
