"""The ranks of this host: their processes, how their ends are noticed, the sockets of their agents.

A pidfd reports the end of a process. Where there is none, /proc is read often enough to find most
ended processes as zombies, whose line has the exit code. A rank that said Hello and cannot be seen
at all counts as gone, unless it is heard again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddtop import registry
from ddtop.link.rank_listener import Credentials
from ddtop.link.relay_side import RANK, RelayLink
from ddtop.procfs import link, status, status_of
from ddtop.relay.processes import sample
from ddtop.relay.processes.sample import Watched, is_gone
from ddtop.wire.records import AnyRecord, Command, Hello

EXIT_UNSEEN_S = 2.5
"""A rank not in /proc has ended if its agent is silent this long. It reports every second."""

# -- The process behind a connection of the unix socket, as the kernel recorded it
#
# A connection speaks for the process that made it and for no other, as long as it is open. A forked
# child that inherits it speaks for its parent, so it has to make its own. The start time is read
# when the connection is first heard: if its maker is gone and the pid has a new owner, the two
# differ.


@dataclass(frozen=True, slots=True)
class Peer:
    """The process behind one connection.

    `foreign`: it is in another pid namespace, so its pids mean other processes here. Its records
    are shown, but it is never signalled or read. `pid`: the pid that it has for itself, None if
    that cannot be known.
    """

    pid: int | None
    start_ticks: int | None
    foreign: bool

    def may_say(self, pid: int) -> bool:
        """Whether its reports about this pid, in its own namespace, are accepted."""
        return pid > 0 and (self.pid is None or self.pid == pid)


def peer_of(credentials: Credentials) -> Peer:
    """The process that made a connection. Check: `ss -xp`, `readlink /proc/PID/ns/pid`."""
    if credentials.pid <= 0:
        return Peer(None, None, True)
    ours, theirs = link("self", "ns/pid"), link(credentials.pid, "ns/pid")
    if ours is not None and theirs is not None and ours != theirs:
        return Peer(_own_number(credentials.pid), None, True)
    # One that is gone already cannot be asked; its pid was ours to see.
    return Peer(credentials.pid, registry.start_ticks(credentials.pid), False)


def _own_number(pid: int) -> int | None:
    """Its pid in its own namespace: the last number of the line NSpid."""
    last = (status_of(status(pid), "NSpid") or "").rpartition("\t")[2]
    return int(last) if last.isdigit() else None


# -- The ranks of this host


RANKS_MAX = 4096
LOOK_S, LOOK_PER_RANK_S = 0.02, 0.002
"""The time between two looks for ends in /proc: at least this long, and longer with more ranks. A
look takes 20 us for each rank, so this costs one per cent of a core. Launchers that poll reap after
50 to 100 ms, so most ended processes are found before that."""
PIDFD_EVERY_S = 1.0
"""How often a pidfd is asked for again where there was none: a shortage of descriptors passes."""


class Ranks:
    """Used by the relay's loop only. `watched`: the living ones, by pid."""

    def __init__(self, link: RelayLink, seal: Callable[[AnyRecord], bytes]) -> None:
        self._link, self._seal = link, seal
        self.watched: dict[int, Watched] = {}
        self._pids_of: dict[int, int] = {}
        self._peers: dict[bytes, int] = {}
        self._speakers: dict[bytes, Peer] = {}
        # Said Hello, and no such process can be seen.
        self._unseen: dict[int, Watched] = {}
        self._replaced: list[Watched] = []
        self._gone: dict[tuple[int, int], None] = {}
        self._looked_s = self._asked_pidfds_s = 0.0
        self.dropped = self.refused = 0

    def __len__(self) -> int:
        return len(self.watched) + len(self._unseen)

    def hellos(self) -> Iterator[Hello]:
        """Of the living ones."""
        return (watched.hello for watched in self.watched.values())

    def heard(self, peer: bytes, pid: int) -> bool | None:
        """An agent has sent something as `pid`.

        True if this is the first time, None if nothing of it may be taken.

        Nothing is taken from a process that speaks for another one (`refused` counts it), nor where
        there are too many.
        """
        speaker = self.peer_of(peer)
        if speaker is None or not speaker.may_say(pid) or (speaker.foreign and pid in self.watched):
            self.refused += speaker is not None
            return None
        new = peer not in self._peers
        if new and len(self._peers) >= RANKS_MAX:
            self.dropped += 1
            return None
        self._peers[peer] = pid
        watched = self.watched.get(pid) or self._unseen.get(pid)
        if watched is not None:
            watched.heard_mono_ns = time.monotonic_ns()
        return new

    def peer_of(self, peer: bytes) -> Peer | None:
        """The process behind this connection; None if it was closed before it sent anything."""
        known = self._speakers.get(peer)
        if known is None and (credentials := self._link.credentials(peer)) is not None:
            known = self._speakers[peer] = peer_of(credentials)
        return known

    def speaks_for_itself(self, peer: bytes, hello: Hello) -> bool | None:
        """Whether the process that made the connection is the one that its Hello names.

        False: it had gone before it was looked at. Then it is watched, and never signalled. None:
        it is another process (counted as refused), or one of another pid namespace. Such a one is
        shown and not watched, because its pids mean other processes here.
        """
        speaker = self.peer_of(peer)
        if speaker is not None and speaker.foreign:
            return None
        if (
            speaker is None
            or speaker.pid != hello.pid
            or speaker.start_ticks not in (None, hello.start_ticks)
        ):
            self.refused += 1
            return None
        return speaker.start_ticks is not None

    def greet(self, hello: Hello, spoke: bool = True) -> bool:
        """Begin to watch the process of this Hello.

        False if it is watched already, or is not the process that the Hello names. `spoke`: it said
        so itself, to this relay. A process that an earlier relay wrote down is watched, and never
        signalled.
        """
        watched = self.watched.get(hello.pid)
        if watched is not None and not self._is_another(watched, hello):
            watched.hello = hello
            # A program that says Hello after exec is a rank again.
            watched.stack_start = 0
            watched.spoke = watched.spoke or spoke
            return False
        if watched is not None:
            self._replaced.append(self._unwatch(watched))
        # A Hello may be read after the end of the process that sent it.
        return (hello.pid, hello.start_ticks) not in self._gone and self._see(hello, spoke)

    def note_gone(self, hello: Hello) -> None:
        """Remember that its end has been reported, so that a late Hello does not bring it back."""
        self._gone[hello.pid, hello.start_ticks] = None
        while len(self._gone) > RANKS_MAX:
            del self._gone[next(iter(self._gone))]

    def _is_another(self, watched: Watched, hello: Hello) -> bool:
        """Whether its pid was given to another process before its end was seen."""
        is_new = watched.hello.start_ticks != hello.start_ticks
        return is_new and is_gone(hello.pid, watched.hello.start_ticks) is True

    def _see(self, hello: Hello, spoke: bool) -> bool:
        found = sample.watch(hello, time.monotonic_ns())
        if found is None:
            self._unseen.setdefault(
                hello.pid, Watched(hello, None, time.monotonic_ns(), spoke=spoke)
            )
            return False
        found.spoke = spoke
        self._unseen.pop(hello.pid, None)
        self.watched[hello.pid] = found
        self._hold(found)
        return True

    def _hold(self, watched: Watched) -> None:
        if watched.pidfd is not None:
            self._pids_of[watched.pidfd] = watched.hello.pid
            self._link.watch(watched.pidfd)

    def take_ended(self, pidfd: int) -> Watched:
        """The rank whose process has ended.

        It is not watched any more; its descriptor is still open.
        """
        return self._unwatch(self.watched[self._pids_of[pidfd]])

    def _unwatch(self, watched: Watched) -> Watched:
        del self.watched[watched.hello.pid]
        if watched.pidfd is not None:
            del self._pids_of[watched.pidfd]
            self._link.unwatch(watched.pidfd)
        return watched

    def look_due_s(self) -> float:
        """When `look_for_ends` wants to be called next, monotonic s.

        Infinity where pidfds report all ends.
        """
        without = len(self.watched) - len(self._pids_of)
        if not without and not self._unseen and not self._replaced:
            return float("inf")
        return self._looked_s + max(LOOK_S, LOOK_PER_RANK_S * (without + len(self._unseen)))

    def look_for_ends(self, now: float) -> list[tuple[Watched, int]]:
        """(rank, when it went or was heard last, unix ns) of those that no pidfd tells of and that
        have gone, the first to go first.

        They are not watched any more; `now` is monotonic s.
        """
        self._looked_s = now
        at = time.time_ns()
        found = [(replaced, at) for replaced in self._replaced]
        self._replaced.clear()
        if now >= self._asked_pidfds_s + PIDFD_EVERY_S:
            self._asked_pidfds_s = now
            self._ask_for_pidfds()
        for watched in list(self._unseen.values()):
            silent_ns = int(now * 1e9) - watched.heard_mono_ns
            is_silent = silent_ns > EXIT_UNSEEN_S * 1e9
            if is_silent and is_gone(watched.hello.pid, watched.hello.start_ticks):
                del self._unseen[watched.hello.pid]
                # It was alive then; more is not known.
                found.append((watched, at - silent_ns))
        for process in list(self.watched.values()):
            if process.pidfd is None and is_gone(process.hello.pid, process.hello.start_ticks):
                found.append((self._unwatch(process), at))
        # If several ended between two looks, their state pages may show which one was first.
        return sorted(found, key=lambda item: sample.went_unix_ns(*item))

    def _ask_for_pidfds(self) -> None:
        for watched in list(self._unseen.values()):
            self._see(watched.hello, watched.spoke)
        for process in self.watched.values():
            if process.pidfd is None:
                process.pidfd = sample.pidfd_of(process.hello)
                self._hold(process)

    def forget(self, gone: Watched) -> None:
        """Close what is left of it."""
        self.note_gone(gone.hello)
        sample.forget(gone)
        for peer in [peer for peer, owner in self._peers.items() if owner == gone.hello.pid]:
            self._leave(peer)

    def _leave(self, peer: bytes) -> None:
        self._peers.pop(peer, None)
        self._speakers.pop(peer, None)

    def sweep(self) -> None:
        """Forget the connections that are closed."""
        for peer in [peer for peer in self._speakers if self._link.credentials(peer) is None]:
            self._leave(peer)

    def say(self, peer: bytes, record: AnyRecord) -> None:
        """Answer one agent."""
        if not self._link.send(RANK, peer, self._seal(record)):
            self.dropped += self._link.credentials(peer) is not None

    def say_all(self, record: AnyRecord) -> None:
        """Tell all agents."""
        self.sweep()
        for peer in list(self._peers):
            self.say(peer, record)

    def ring(self, now_mono_ns: int, closer: bool = False) -> bool:
        """Wake the agents that sleep until a step does not end, as their pages said at the last
        look: each once before that, so that it knows that somebody will, and all of them where
        somebody looks closer. Returns whether there are any.
        """
        sleeping = False
        for pid, watched in self.watched.items():
            if watched.page is None or not (late_after_ns := watched.page.late_after_ns):
                continue
            sleeping, ended, rung_for = True, sample.step_ended(watched), watched.rung_for
            late = rung_for is None or now_mono_ns - (ended or now_mono_ns) > late_after_ns
            if closer or (late and ended != rung_for):
                watched.rung_for = ended
                self.ask(pid, Command("ring", arguments=("closer",) if closer else ()))
        return sleeping

    def ask(self, pid: int, record: AnyRecord) -> bool:
        """Tell the agent of this process; False if it could not be handed over."""
        data = self._seal(record)
        return any(
            self._link.send(RANK, peer, data)
            for peer in [p for p, owner in self._peers.items() if owner == pid]
        )
