"""Finds the processes for `--pid`: the given numbers, the ranks of a launcher, and what /proc shows
of each without special rights.

The rank of a process that was started without ddtop is only known from the environment that its
launcher set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import psutil

from ddtop import launch, registry
from ddtop.agent.identity import IGNORED, LAUNCHER, identify
from ddtop.feeds.outside import jobs
from ddtop.feeds.outside.jobs import (
    HostProcesses,
    OutsideJob,
    OutsideTarget,
    Process,
    job_with,
    jobs_of,
    read_one,
    target_of,
)
from ddtop.launch.command_line import launcher_options, script_base
from ddtop.launch.start import NodeOptions
from ddtop.model.facts import WaitingLauncher
from ddtop.procfs import (
    children,
    in_own_pid_namespace,
    is_python,
    owner_of,
    parents,
    stat_fields,
    wchan,
)
from ddtop.redaction import redact
from ddtop.relay.processes import pyspy, sockets
from ddtop.wire.records import StackFrame
from ddtop.words.units import plural

PIDS_MAX = 1024
ANCESTORS_MAX = 64
LOOK_S, POLL_S = 5.0, 0.01
"""How long the look at one stack may take."""
_DISTRIBUTED = "torch/distributed/"
_CPU_S = 0.25
"""How long CPU time is measured for the line about a process without stacks."""


class PidsError(ValueError):
    """The text after `--pid` has no process ids."""


class NoProcessError(LookupError):
    """None of the processes exists."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The result for `--pid`: the processes by rank, those that cannot be read and why, and what
    was assumed. `job`: the job whose ranks these are, None where they are not all of them."""

    found: tuple[OutsideTarget, ...]
    missing: tuple[tuple[int, str], ...]
    notes: tuple[str, ...]
    job: OutsideJob | None = None


def numbers(text: str) -> tuple[int, ...]:
    """`12,14-16` as numbers, each once, in that order.

    Raises:
        PidsError: the text is neither.
    """
    found: dict[int, None] = {}
    for part in text.replace(" ", ",").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not _is_pid(first) or (dash and not _is_pid(last)):
            raise PidsError(f"{part!r} is not a process id; --pid takes numbers: --pid 12,14-16")
        low, high = int(first), int(last or first)
        if high < low or high - low >= PIDS_MAX:
            raise PidsError(f"{part!r} is not a range of at most {PIDS_MAX} process ids")
        found.update(dict.fromkeys(range(low, high + 1)))
    if not 0 < len(found) <= PIDS_MAX:
        raise PidsError(f"--pid takes 1 to {PIDS_MAX} process ids: --pid 12,14-16")
    return tuple(found)


def find(text: str, of_job: bool = False) -> Targets:
    """The processes that `text` selects; a launcher selects its ranks. `of_job`: a single rank, or
    a process that it has started, selects all ranks of its job on this host.

    Raises:
        PidsError: the text has no process ids.
        NoProcessError: none of them exists.
    """
    asked = numbers(text)
    missing: list[tuple[int, str]] = []
    notes: list[str | None] = []
    found: dict[int, OutsideTarget] = {}
    host, spawned = jobs.read(), False
    unmet: OutsideJob | None = None
    for pid in asked:
        seen = _look(host, pid)
        if isinstance(seen, str):
            missing.append((pid, seen))
            continue
        job, named = _job_of(host, pid, of_job and len(asked) == 1, _is_rank(seen))
        ranks = list(job.ranks) if job is not None else _ranks_of(host, seen)
        if not ranks and seen.rank < 0:
            unmet = job = job_with(host, pid, _communicates)
            ranks = list(job.ranks) if job is not None else []
        if ranks:
            pids = ", ".join(str(target.pid) for target in ranks)
            notes.append(
                f"pid {pid} ({launcher_name(seen)}) stands for its {plural(len(ranks), 'rank')}:"
                f" pid {pids}"
                if job is None or named is None
                else _of_rank(pid, named, job)
            )
            notes += job.notes if job is not None else ()
            spawned = spawned or any(target.guessed for target in ranks)
        elif _is_foreign(pid) and (ranks := _children_of(host, pid)):
            pids = ", ".join(str(target.pid) for target in ranks)
            notes.append(
                f"pid {pid} ({launcher_name(seen)}) belongs to another user, so the environment of"
                f" its Pythons cannot be read, and their numbers are the order of their start: pid"
                f" {pids}"
            )
            spawned = True
        elif seen.rank < 0 and (
            more := [child for child in _spawned(host, pid) if child.pid not in asked]
        ):
            others = ",".join(str(child.pid) for child in more)
            notes.append(
                f"pid {pid} has started other Pythons, which may be the ranks: --pid {others}"
            )
        found.update({target.pid: target for target in ranks or [seen]})
    if not found:
        whys = dict(missing)
        listed = "; ".join(dict.fromkeys(whys.values()))
        raise NoProcessError(f"{listed}; {_where_to_look()}")
    targets, assumed = number_targets(list(found.values()) if spawned else _with_workers(found))
    texts = (*notes, None if spawned else assumed)
    own = {target.pid for target in targets if not target.worker}
    whole = next((job for job in jobs_of(host) if {rank.pid for rank in job.ranks} == own), None)
    if whole is None and unmet is not None and len(unmet.ranks) == len(targets):
        whole = unmet
    return Targets(targets, tuple(missing), tuple(text for text in texts if text), whole)


def _job_of(
    host: HostProcesses, pid: int, of_rank: bool, numbered: bool
) -> tuple[OutsideJob | None, OutsideTarget | None]:
    """The job for which this process stands: it is its launcher, or (`of_rank`) one of several
    ranks, which is told too, or below one. `numbered`: it is no launcher, by its environment."""
    around = [pid, *(above.pid for above in host.ancestors(pid))] if of_rank else []
    ranks = {rank.pid: (job, rank) for job in jobs_of(host) for rank in job.ranks}
    launched = None if numbered or pid in ranks else job_with(host, pid)
    found = next((ranks[one] for one in around if one in ranks), None)
    several = launched is None and found is not None and len(found[0].ranks) > 1
    return found if several and found is not None else (launched, None)


def _of_rank(pid: int, own: OutsideTarget, job: OutsideJob) -> str:
    """What a user is told who has named one process, and sees all ranks."""
    is_it = "is" if pid == own.pid else f"was started by pid {own.pid}, which is"
    here = len(job.ranks)
    what = "all of them" if here == job.world_size else f"the {here} of this host"
    alone = f"ddtop stacks --pid {pid} reads it alone"
    return f"pid {pid} {is_it} rank {own.rank} of {job.world_size}: looking at {what}; {alone}"


def _where_to_look() -> str:
    if in_own_pid_namespace():
        return (
            "this is a container or the like, which has pids of its own and hides those of others:"
            " run ddtop on the host, or beside the job: kubectl debug --target=CONTAINER"
            " --profile=sysadmin, docker run --pid=container:NAME --cap-add SYS_PTRACE"
        )
    return "the processes of this host: ps -u $USER -o pid,args"


def _is_rank(target: OutsideTarget) -> bool:
    """Whether a launcher has numbered this Python, and it is not a launcher itself."""
    numbered = launch.rank(target.environment, any_task=False) is not None
    return numbered and is_python(target.pid) and not _launches(target)


def number_targets(targets: list[OutsideTarget]) -> tuple[tuple[OutsideTarget, ...], str | None]:
    """The targets by rank, and what had to be assumed. If two claim the same number, all ranks are
    numbered in the order of the list."""
    known = [target.rank for target in targets if target.rank >= 0 and not target.worker]
    if len(set(known)) < len(known):
        numbers = tuple(
            replace(target, rank=at, guessed=True, worker=False)
            for at, target in enumerate(targets)
        )
        return (
            numbers,
            "two of these processes have the same rank in their environment, so neither is trusted",
        )
    free = (number for number in range(len(targets)) if number not in known)
    given = [
        target if target.rank >= 0 else replace(target, rank=next(free), guessed=True)
        for target in targets
    ]
    guessed = [str(target.pid) for target in given if target.guessed]
    ranks = tuple(sorted(given, key=lambda target: (target.rank, target.worker)))
    return ranks, f"no rank in the environment of pid {', '.join(guessed)}" if guessed else None


def _with_workers(found: Mapping[int, OutsideTarget]) -> list[OutsideTarget]:
    """`pgrep -f train.py` lists the DataLoader workers too: same command line, same environment."""
    marked = []
    for target in found.values():
        worker = target.rank >= 0 and any(
            pid in found and found[pid].rank == target.rank
            for pid in parents(target.pid, ANCESTORS_MAX)
        )
        marked.append(replace(target, worker=worker))
    return marked


def launcher_name(target: OutsideTarget) -> str:
    """The name of the program, such as `torchrun`."""
    words = [script_base(word) for word in target.argv[:3] if not word.startswith("-")]
    return words[1] if len(words) > 1 and words[0].startswith("python") else (words or ["?"])[0]


def facts_line(pid: int) -> str:
    """A line from /proc about a process without stacks. Check: `ps -o stat,wchan,pcpu,nlwp,args -p
    PID`."""
    try:
        process = psutil.Process(pid)
        before = process.cpu_times()
        time.sleep(_CPU_S)
        after = process.cpu_times()
        cpu = (after.user + after.system - before.user - before.system) / _CPU_S
        words = [
            process.status(),
            f"{max(cpu, 0.0):.0%} CPU",
            plural(process.num_threads(), "thread"),
        ]
        count = len(process.children())
        words.append("1 child" if count == 1 else f"{count} children")
    except psutil.Error:
        return f"pid {pid}: nothing more can be read"
    if (function := wchan(pid)) is not None:
        words.insert(1, f"in {function}")
    return f"pid {pid}: {', '.join(words)}"


def _look(host: HostProcesses, pid: int) -> OutsideTarget | str:
    """The process, or why it cannot be read."""
    process = host.processes.get(pid)
    if process is None:
        return f"there is no process {pid}"
    return _numbered(process) if process.argv else f"pid {pid} is a zombie or part of the kernel"


def _numbered(process: Process) -> OutsideTarget:
    """The process with the number that its launcher gave it, or -1."""
    rank = launch.rank(process.environment)
    return target_of(process, -1 if rank is None else rank, guessed=False)


def _ranks_of(host: HostProcesses, target: OutsideTarget) -> list[OutsideTarget]:
    """The topmost Python processes below it that a launcher has numbered, if it is not such a one
    itself."""
    is_launcher = _launches(target)
    # srun numbers tasks of any kind, as a shell script that starts torchrun.
    if _is_rank(target):
        return []
    targets: list[OutsideTarget] = []
    waiting = [target.pid]
    while waiting and len(targets) < PIDS_MAX:
        for child in map(_numbered, host.children(waiting.pop())):
            if child.rank >= 0 and is_python(child.pid) and not _launches(child):
                targets.append(child)
            else:
                waiting.append(child.pid)
    # A process that is not a launcher and whose children inherited a number: they are its helpers.
    if (
        not is_launcher
        and is_python(target.pid)
        and not any("RANK" in one.environment for one in targets)
    ):
        return []
    return sorted(targets, key=lambda one: (one.rank, one.pid))


def _spawned(host: HostProcesses, pid: int) -> list[Process]:
    """Its Python children that are not helpers of multiprocessing, in the order of their start:
    mp.spawn gives its ranks no environment of their own."""
    return [
        child
        for child in host.children(pid)
        if child.python
        and child.argv
        and identify(child.environment, child.argv, child.pid).role != IGNORED
    ]


def _communicates(pid: int) -> bool:
    """Whether a process is in torch.distributed now."""
    return any(_DISTRIBUTED in frame.file for frame in frames_of(pid))


def frames_of(pid: int) -> list[StackFrame]:
    """The frames of all its threads; empty where they cannot be read.

    Source: one `py-spy dump --nonblocking`.
    """
    spy = pyspy.PySpy(pid, nonblocking=True, deadline_s=LOOK_S)
    while (found := spy.poll()) is None:
        time.sleep(POLL_S)
    if not isinstance(found, tuple):
        return []
    return [frame for thread in found for frame in thread.frames]


def _is_foreign(pid: int) -> bool:
    """Whether it belongs to another user, and this one is not root."""
    owner = owner_of(pid)
    return owner is not None and os.getuid() not in (0, owner)


def _children_of(host: HostProcesses, pid: int) -> list[OutsideTarget]:
    """Its Python children, by the order of their start, where no environment may be read."""
    spawned = _spawned(host, pid)
    return [target_of(child, at, guessed=True) for at, child in enumerate(spawned)]


def _launches(target: OutsideTarget) -> bool:
    return identify(target.environment, target.argv, target.pid).role == LAUNCHER


def _is_pid(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0


# -- Launchers that have not started a rank yet: torchrun waits for its nodes, or for the store
#
# Nothing of such a job has an agent, and there is no relay: either would run beside every torchrun,
# for the few that wait. What is known is its command line, its sockets and, where it has no
# connection, its stack. Its age alone says nothing, because the import of torch may take a minute.


STORE_PORT = "29400"
"""torchrun's default of the port of --rdzv-endpoint."""
RANKS_CPU_S = 1.0
"""CPU time of children that it has waited for: so much shows that it has had ranks. The import of
torch alone takes longer."""
_RENDEZVOUS = "/distributed/elastic/rendezvous/"


