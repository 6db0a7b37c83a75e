"""Which processes may become a rank that is still missing: those with the marks of the job.

The relay looks for them only while ranks wait in init_process_group. A process of the same shell is
no evidence: people run servers and second jobs there. The marks are the number that a launcher gave
it, a parent chain that leads to a rank, and the same program below the same parent.
Check: `ps -o pid,ppid,sid,args`, `tr '\0' '\n' < /proc/PID/environ`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ddtop import launch, registry
from ddtop.procfs import (
    children,
    command_line,
    command_name,
    descendants,
    environment_of,
    is_python,
    link,
    parents,
    read,
    stat_fields,
)
from ddtop.redaction import redacted_words
from ddtop.relay.processes.pyspy import PySpy
from ddtop.relay.processes.sample import Watched
from ddtop.wire.records import ProcessState, StackFrame

CANDIDATES_MAX = 64
DESCENDANTS_MAX = 128
"""For one rank: even a rank on each CPU of a large host with all its workers stays below."""
ANCESTORS_MAX, COMMAND_CHARACTERS = 8, 120
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "fish", "ksh", "csh", "tcsh"})
_MULTIPLEXERS = frozenset(
    {"tmux", "screen", "login", "sshd", "systemd", "init", "su", "sudo", "cron"}
)
_WORKER = "--multiprocessing-fork"
_SESSION = 3
"""Field 6 of /proc/PID/stat, counted from the third."""
_TORCH = b"libtorch"


@dataclass(frozen=True, slots=True)
class CandidateProcess:
    """A process that may become a rank.

    `rank`: what its environment says; `mark`: why it is of the job, in words.
    """

    pid: int
    rank: int | None
    mark: str


def candidates(inside: Collection[Watched], watched: Collection[Watched]) -> list[CandidateProcess]:
    """The processes that may become the ranks for which the ranks `inside` wait.

    `watched`: all ranks of this host. Called by the relay's thread. It costs some reads of /proc
    for each process below the ranks and their parents.
    """
    known = {process.hello.pid for process in watched}
    taken = {process.hello.rank for process in watched}
    found: dict[int, CandidateProcess] = {}
    for candidate_process in (
        *_of_launchers(inside, known),
        *_of_ranks(watched),
        *_helpers(inside),
    ):
        if (
            candidate_process.pid not in known
            and candidate_process.rank not in taken
            and not has_agent(candidate_process.pid)
        ):
            found.setdefault(candidate_process.pid, candidate_process)
    return list(found.values())[:CANDIDATES_MAX]


def may_launch(inside: Collection[Watched]) -> bool | None:
    """Whether what started these ranks still lives and may start more.

    That is a program or a shell that runs a script, not an interactive shell.
    """
    if not inside:
        return None
    return any(
        may_start_more(pid) for pid in {watched.hello.launcher_pid or 0 for watched in inside}
    )


def torch_loaded(pid: int) -> bool | None:
    """Whether libtorch is mapped into this Python; None for others, and if it cannot be read.

    Check: /proc/PID/maps.
    """
    libraries = read(pid, "maps") if is_python(pid) else None
    return _TORCH in libraries if libraries is not None else None


def has_agent(pid: int) -> bool:
    """It has a state page, so it is a rank already, of this job or of another one."""
    name = f"{registry.pages_folder()}/{pid}-{registry.start_ticks(pid)}.page"
    return any(os.path.exists(f"{folder}/{name}") for folder in ("/dev/shm", "/tmp"))


# -- the number that a launcher gave it


def _of_launchers(
    inside: Collection[Watched], known: Collection[int]
) -> Iterator[CandidateProcess]:
    """Processes that got a rank number from the parent of a rank: torchrun, mpirun, srun, a script.

    Such a process may be a shell that has not started Python yet.
    """
    started = {pid for rank in known for pid in parents(rank, ANCESTORS_MAX)}
    launchers = {watched.hello.launcher_pid or 0: watched.hello.environment for watched in inside}
    for parent, ours in launchers.items():
        above = (environment_of(parent) or {}).items()
        for pid in children(parent) if parent > 1 else ():
            theirs = environment_of(pid) or {}
            # Everything below a torchrun inherits the number that srun gave to the torchrun.
            rank = launch.rank(dict(theirs.items() - above))
            if rank is None or pid in started or not _meets_at_the_same_place(ours, theirs):
                continue
            # A wrapper itself only waits. The Python below it counts; before that, what it runs.
            below = descendants(pid, DESCENDANTS_MAX)
            pythons = [below_pid for below_pid in (pid, *below) if is_python(below_pid)]
            for candidate_pid in pythons or below or [pid]:
                yield CandidateProcess(candidate_pid, rank, f"rank {rank}, started by the launcher")


def _of_ranks(watched: Collection[Watched]) -> Iterator[CandidateProcess]:
    """Processes that a rank has started under another rank number, as Lightning's launcher does.

    DataLoader workers have the number of their own rank.
    """
    for process in watched:
        ours = process.hello.environment
        for pid in descendants(process.hello.pid, DESCENDANTS_MAX):
            theirs = environment_of(pid) or {}
            names = [name for name in ("RANK", "LOCAL_RANK") if name in theirs]
            if not names or not is_python(pid) or not _meets_at_the_same_place(ours, theirs):
                continue
            if names[0] == "RANK":
                rank = _number(theirs, "RANK")
            else:
                local = _number(theirs, "LOCAL_RANK")
                if local == (process.hello.local_rank or 0):
                    continue
                # On the first node both numbers are the same.
                first = not _number(theirs, "NODE_RANK") and not _number(theirs, "GROUP_RANK")
                rank = local if first else None
            yield CandidateProcess(
                pid,
                rank,
                f"{names[0]}={theirs[names[0]][:8]}, started by rank {process.hello.rank}",
            )


def _meets_at_the_same_place(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    return all(
        ours.get(name, theirs.get(name)) == theirs.get(name, ours.get(name))
        for name in ("MASTER_ADDR", "MASTER_PORT")
    )


# -- the same program below the same parent


def _helpers(inside: Collection[Watched]) -> Iterator[CandidateProcess]:
    """Siblings of ranks that passed their number as an argument.

    Children of mp.spawn, or one program several times.
    """
    for rank in inside:
        parent = rank.hello.launcher_pid or 0
        if rank.hello.claim != "init" or parent <= 1:
            continue
        stranger = not may_start_more(parent)
        for pid in children(parent):
            if pid == rank.hello.pid or not is_python(pid) or not same_program(pid, rank.hello.pid):
                continue
            # A prompt may start anything, also the same program in another folder.
            if stranger and not _started_alike(pid, rank.hello.pid):
                continue
            if _meets_at_the_same_place(rank.hello.environment, environment_of(pid) or {}):
                yield CandidateProcess(pid, None, "of the same parent")


def same_program(pid: int, rank: int) -> bool:
    """Both are children of multiprocessing, or run one script or module."""
    one, other = command_line(pid) or (), command_line(rank) or ()
    if one == other:
        return bool(one)
    if _WORKER in one and _WORKER in other:
        return True
    scripts = [_program(pid, one), _program(rank, other)]
    return scripts[0] is not None and scripts[0] == scripts[1]


def _program(pid: int, words: tuple[str, ...]) -> tuple[str, str] | None:
    """("-m", module) or ("", path of the script) that a command line runs.

    None for `-c` and the interactive interpreter.
    """
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word in ("-W", "-X"):
            rest = rest[1:]
        elif word == "-m" and rest:
            return "-m", rest[0]
        elif word in ("-", "-c", "-m"):
            return None
        elif not word.startswith("-"):
            folder = link(pid, "cwd")
            return ("", os.path.realpath(os.path.join(folder, word))) if folder else None
    return None


def _started_alike(pid: int, rank: int) -> bool:
    """Whether both are in one session and folder."""
    one, other = stat_fields(pid), stat_fields(rank)
    if one is None or other is None or one[_SESSION] != other[_SESSION]:
        return False
    return link(pid, "cwd") == (link(rank, "cwd") or "")


# -- what /proc says


def may_start_more(pid: int) -> bool:
    """Whether the process lives, and is a program or a shell that runs a script.

    An interactive shell may start anything, so it says nothing.
    """
    if pid <= 1 or registry.start_ticks(pid) is None:
        return False
    name = (command_name(pid) or "").partition(":")[0]
    if name in _MULTIPLEXERS:
        return False
    return name not in _SHELLS or any(
        word and not word.startswith("-") for word in (command_line(pid) or ())[1:]
    )


def command_text(pid: int, words: int | None = None) -> str:
    """Its first words, at most 120 characters, without secrets: a cut could leave half of one.
    Empty if it is gone.
    """
    found = redacted_words([*(command_line(pid) or ())], COMMAND_CHARACTERS)
    return " ".join(found[:words])[:COMMAND_CHARACTERS]


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 8 else None


# -- The stacks of candidates that make no progress, which py-spy reads without pausing them
#
# A candidate has no agent that could report. It is read only after it has slept from one look to
# the next without waking, and once for each such sleep.


READS_AT_ONCE = 2
DEADLINE_S = 5.0
"""py-spy takes 0.1 to 1 s for a process with torch; a machine under load takes longer."""
FRAMES_MAX = 12


@dataclass
class _Sleep:
    """One sleep of one candidate. `read` is None before it began and after it ended."""

    switches: int | None
    asked: bool = False
    read: PySpy | None = None
    frames: tuple[StackFrame, ...] = ()


class CandidateStacks:
    """The reads under way and what they found. For the relay's thread; no call waits."""

    def __init__(self) -> None:
        self._sleeps: dict[int, _Sleep] = {}

    def look(self, state: ProcessState) -> tuple[StackFrame, ...]:
        """Frames of the candidate's main thread, innermost first; empty while they are unknown.

        Source: `py-spy dump --nonblocking --json --pid PID`. Check: the same command.
        """
        sleep = self._sleeps.get(state.pid)
        if sleep is None or sleep.switches != state.switches or state.state != "S":
            self._end(state.pid)
            self._sleeps[state.pid] = _Sleep(state.switches)
            return ()
        if not sleep.asked and self._reading_count() < READS_AT_ONCE:
            sleep.asked = True
            sleep.read = PySpy(state.pid, nonblocking=True, deadline_s=DEADLINE_S)
        if sleep.read is not None:
            _take(sleep)
        return sleep.frames

    def keep(self, pids: Collection[int]) -> None:
        """Forget all other processes: they are not candidates any more."""
        for pid in [pid for pid in self._sleeps if pid not in pids]:
            self._end(pid)

    def _reading_count(self) -> int:
        return sum(sleep.read is not None for sleep in self._sleeps.values())

    def _end(self, pid: int) -> None:
        sleep = self._sleeps.pop(pid, None)
        if sleep is not None and sleep.read is not None:
            sleep.read.kill()


def _take(sleep: _Sleep) -> None:
    assert sleep.read is not None
    found = sleep.read.poll()
    if found is not None:
        sleep.read = None
        if not isinstance(found, str):
            main = next((thread for thread in found if thread.main), None)
            sleep.frames = main.frames[:FRAMES_MAX] if main is not None else ()
