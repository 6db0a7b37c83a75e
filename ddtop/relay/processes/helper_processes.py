"""The processes beside the ranks: other children of their parent, and the parent itself.

When such a child fails, mp.spawn ends the ranks by SIGTERM, which looks as if a user had cancelled
the job. Only the parents of ranks that passed their number as an argument are watched: torchrun and
the launchers of MPI report failed ranks themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from ddtop import private, registry
from ddtop.procfs import children
from ddtop.relay.processes.candidates import command_line, may_start_more, same_program
from ddtop.relay.processes.exits import ending
from ddtop.relay.processes.sample import Watched
from ddtop.wire.records import Exit, HelperEnd, LastException

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
        known = {one.hello.pid for one in ranks}
        self._ranks |= known
        inside = any(one.page is not None and one.page.init_since_mono_ns for one in ranks)
        parents: dict[int, int] = {}
        for one in ranks:
            if one.hello.claim == "init" and (one.hello.launcher_pid or 0) > 1:
                parents.setdefault(one.hello.launcher_pid or 0, one.hello.pid)
        for parent, rank in parents.items():
            self._begin(parent, rank, known, inside, now_unix_ns)
        self._parents.update(parents)
        for process in list(self._watched.values()):
            if process.pid in known:
                self._forget(process)
            elif _has_ended(process.pidfd):
                self._end(process, now_unix_ns)
        self.changed = len(self._failed) > before
        return tuple(self._failed)

    def rank_ended(self, end: Exit, now_unix_ns: int) -> None:
        """A process with the number of a rank has ended. It may have started the ranks itself:
        torchrun numbers a script that calls mp.spawn."""
        if end.pid in self._parents and (end.code or end.signal or end.exception is not None):
            self._note(
                HelperEnd(end.pid, now_unix_ns, end.code, end.signal, end.exception, launcher=True)
            )

    def close(self) -> None:
        """Close all descriptors."""
        for one in list(self._watched.values()):
            self._forget(one)

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
                pid, ticks, parent, os.pidfd_open(pid), command_line(pid), launcher
            )

    def _forget(self, one: _Process) -> None:
        del self._watched[one.pid]
        os.close(one.pidfd)

    def _end(self, one: _Process, now_unix_ns: int) -> None:
        how, exception = ending(one.pidfd, one.pid), None if one.launcher else _left_behind(one)
        self._forget(one)
        if exception is not None or how.code or how.signal is not None:
            at = exception.unix_ns if exception is not None else now_unix_ns
            self._note(
                HelperEnd(one.pid, at, how.code, how.signal, exception, one.command, one.launcher)
            )

    def _note(self, end: HelperEnd) -> None:
        if len(self._failed) < FAILED_MAX and all(one.pid != end.pid for one in self._failed):
            self._failed.append(end)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _left_behind(one: _Process) -> LastException | None:
    """The exception in the file that the process left; the file is removed."""
    with contextlib.suppress(OSError, ValueError, private.ForeignError, registry.RegistryError):
        path = registry.runtime_dir() / registry.helper_file(one.parent, one.pid, one.ticks)
        found = msgspec.json.decode(private.read(path, FILE_BYTES_MAX), type=LastException)
        path.unlink(missing_ok=True)
        return found
    return None


def _sweep() -> None:
    with contextlib.suppress(OSError, registry.RegistryError):
        for path in registry.runtime_dir().glob("helper-*-*-*.json"):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink(missing_ok=True)