def without_ranks(host: HostProcesses) -> list[OutsideJob]:
    """The launchers of this host that have no child, each as a job without ranks."""
    parents = {process.parent for process in host.processes.values()}
    processes = [
        process
        for process in host.processes.values()
        if process.pid not in parents and _waits(process)
    ]
    return [
        OutsideJob(
            _name(process),
            (process.pid,),
            (),
            _world_size(process),
            process.owner,
            process.started_unix_ns,
            program=_script(process),
            announced=jobs.is_on(process) and jobs.keeps_here(process),
        )
        for process in processes
    ]


def _name(process: Process) -> str:
    """The name that the agents of its ranks will choose."""
    given = launcher_options(process.argv).get("rdzv_id", "none")
    wanted = process.environment.get("DDTOP_JOB") or (given if given != "none" else "")
    default = f"{_script(process)}-{process.pid}"
    return registry.clean_job_name(redact(wanted) or default)


def _world_size(process: Process) -> int:
    """How many ranks it is to start with the other nodes; 0 where only it knows."""
    given = launcher_options(process.argv).get("nproc_per_node", "1")
    return _nodes(process).nodes_min * int(given) if given.isascii() and given.isdigit() else 0


def _script(process: Process) -> str:
    return redact(identify(process.environment, process.argv, process.pid).script)


