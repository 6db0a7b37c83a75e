"""Which processes belong to a job without being ranks.

Those that its launcher or a parent started.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from ddtop import private, registry
from ddtop.procfs import children, command_name, parents, read, tasks, wchan
from ddtop.relay.processes.candidates import command_text, may_start_more, same_program
from ddtop.relay.processes.sample import Watched, ending
from ddtop.wire.records import Exit, Hello, HelperEnd, LastException

STEPS_MAX = 32
"""Limit of a chain of parents: containers and batch systems put a dozen above a program."""
_NOT_OF_A_JOB = frozenset(
    {
        "bash",
        "sh",
        "dash",
        "zsh",
        "fish",
        "ksh",
        "csh",
        "tcsh",
        "tmux",
        "screen",
        "login",
        "sshd",
        "systemd",
        "init",
        "su",
        "sudo",
        "cron",
        "code",
        "node",
        "jupyter-lab",
        "jupyter-noteboo",
    }
)
"""Names of programs that start anything: two programs of one shell have nothing in common."""
PARENT_WAITS_LOOKS = 3
"""The relay ends for a parent that waits for it in so many looks, a second apart. A launcher
may be between two starts for a moment."""


def is_of_the_job(pid: int, launcher: int, ranks: Iterable[int]) -> bool:
    """Whether the launcher or a rank is among the ancestors of the process.

    `launcher`: 0 if none is known; a shell counts as none.
    """
    known = launcher > 1 and not _starts_anything(launcher)
    if known and (pid == launcher or launcher in parents(pid, STEPS_MAX)):
        return True
    return any(pid in parents(rank, STEPS_MAX) for rank in ranks) and not _starts_anything(pid)


def _starts_anything(pid: int) -> bool:
    return (command_name(pid) or "").partition(":")[0] in _NOT_OF_A_JOB


# -- The processes beside the ranks: other children of their parent, and the parent itself
#
# When such a child fails, mp.spawn ends the ranks by SIGTERM, which looks as if a user had
# cancelled the job. Only the parents of ranks that passed their number as an argument are watched:
# torchrun and the launchers of MPI report failed ranks themselves.


WATCHED_MAX, FAILED_MAX, FILE_BYTES_MAX = 32, 16, 1 << 14
KEPT_S = 3600.0
"""A file that no relay has read after this time belongs to a program without ranks."""


@dataclass
class _Process:
    pid: int
    ticks: int
    parent: int
    pidfd: int
    command: str
    launcher: bool


class HelperWatch:
    """Used by the relay's thread once a second.

    `changed`: the last look found an end that was not known before.
    """

    def __init__(self) -> None:
        self._watched: dict[int, _Process] = {}
        self._ranks: set[int] = set()
        self._parents: set[int] = set()
        self._failed: list[HelperEnd] = []
        self._swept = False
        self.changed = False

    def look(self, ranks: Collection[Watched], now_unix_ns: int) -> tuple[HelperEnd, ...]:
        """The helper processes that have failed so far. Check: `ps --ppid PID`.

        `ranks`: the living ranks of this host.
        """
        if not self._swept:
            self._swept = True
            _sweep()
        before = len(self._failed)
        known = {watched.hello.pid for watched in ranks}
        self._ranks |= known
        inside = any(
            watched.page is not None and watched.page.init_since_mono_ns for watched in ranks
        )
        parents: dict[int, int] = {}
        for watched in ranks:
            if watched.hello.claim == "init" and (watched.hello.launcher_pid or 0) > 1:
                parents.setdefault(watched.hello.launcher_pid or 0, watched.hello.pid)
        for parent, rank in parents.items():
            self._begin(parent, rank, known, inside, now_unix_ns)
        for process in list(self._watched.values()):
            if process.pid in known:
                self._forget(process)
            elif _has_ended(process.pidfd):
                self._end(process, now_unix_ns)
        self.changed = len(self._failed) > before
        return tuple(self._failed)

    def on_hello(self, hello: Hello) -> None:
        """A rank has begun. It may be gone at the next look."""
        if hello.claim == "init" and (hello.launcher_pid or 0) > 1:
            self._parents.add(hello.launcher_pid or 0)

    def rank_ended(self, end: Exit, now_unix_ns: int) -> None:
        """A process with the number of a rank has ended. It may have started the ranks itself:
        torchrun numbers a script that calls mp.spawn."""
        if end.pid in self._parents and (end.code or end.signal or end.exception is not None):
            self._note(
                HelperEnd(end.pid, now_unix_ns, end.code, end.signal, end.exception, launcher=True)
            )

    def close(self) -> None:
        """Close all descriptors."""
        for process in list(self._watched.values()):
            self._forget(process)

    def _begin(
        self, parent: int, rank: int, known: Collection[int], inside: bool, now_unix_ns: int
    ) -> None:
        if not may_start_more(parent):
            return
        self._watch(parent, 0, launcher=True)
        for pid in children(parent):
            if pid in known or pid in self._watched:
                continue
            if same_program(pid, rank):
                self._watch(pid, parent, launcher=False)
            elif inside and pid not in self._ranks and (how := ending(None, pid)).signal:
                # A zombie: it may have been a rank that was killed before any other one joined.
                self._note(HelperEnd(pid, now_unix_ns, None, how.signal))

    def _watch(self, pid: int, parent: int, *, launcher: bool) -> None:
        ticks = registry.start_ticks(pid)
        if pid in self._watched or ticks is None or len(self._watched) >= WATCHED_MAX:
            return
        with contextlib.suppress(OSError, AttributeError):
            self._watched[pid] = _Process(
                pid, ticks, parent, os.pidfd_open(pid), command_text(pid), launcher
            )

    def _forget(self, process: _Process) -> None:
        del self._watched[process.pid]
        os.close(process.pidfd)

    def _end(self, process: _Process, now_unix_ns: int) -> None:
        how, exception = (
            ending(process.pidfd, process.pid),
            None if process.launcher else _left_behind(process),
        )
        self._forget(process)
        if exception is not None or how.code or how.signal is not None:
            at = exception.unix_ns if exception is not None else now_unix_ns
            self._note(
                HelperEnd(
                    process.pid,
                    at,
                    how.code,
                    how.signal,
                    exception,
                    process.command,
                    process.launcher,
                )
            )

    def _note(self, end: HelperEnd) -> None:
        if len(self._failed) < FAILED_MAX and all(helper.pid != end.pid for helper in self._failed):
            self._failed.append(end)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _left_behind(process: _Process) -> LastException | None:
    """The exception in the file that the process left; the file is removed."""
    with contextlib.suppress(OSError, ValueError, private.ForeignError, registry.RegistryError):
        path = registry.runtime_dir() / registry.helper_file(
            process.parent, process.pid, process.ticks
        )
        last_exception = msgspec.json.decode(private.read(path, FILE_BYTES_MAX), type=LastException)
        path.unlink(missing_ok=True)
        return last_exception
    return None


def _sweep() -> None:
    with contextlib.suppress(OSError, registry.RegistryError):
        for path in registry.runtime_dir().glob("helper-*-*-*.json"):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)


# -- A parent that waits for "any child" and has none but relays: it would wait until this one ends
#
# Problem: a relay is nobody's child on purpose, so the kernel gives it to the nearest subreaper. In
# a container that is the process with pid 1. A launcher that loops on `os.wait()` until there are
# no more children then waits for the relay. What does not work: a process in between that stays. It
# would be a copy of the rank, and `exec` makes it visible to `wait` again. What we do: look once a
# second whether a parent waits like that, and end if one does. A living agent starts another relay,
# which ends again if it is in the way again. What remains uncertain: if /proc does not say in which
# call a process sleeps, nothing is done.


_WAITS = ("do_wait", "kernel_waitid", "kernel_wait4")
_OURS = b"\0-m\0ddtop.relay\0"


class WaitingParent:
    """Used by the relay's loop only, about once a second."""

    def __init__(self) -> None:
        self._found = 0

    def look(self) -> bool:
        """Whether our parent can only go on when we have ended.

        Check: `cat /proc/PPID/wchan`, `pgrep -P PPID`.
        """
        parent = os.getppid()
        theirs = children(parent) if parent > 0 and _waits(parent) else ()
        # Where the kernel does not list children there are none.
        is_so = os.getpid() in theirs and all(_is_relay(pid) for pid in theirs)
        self._found = self._found + 1 if is_so else 0
        return self._found >= PARENT_WAITS_LOOKS


def _waits(pid: int) -> bool:
    """One of its threads is in wait() for a child."""
    return any(wchan(task) in _WAITS for task in tasks(pid)[:64])


def _is_relay(pid: int) -> bool:
    words = read(pid, "cmdline")
    # If it has ended in between, nothing has to be done.
    return words is None or _OURS in words
