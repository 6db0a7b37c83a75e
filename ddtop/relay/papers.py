"""What a relay writes down: the job file that views find it by, the roster for a successor, the last state for afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddtop import journal, registry
from ddtop.relay.keeper import Keeper
from ddtop.wire.hosts import ALONE, LEAF
from ddtop.wire.records import Exit, Hello

LAST_STATE_S = 180.0
"""How much history goes into the last-state file."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job file says that this relay stands; the fields are those of `registry.JobEntry`."""

    role: str = ALONE
    public_address: str | None = None
    public_port: int | None = None
    part_of: str | None = None
    hub: str | None = None
    hosts: tuple[str, ...] = ()


class Papers:
    """The files of one relay."""

    def __init__(self, job: str, run: str, sender: str, host: str, port: int, keeper: Keeper) -> None:
        self._job, self._run, self._sender, self._host, self._port = job, run, sender, host, port
        self._keeper = keeper
        # Once: the folders are looked at then, and may be anything later.
        self.socket, self.roster = registry.socket_path(job, run), registry.roster_path(job, run)
        self._last_state = registry.last_state_path(job, run, sender)
        self._started_unix_ns = time.time_ns()
        # None: the job file.
        self._problems: dict[Path | None, str] = {}

    @property
    def why(self) -> str | None:
        """What could not be written, None while all is well."""
        return next(iter(self._problems.values()), None)

    def write_entry(
        self, hello: Hello, reporting: int, ended_unix_ns: int | None, exits: Iterable[Exit], place: Place
    ) -> None:
        """Renew the job file."""
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
        )
        try:
            registry.write_entry(entry)
            if place.role != LEAF or ended_unix_ns is not None:
                # A thousand hosts that share a folder would read a thousand job files each, all the time.
                registry.prune_ended(time.time_ns())
            self._problems.pop(None, None)
        except (registry.RegistryError, OSError) as error:
            self._problems[None] = str(error)

    def write_last_state(self) -> None:
        """What the views show when this relay is gone."""
        self._write(self._last_state, self._keeper.since(time.time_ns() - int(LAST_STATE_S * 1e9)))

    def write_roster(self) -> None:
        """Whom we watch, for a relay that takes over; of other hosts it hears from them."""
        self._write(self.roster, self._keeper.since(time.time_ns(), own=True))

    def _write(self, path: Path, frames: list[bytes]) -> None:
        try:
            journal.write(path, frames)
            self._problems.pop(path, None)
        except OSError as error:
            self._problems[path] = f"cannot write {path}: {error.strerror}"


def _ended_reason(exits: Iterable[Exit]) -> str:
    """How it ended in three words, for the list of jobs; the verdict is the viewer's."""
    bad = [one for one in exits if one.code != 0]
    if not bad:
        return "finished"
    return f"signal {bad[0].signal}" if bad[0].signal is not None else f"exit code {bad[0].code}"
