"""The files that a relay writes: the job file, the roster for a successor, the last state.

Viewers find the relay by its job file. The state folder and the runtime folder may both be on a
file server that hangs, so each folder has its own thread that writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from ddtop import journal, private, registry
from ddtop.patience import Writer
from ddtop.relay.history import FrameHistory
from ddtop.wire.records import ALONE, LEAF, Exit, Hello
from ddtop.words.sentences import exit_text

LAST_STATE_S = 180.0
"""How much history goes into the last-state file."""
FINISH_S = 2.0
"""How long a relay that ends waits for its folders. What is not written by then is lost."""


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """The place of this relay in the job, for the job file.

    The fields are those of `registry.JobEntry`.
    """

    role: str = ALONE
    public_address: str | None = None
    public_port: int | None = None
    part_of: str | None = None
    hub: str | None = None
    hosts: tuple[str, ...] = ()


class StateFiles:
    """The files of one relay. Only `finish` waits for a folder."""

    def __init__(
        self,
        job: str,
        run: str,
        sender: str,
        host: str,
        port: int,
        history: FrameHistory,
    ) -> None:
        self._job, self._run, self._sender, self._host, self._port = job, run, sender, host, port
        self._history = history
        # Only once: the folders are checked here, and others may change them later.
        self.socket, self.roster = registry.socket_path(job, run), registry.roster_path(job, run)
        self._last_state = registry.last_state_path(job, run, sender)
        self._started_unix_ns = time.time_ns()
        self._state, self._runtime = (
            Writer(str(self._last_state.parent)),
            Writer(str(self.roster.parent)),
        )

    @property
    def why(self) -> str | None:
        """What could not be written; None if everything was."""
        return self._state.problem or self._runtime.problem

    def write_entry(
        self,
        hello: Hello,
        reporting: int,
        ended_unix_ns: int | None,
        exits: Iterable[Exit],
        place: RelayPlace,
        ranks: Iterable[Hello] = (),
    ) -> None:
        """Renew the job file. `ranks`: those of this host that live."""
        entry = registry.JobEntry(
            schema=registry.SCHEMA,
            job=self._job,
            run=self._run,
            host=self._host,
            sender=self._sender,
            relay_pid=os.getpid(),
            relay_start_ticks=registry.start_ticks(os.getpid()) or 0,
            address="127.0.0.1",
            port=self._port,
            socket=str(self.socket),
            script=hello.script,
            world_size=hello.world_size or 0,
            reporting=reporting,
            started_unix_ns=self._started_unix_ns,
            heartbeat_unix_ns=time.time_ns(),
            ended_unix_ns=ended_unix_ns,
            ended_reason=_ended_reason(exits) if ended_unix_ns is not None else None,
            last_state=str(self._last_state) if ended_unix_ns else None,
            role=place.role,
            public_address=place.public_address,
            public_port=place.public_port,
            part_of=place.part_of,
            hub=place.hub,
            hosts=place.hosts,
            ranks=tuple(
                (rank.pid, rank.start_ticks) for rank in islice(ranks, registry.RANKS_LISTED)
            ),
        )
        # If a thousand hosts share a folder and each prunes it, each reads a thousand job files.
        prunes = place.role != LEAF or ended_unix_ns is not None
        self._state.put("job file", lambda: _write_entry(entry, prunes))

    def write_last_state(self) -> None:
        """Write what viewers show when this relay has ended."""
        path, frames = (
            self._last_state,
            self._history.frames_since(time.time_ns() - int(LAST_STATE_S * 1e9)),
        )
        self._state.put("last state", lambda: _write(path, frames))

    def write_roster(self) -> None:
        """Write which ranks of this host are watched, for a relay that takes over. The other hosts
        report theirs again."""
        path, frames = self.roster, self._history.frames_since(time.time_ns(), own=True)
        self._runtime.put("roster", lambda: _write(path, frames))

    def sweep(self, abandoned: Iterable[Path]) -> None:
        """Remove what others have left behind."""
        paths = tuple(abandoned)
        self._runtime.put("sweep", lambda: _remove(paths))

    def leave(self) -> None:
        """Remove socket and roster: this relay ends and needs no successor."""
        self._runtime.put("roster", lambda: _remove((self.socket, self.roster)))
        join_file = self.roster.with_name(registry.JOIN_FILE)
        self._runtime.put("join file", lambda: _remove_join_file(join_file))

    def finish(self, seconds: float = FINISH_S) -> bool:
        """Wait until all is written, at most `seconds` for each folder. False: it is not."""
        runtime = self._runtime.finish(seconds)
        return self._state.finish(seconds) and runtime


def _write_entry(entry: registry.JobEntry, prunes: bool) -> None:
    registry.write_entry(entry)
    if prunes:
        registry.prune_ended(time.time_ns())


def _write(path: Path, frames: list[bytes]) -> None:
    try:
        journal.write(path, frames)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from None


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _remove_join_file(path: Path) -> None:
    """Remove the file in which plain ranks have joined, unless one of them lives."""
    with (
        contextlib.suppress(OSError, ValueError, LookupError, TypeError),
        os.fdopen(private.open_file(path), "rb") as file,
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        runs = msgspec.json.decode(file.read(1 << 20))
        ranks = [rank for run in runs for rank in run["members"]]
        if all(registry.start_ticks(rank["pid"]) != rank["start_ticks"] for rank in ranks):
            path.unlink()


def _ended_reason(exits: Iterable[Exit]) -> str:
    """How it ended in three words, for the list of jobs; the verdict is the viewer's."""
    bad = [exit_ for exit_ in exits if exit_.code != 0 and not _in_good_order(exit_)]
    if not bad:
        return "finished"
    known = bad[0].signal is not None or bad[0].code is not None
    return exit_text(bad[0].code, bad[0].signal) if known else "unknown end"


def _in_good_order(gone: Exit) -> bool:
    """Its exit code could not be read, and its interpreter was exiting without an exception."""
    return gone.code is None and gone.signal is None and gone.exiting and gone.exception is None
