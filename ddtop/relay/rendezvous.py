"""The ways of ranks inside init_process_group to their store, and the processes that have not come there yet.

Asked only for ranks that have been inside for a while, which their state pages tell: a healthy start is over before that,
and costs nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from ddtop import registry
from ddtop.procfs import children
from ddtop.relay import processes, sockets
from ddtop.wire.records import Hello, ProcessState
from ddtop.wire.rendezvous import Rendezvous, store_address

INSIDE_NS = 2_000_000_000
"""A healthy init_process_group on one host is over in less."""
CANDIDATES_MAX = 64
COMMAND_CHARACTERS = 120
ENDPOINTS_MAX = 8
Family = Mapping[int, "bool | None"]
"""The processes around a run: whether a store that they open is the run's own, None where it may be."""
_HELPERS = (b"resource_tracker", b"forkserver", b"ddtop.relay")


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens on a port; all None: nobody. `ours`: a process of this run."""

    pid: int | None = None
    command: str | None = None
    user: str | None = None
    ours: bool | None = None
    started_unix_ns: int | None = None


class Meeting:
    """What is seen of the ranks that meet; used by the relay's thread once a second."""

    def __init__(self) -> None:
        self._probe = sockets.Probe()
        self._owners: dict[int, int | None] = {}
        self._candidates: dict[int, processes.Watched] = {}

    def look(
        self, watched: Collection[processes.Watched], launcher: int, now_mono_ns: int
    ) -> tuple[tuple[Rendezvous, ...], tuple[ProcessState, ...]]:
        """(the ways of those inside, the candidates); nothing while nobody has been inside for long."""
        inside = [one for one in watched if _inside(one, now_mono_ns)]
        if not inside:
            self._owners.clear()
            self._candidates.clear()
            return (), ()
        ranks = {one.hello.pid for one in watched}
        parents = {one.hello.launcher_pid or 0 for one in watched} | {launcher}
        # torchrun opens the store itself, and whoever spawns ranks may; a shell does not.
        makes = any("TORCHELASTIC_RUN_ID" in one.hello.environment or one.hello.claim == "init" for one in watched)
        family = dict.fromkeys(parents - {0}, True if makes else None) | dict.fromkeys(ranks, True)
        tables: dict[int, tuple[sockets.Tcp, ...] | None] = {}
        ways = []
        for one in inside:
            place = store_address(one.hello.init_method, one.hello.environment)
            if place is None:
                continue
            space = _network(one.hello.pid)
            if space not in tables:
                tables[space] = sockets.table(one.hello.pid)
            ways.append(self._way(one.hello, *place, tables[space], family))
        return tuple(ways), self._look_at_candidates(inside, ranks, now_mono_ns)

    def _way(
        self, hello: Hello, address: str, port: int, table: tuple[sockets.Tcp, ...] | None, family: Family
    ) -> Rendezvous:
        own = sockets.inodes(hello.pid)
        mine = [] if own is None else [one for one in table or () if one.inode in own]
        there = [one for one in mine if one.remote_port == port]
        states = None if own is None or table is None else tuple(sorted({one.state for one in there}))
        held = [one.remote for one in there if one.state == "ESTABLISHED"]
        probe, numbers = self._probe.told(address, port)
        if not held:
            self._probe.ask(address, port)
        known = held or numbers or (address,)
        local = any(sockets.is_local(number) for number in known)
        listener = self._listener(table, port, family)
        return Rendezvous(
            rank=hello.rank,
            pid=hello.pid,
            address=address,
            port=port,
            sockets=states,
            dials=_endpoints(
                (one.remote, one.remote_port) for one in mine if one.state == "SYN_SENT" and one not in there
            ),
            listens=_endpoints((one.local, one.port) for one in mine if one.state == "LISTEN"),
            probe=None if held else probe,
            local=local if held or numbers or local else None,
            listener_pid=listener.pid,
            listener_command=listener.command,
            listener_user=listener.user,
            listener_ours=listener.ours,
            listener_started_unix_ns=listener.started_unix_ns,
        )

    def _listener(self, table: tuple[sockets.Tcp, ...] | None, port: int, family: Family) -> Listener:
        listening = [one for one in table or () if one.state == "LISTEN" and one.port == port]
        if not listening:
            return Listener()
        for one in listening:
            if one.inode not in self._owners:
                self._owners[one.inode] = sockets.owner(one.inode, family)
            pid = self._owners[one.inode]
            if pid is not None:
                return _described(pid, family.get(pid, False))
        # All that this user runs can be looked at, but for a few that forbid it.
        uid = listening[0].uid
        return Listener(user=f"uid {uid}", ours=False if uid != os.getuid() else None)

    def _look_at_candidates(
        self, inside: list[processes.Watched], known: set[int], now_mono_ns: int
    ) -> tuple[ProcessState, ...]:
        found = []
        seen: dict[int, processes.Watched] = {}
        for pid, rank in _unheard(inside, known):
            one = self._candidates.get(pid)
            ticks = registry.start_ticks(pid)
            if ticks is None:
                continue
            if one is None or one.hello.start_ticks != ticks:
                like = inside[0].hello
                hello = Hello(like.job, like.run, like.attempt, rank, None, None, like.host, pid, ticks)
                one = processes.Watched(hello, -1, now_mono_ns)
            seen[pid] = one
            state = processes.look(one, now_mono_ns)
            if state is not None:
                found.append(msgspec.structs.replace(state, agent_age_ms=None))
        self._candidates = seen
        return tuple(found)


def _inside(watched: processes.Watched, now_mono_ns: int) -> bool:
    since = watched.page.init_since_mono_ns if watched.page is not None else 0
    return bool(since) and now_mono_ns - since >= INSIDE_NS


def _endpoints(found: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(sorted({f"{address}:{port}" for address, port in found}))[:ENDPOINTS_MAX]


def _network(pid: int) -> int:
    """What is the same for all processes of one network namespace."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return -pid


def _described(pid: int, ours: bool | None) -> Listener:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = " ".join(process.cmdline())[:COMMAND_CHARACTERS] or process.name()
            return Listener(pid, command, process.username(), ours, int(process.create_time() * 1e9))
    except (psutil.Error, OSError):
        return Listener(pid, ours=ours)


def _unheard(inside: Iterable[processes.Watched], known: set[int]) -> list[tuple[int, int | None]]:
    """(pid, rank if its environment tells) of Python processes of the same launcher or parent that are no rank yet."""
    found: list[tuple[int, int | None]] = []
    elastic = {one.hello.launcher_pid for one in inside if "TORCHELASTIC_RUN_ID" in one.hello.environment}
    spawned = {one.hello.launcher_pid for one in inside if one.hello.claim == "init"}
    for parent in sorted({pid for pid in elastic | spawned if pid is not None and pid > 1}):
        for pid in children(parent):
            if pid in known or not _is_python(pid):
                continue
            rank = _rank_of(pid) if parent in elastic else None
            if rank is not None or parent not in elastic:
                found.append((pid, rank))
    return found[:CANDIDATES_MAX]


def _is_python(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
    return name.startswith("python") and not any(word in command for word in _HELPERS)


def _rank_of(pid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    value = next((word[5:] for word in words if word.startswith(b"RANK=")), b"")
    return int(value) if value.isdigit() and len(value) < 8 else None
