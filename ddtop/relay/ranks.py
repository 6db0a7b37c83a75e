"""The ranks of this host: their processes, and the sockets of their agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ddtop.link.relay_side import RANK, RelayLink
from ddtop.relay import processes
from ddtop.relay.processes import Watched
from ddtop.wire.records import AnyRecord, Hello

RANKS_MAX = 4096


class Ranks:
    """Used by the relay's loop only. `watched`: the living ones, by pid."""

    def __init__(self, link: RelayLink, seal: Callable[[AnyRecord], bytes]) -> None:
        self._link, self._seal = link, seal
        self.watched: dict[int, Watched] = {}
        self._pids_of: dict[int, int] = {}
        self._peers: dict[bytes, int] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self.watched)

    def hellos(self) -> Iterator[Hello]:
        """Of the living ones."""
        return (one.hello for one in self.watched.values())

    def heard(self, peer: bytes, pid: int) -> bool | None:
        """An agent has said something: True if this is the first time, None if there are too many already."""
        new = peer not in self._peers
        if new and len(self._peers) >= RANKS_MAX:
            self.dropped += 1
            return None
        self._peers[peer] = pid
        watched = self.watched.get(pid)
        if watched is not None:
            watched.heard_mono_ns = time.monotonic_ns()
        return new

    def greet(self, hello: Hello) -> bool:
        """Begin to watch its process; False if that is watched already, or not the one that said Hello."""
        known = self.watched.get(hello.pid)
        if known is not None:
            known.hello = hello
            return False
        found = processes.watch(hello, time.monotonic_ns())
        if found is None:
            return False
        self.watched[hello.pid] = found
        self._pids_of[found.pidfd] = hello.pid
        self._link.watch(found.pidfd)
        return True

    def ended(self, pidfd: int) -> Watched:
        """The rank whose process is gone; it is not watched any more, its descriptor is still open."""
        found = self.watched.pop(self._pids_of.pop(pidfd))
        self._link.unwatch(pidfd)
        return found

    def forget(self, gone: Watched) -> None:
        """Close what is left of it."""
        processes.forget(gone)
        self._peers = {peer: owner for peer, owner in self._peers.items() if owner != gone.hello.pid}

    def say(self, peer: bytes, record: AnyRecord) -> None:
        """Answer one agent."""
        self.dropped += not self._link.send(RANK, peer, self._seal(record))

    def say_all(self, record: AnyRecord) -> None:
        """Tell all agents."""
        for peer in list(self._peers):
            self.say(peer, record)

    def ask(self, pid: int, record: AnyRecord) -> bool:
        """Tell the agent of this process; False if it could not be handed over."""
        data = self._seal(record)
        return any(
            self._link.send(RANK, peer, data) for peer in [p for p, owner in self._peers.items() if owner == pid]
        )