def _waits(process: Process) -> bool:
    """Whether it is a launcher that has not had ranks and can wait for others. A single node
    without an address opens its own store."""
    fields = stat_fields(process.pid)
    if fields is None or not process.python or not process.argv:
        return False
    role = identify(process.environment, process.argv, process.pid).role
    given = _nodes(process)
    meets = given.endpoint is not None or given.nodes_max > 1
    return role == LAUNCHER and meets and _cpu_s(fields[13:15]) < RANKS_CPU_S


def _nodes(process: Process) -> NodeOptions:
    return launch.node_options(process.environment, lambda: iter([process.argv]))


def _cpu_s(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def announced_ranks(pid: int) -> int:
    """How many ranks a launcher is to start with those of the other nodes; 0 where that is not
    known."""
    process = read_one(pid)
    return _world_size(process) if process is not None and _waits(process) else 0


def waiting_launchers(pids: Iterable[int]) -> tuple[WaitingLauncher, ...]:
    """Those of these processes that are launchers and wait, and what for."""
    launchers = [
        process for process in map(read_one, pids) if process is not None and _waits(process)
    ]
    return tuple([look(process) for process in launchers if not children(process.pid)])


def look(process: Process) -> WaitingLauncher:
    """What this launcher waits for."""
    given = _nodes(process)
    place = given.endpoint or f"localhost:{launch.MASTER_PORT}"
    address, _, text = (place if ":" in place else f"{place}:{STORE_PORT}").rpartition(":")
    port = int(text) if text.isdigit() else 0
    own = sockets.inodes(process.pid) or ()
    connections = [each for each in sockets.table(process.pid) or () if each.inode in own]
    linked = [each for each in connections if each.state == "ESTABLISHED"]
    ends = {(each.local, each.port) for each in linked if each.remote_port == port}
    there, waited_s = None, 0.0
    if any(each.state == "LISTEN" and each.port == port for each in connections):
        peers = {(each.remote, each.remote_port) for each in linked if each.port == port}
        there = 1 + len(peers - ends)
    if ends or _dials(process.pid):
        used_s = _cpu_s((stat_fields(process.pid) or [])[11:13])
        waited_s = max(0.0, time.time() - process.started_unix_ns / 1e9 - used_s)
    return WaitingLauncher(
        process.pid,
        _script(process),
        waited_s,
        f"{address}:{port}",
        given.nodes_min,
        there,
        None if ends else sockets.connect(address, port)[0],
    )


def _dials(pid: int) -> bool:
    """Whether it is in torch's rendezvous, not in an import of it."""
    return any(
        _RENDEZVOUS in frame.file and frame.function != "<module>" for frame in frames_of(pid)
    )
