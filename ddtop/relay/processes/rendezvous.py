"""The connections of ranks inside init_process_group to their store, and the ranks still missing.

The relay looks only for ranks that have been inside for a while, as their state pages tell. A
healthy start is over before that and costs nothing here. It looks from outside, because such a rank
may hold the GIL (torch opens a missing `file://` store again and again), and because a child of
mp.spawn has no number and no agent yet.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from ddtop import registry
from ddtop.launch.launchers import is_elastic
from ddtop.procfs import link
from ddtop.relay.processes import candidates, sample, sockets
from ddtop.relay.processes.candidates import CandidateStacks
from ddtop.wire.records import Candidacy, Hello, ProcessState, Rendezvous, StackFrame, store_address

ASK_AGAIN_NS = 5_000_000_000
"""A search for the owner of a socket reads the descriptors of all processes of the host."""
ENDPOINTS_MAX = 8
Family = Mapping[int, "bool | None"]
"""The processes around a run: whether a store that they open is the run's own, None where it may
be."""
INIT_INSIDE_S = 2.0
"""The relay looks at the route to the store of a rank that is in init_process_group for this
time. On one host a healthy one is over in less."""


@dataclass(frozen=True, slots=True)
class Listener:
    """The process that listens on a port; all None: none. `ours`: it belongs to this run."""

    pid: int | None = None
    command: str | None = None
    user: str | None = None
    ours: bool | None = None
    started_unix_ns: int | None = None


class RendezvousLook(NamedTuple):
    """One look. `ways`: of the ranks inside; `candidates` and `candidacies`: of those that may
    still come; `launching` as in HostState.
    """

    ways: tuple[Rendezvous, ...] = ()
    candidates: tuple[ProcessState, ...] = ()
    candidacies: tuple[Candidacy, ...] = ()
    launching: bool | None = None


class RendezvousWatch:
    """What is seen of the ranks that meet; used by the relay's thread once a second."""

    def __init__(self) -> None:
        self._inside_ns = int(INIT_INSIDE_S * 1e9)
        self._probe = sockets.ConnectProbe()
        self._owners: dict[int, int | None] = {}
        self._ask_again_mono_ns = 0
        self._candidates: dict[int, sample.Watched] = {}
        self._candidacies: dict[tuple[int, int], Candidacy] = {}
        self._stacks = CandidateStacks()
        self._torch = False

    def look(
        self, watched: Collection[sample.Watched], launcher: int, now_mono_ns: int
    ) -> RendezvousLook:
        """What is seen now; nothing as long as no rank has been inside for long."""
        inside = [
            process for process in watched if _is_inside(process, now_mono_ns, self._inside_ns)
        ]
        if not inside:
            self._owners.clear()
            self._candidates.clear()
            self._candidacies.clear()
            self._stacks.keep(())
            return RendezvousLook()
        if now_mono_ns >= self._ask_again_mono_ns:
            # A process may have opened the socket only after it was looked for.
            self._ask_again_mono_ns = now_mono_ns + ASK_AGAIN_NS
            self._owners = {one: pid for one, pid in self._owners.items() if pid is not None}
        ranks = {one.hello.pid for one in watched}
        parents = {process.hello.launcher_pid or 0 for process in watched} | {launcher}
        # torchrun opens the store itself. A parent that spawns ranks may; a shell does not.
        makes = any(
            is_elastic(process.hello.environment) or process.hello.claim == "init"
            for process in watched
        )
        family = dict.fromkeys(parents - {0}, True if makes else None) | dict.fromkeys(ranks, True)
        tables: dict[str, tuple[sockets.Tcp, ...] | None] = {}
        ways = []
        for process in inside:
            place = store_address(process.hello.init_method, process.hello.environment)
            if place is None:
                continue
            space = _network(process.hello.pid)
            if space not in tables:
                tables[space] = sockets.table(process.hello.pid)
            ways.append(self._way_to_master(process.hello, *place, tables[space], family))
        states, why = self._look_at_candidates(inside, watched, now_mono_ns)
        return RendezvousLook(tuple(ways), states, why, candidates.may_launch(inside))

    def close(self) -> None:
        """End what still reads from candidates."""
        self._stacks.keep(())

    def _way_to_master(
        self,
        hello: Hello,
        address: str,
        port: int,
        table: tuple[sockets.Tcp, ...] | None,
        family: Family,
    ) -> Rendezvous:
        own = sockets.inodes(hello.pid)
        mine = (
            []
            if own is None
            else [connection for connection in table or () if connection.inode in own]
        )
        connections = [connection for connection in mine if connection.remote_port == port]
        states = (
            None
            if own is None or table is None
            else tuple(sorted({connection.state for connection in connections}))
        )
        held = [
            connection.remote for connection in connections if connection.state == "ESTABLISHED"
        ]
        probe, numbers = self._probe.result(address, port)
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
                (connection.remote, connection.remote_port)
                for connection in mine
                if connection.state == "SYN_SENT" and connection not in connections
            ),
            listens=_endpoints(
                (connection.local, connection.port)
                for connection in mine
                if connection.state == "LISTEN"
            ),
            probe=None if held else probe,
            local=local if held or numbers or local else None,
            listener_pid=listener.pid,
            listener_command=listener.command,
            listener_user=listener.user,
            listener_ours=listener.ours,
            listener_started_unix_ns=listener.started_unix_ns,
        )

    def _listener(
        self, table: tuple[sockets.Tcp, ...] | None, port: int, family: Family
    ) -> Listener:
        listening = [
            connection
            for connection in table or ()
            if connection.state == "LISTEN" and connection.port == port
        ]
        if not listening:
            return Listener()
        for connection in listening:
            if connection.inode not in self._owners:
                self._owners[connection.inode] = sockets.owner(connection.inode, family)
            pid = self._owners[connection.inode]
            if pid is not None:
                return _describe(pid, family.get(pid, False))
        # All processes of this user can be read, except a few that forbid it.
        uid = listening[0].uid
        return Listener(user=f"uid {uid}", ours=False if uid != os.getuid() else None)

    def _look_at_candidates(
        self, inside: list[sample.Watched], watched: Collection[sample.Watched], now_mono_ns: int
    ) -> tuple[tuple[ProcessState, ...], tuple[Candidacy, ...]]:
        states, seen = [], {}
        candidacies: dict[tuple[int, int], Candidacy] = {}
        self._torch = self._torch or bool(candidates.torch_loaded(inside[0].hello.pid))
        for candidate in candidates.candidates(inside, watched):
            ticks = registry.start_ticks(candidate.pid)
            if ticks is None:
                continue
            process = self._candidates.get(candidate.pid)
            if process is None or process.hello.start_ticks != ticks:
                like = inside[0].hello
                hello = Hello(
                    like.job,
                    like.run,
                    like.attempt,
                    candidate.rank,
                    None,
                    None,
                    like.host,
                    candidate.pid,
                    ticks,
                )
                process = sample.Watched(hello, -1, now_mono_ns)
            state = sample.look(process, now_mono_ns)
            if state is None:
                continue
            seen[candidate.pid] = process
            states.append(state)
            frames = self._stacks.look(state)
            candidacies[candidate.pid, ticks] = self._candidacy(candidate, ticks, frames)
        self._stacks.keep(seen)
        self._candidates, self._candidacies = seen, candidacies
        return tuple(states), tuple(candidacies.values())

    def _candidacy(
        self, found: candidates.CandidateProcess, ticks: int, frames: tuple[StackFrame, ...]
    ) -> Candidacy:
        candidacy = self._candidacies.get((found.pid, ticks))
        # What is loaded stays so; the maps of a process with torch have a thousand lines.
        loaded = candidacy.torch_loaded if candidacy is not None else None
        if self._torch and not loaded:
            loaded = candidates.torch_loaded(found.pid)
        here = _describe(found.pid, None)
        return Candidacy(found.pid, found.mark, here.command, here.started_unix_ns, loaded, frames)


def _is_inside(watched: sample.Watched, now_mono_ns: int, least_ns: int) -> bool:
    since = watched.page.init_since_mono_ns if watched.page is not None else 0
    return bool(since) and now_mono_ns - since >= least_ns


def _endpoints(found: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    return tuple(sorted({f"{address}:{port}" for address, port in found}))[:ENDPOINTS_MAX]


def _network(pid: int) -> str:
    """What is the same for all processes of one network namespace."""
    return link(pid, "ns/net") or str(pid)


def _describe(pid: int, ours: bool | None) -> Listener:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = candidates.command_text(pid) or process.name()
            return Listener(
                pid, command, process.username(), ours, int(process.create_time() * 1e9)
            )
    except (psutil.Error, OSError):
        return Listener(pid, ours=ours)
