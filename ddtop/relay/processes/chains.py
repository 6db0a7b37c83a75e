"""What a rank that makes no progress waits for in the kernel, and what that one waits for: its
child, the other end of a pipe, the holder of a file lock, the process at the other end of a TCP
connection or a unix socket, a signal, a debugger.

Source: /proc/PID/syscall, fd and fdinfo, /proc/locks, the TCP table. Nothing is opened or asked by
name, so that a dead file server holds up nothing. Caveat: processes of another user show only that
they exist; of an epoll set only the single connection in it has another end here. Check: `lslocks`,
`ss -anp`, `lsof FILE`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from time import monotonic, time_ns
from typing import NamedTuple

import msgspec

from ddtop.patience import LatestResult
from ddtop.procfs import (
    children,
    command_line,
    command_name,
    is_python,
    link,
    names_in,
    own_letter,
    parent_of,
    parents,
    read,
    stat_fields,
    status,
    status_of,
    tasks,
    wchan,
)
from ddtop.relay.processes import cgroup, shared_locks, sockets
from ddtop.relay.processes.inside import PACKAGES, Inside, inside, is_programs, place_of
from ddtop.relay.processes.pyspy import PySpy
from ddtop.relay.processes.sample import Watched, ending, stands_for
from ddtop.wire.names import is_birth
from ddtop.wire.page import ENDED_CHILD, ITS_CHILDREN, OF_CHILDREN
from ddtop.wire.records import (
    BACKLOG,
    CHILD,
    CONNECTION,
    DEBUGGER,
    ENDING,
    FILE_LOCK,
    FROZEN,
    INHERITED,
    KEPT,
    LISTENS,
    LOOKUP,
    MAY,
    MOUNT,
    OBJECT,
    PIPE,
    PROCESS,
    SHARED,
    SIGNAL,
    Link,
    Place,
    ProcessState,
    Sleeper,
    ThreadStack,
)

WAITS_S, EVERY_S, OF_RANKS_EVERY_S = 2.0, 5.0, 1.0
"""A rank that makes no progress is looked at after this time, and then this often; one that waits
for another rank more often: that one may give it what it has, and go on."""
LINKS_MAX, DESCRIPTORS_MAX, POLLED_MAX, ENDS_MAX = 8, 4096, 16, 8
"""Links of a chain, descriptors of other processes that are read for one rank, descriptors in a
poll that are looked at, and addresses for which other hosts are asked."""
_READS = frozenset({"read", "readv", "pread64"})
_WRITES = frozenset({"write", "writev", "pwrite64"})
_LOCKS = frozenset({"flock", "fcntl"})
_POLLS = frozenset({"poll", "ppoll"})
_EPOLLS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})
_SELECTS = frozenset({"select", "pselect6"})
_TALKS = {"recvfrom", "recvmsg", "connect", "sendto", "sendmsg"}
_TALKS |= _READS | _WRITES | _POLLS | _EPOLLS | _SELECTS
_ACCEPTS = frozenset({"accept", "accept4"})
_SIGNALS = frozenset({"rt_sigtimedwait", "rt_sigsuspend", "pause"})
_SIGNALS_NAMED = 3
"""More signals than these are not named."""
_WAITS_FOR_NOBODY = frozenset("TtZX" + FROZEN)
"""States of a process that makes nothing ready, whatever it waits for."""
_ASLEEP = ("S", "D")
_OPENS, _SLEEPS = frozenset({"open", "openat"}), frozenset({"nanosleep", "clock_nanosleep"})
_RUNS_ALL = ("/torch/", "/ddtop/agent/")
"""Of the libraries those whose code is in each process."""
_TRACKER = "resource_tracker"
READS_AT_ONCE, ALIKE_MAX, ABOVE_MAX, THREADS_MAX, CLIENTS_MAX = 2, 8, 32, 64, 16
_CHILDS = frozenset({"wait4", "waitid"})
_O_ACCMODE, _O_WRONLY, _ANY_CHILD = 3, 1, 0xFFFFFFFF
_READER = "reads"
"""`Link.does` of a pipe into which the process writes."""
_WAITS_INSIDE = ("/threading.py", "/queue.py", "/selectors.py", "concurrent/futures/_base.py")
"""Where a thread waits for other threads of its process, or for the next request."""
_SQLITE = 1 << 30
_MEMORY = ("/dev/shm/", "/memfd:", "/dev/zero")
_LEAVES_TO_OTHERS = frozenset({"join", "_wait_for_tstate_lock", "accept", "serve_forever"})
_TALKING = ("ZMQbg/IO", "event_engine")
"""Threads that have all connections of a library, by the beginnings of their names: those of ZeroMQ
and gRPC."""
_SERVERS = ("fuse", "request_wait_answer", "nfs", "rpc_wait", "cifs", "ceph", "ldlm", "cl_sync_io")
"""Parts of the names of functions of the kernel that wait for a file server."""
_POLLFD, _SIGSET = struct.Struct("=ihh"), struct.Struct("=Q")


class _Found(NamedTuple):
    """Where py-spy has found the thread of a process that counts, and the kernel's number of it.
    `own`: it is in code of the program."""

    process: Sleeper | None
    place: Place
    tid: int
    own: bool


class Chains:
    """The chains of the ranks here. A loop calls `look` about once a second."""

    def __init__(self) -> None:
        self._due = 0.0
        self._looked_unix_ns: int | None = None
        self._found: dict[int, tuple[Link, ...]] = {}
        self._served: dict[str, tuple[Link, ...]] = {}
        self._reads: dict[int, PySpy] = {}
        self._places: dict[int, _Found] = {}
        self._texts: dict[int, LatestResult[Inside]] = {}
        self._inside: dict[int, Inside] = {}
        self._alike: set[int] = set()

    def look(
        self,
        waiting: Mapping[int, int],
        states: Sequence[ProcessState],
        now_mono_ns: int,
        asked: Sequence[str] = (),
    ) -> tuple[ProcessState, ...]:
        """The states, with the chains of the ranks that make no progress. `waiting`: what each of
        them waits for, as in `chain_of`, by its pid. `asked`: addresses at which ranks of other
        hosts wait."""
        if not waiting and not asked:
            self._due, self._found, self._served, self._places = 0.0, {}, {}, {}
            self._texts, self._inside = {}, {}
        elif now_mono_ns >= self._due:
            self._looked_unix_ns = time_ns()
            ranks = {state.pid: state.rank for state in states}
            self._found = {
                pid: _with_ranks(
                    self._through(chain_of(pid, awaited) or self._busy_child(pid, awaited), [pid]),
                    ranks,
                )
                for pid, awaited in waiting.items()
            }
            served = {
                address: _with_ranks(self._through(serving(address)), ranks) for address in asked
            }
            self._served = {address: chain for address, chain in served.items() if chain}
            of_ranks = any(chain[-1].rank is not None for chain in self._found.values() if chain)
            self._due = now_mono_ns + (OF_RANKS_EVERY_S if of_ranks else EVERY_S) * 1e9
            self._read_ends(set(ranks))
        self._take()
        if not any(self._found.values()):
            return tuple(states)
        return tuple(
            msgspec.structs.replace(
                state,
                chain=self._with_place(self._found.get(state.pid, ())),
                chain_unix_ns=self._looked_unix_ns,
            )
            for state in states
        )

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The addresses at which chains end, because no process of this host serves them."""
        ends = (chain[-1] for chain in self._found.values() if chain)
        away = (end for end in ends if end.pid is None and end.does != LISTENS)
        found = (end.named for end in away if end.resource == CONNECTION)
        return tuple(dict.fromkeys(found))[:ENDS_MAX]

    def served(self, host: str) -> tuple[tuple[Link, ...], ...]:
        """What is known of the addresses that were asked for. `host`: the name of this one."""
        return tuple(
            tuple(msgspec.structs.replace(link, host=host) for link in self._with_place(chain))
            for chain in self._served.values()
        )

    def close(self) -> None:
        """End the reads that are under way."""
        for spy in self._reads.values():
            spy.kill()
        self._reads.clear()

    def _read_ends(self, ranks: set[int]) -> None:
        """Ask py-spy for the lines of the Pythons of a chain, without stopping them: first of those
        that are not known yet, and of these of the last one."""
        chains = (*self._found.values(), *self._served.values())
        links = sorted(
            (link.pid in self._places, len(found) - at, link.pid)
            for found in chains
            for at, link in enumerate(found)
            if link.pid
        )
        every = dict.fromkeys((*(pid for _, _, pid in links), *self._alike))
        self._alike = set()
        for pid in [one for one in every if one not in ranks and one not in self._reads]:
            if len(self._reads) < READS_AT_ONCE and is_python(pid):
                self._reads[pid] = PySpy(pid, nonblocking=True)

    def _take(self) -> None:
        for pid, spy in list(self._reads.items()):
            found = spy.poll()
            if found is None:
                continue
            del self._reads[pid]
            every = found if not isinstance(found, str) else ()
            threads = tuple(thread for thread in every if thread.frames)
            own = _line_in(is_programs, threads)
            at = own or _line_in(_is_packages, threads)
            if at is not None:
                thread, place = at
                tid = spy.tids.get(thread.thread_id or 0, pid)
                known = self._places.get(pid)
                now = self._places[pid] = _Found(_sleeper(pid, tid), place, tid, own is not None)
                if known is None or known[1:] != now[1:]:
                    # The chain goes on there.
                    self._due = 0.0
            if threads:
                waits = own[0] if own is not None else None
                self._texts[pid] = LatestResult(partial(inside, pid, waits, threads, spy.tids))
                self._texts[pid].ask(monotonic())
        for pid, texts in self._texts.items():
            within = texts.result(monotonic(), EVERY_S)
            if within is not None and within != self._inside.get(pid, Inside()):
                self._inside[pid], self._due = within, 0.0

    def _busy_child(self, pid: int, awaited: int) -> tuple[Link, ...]:
        """Of several children that sleep alike, the one in which py-spy has found the program's
        code: others of a pool wait for their next task."""
        alike = _at_work(pid)[:ALIKE_MAX] if awaited == ITS_CHILDREN else []
        known = [child for child in alike if child in self._places and self._places[child].own]
        self._alike.update(alike if not known else ())
        return (_held(Link(CHILD), known[0]),) if known else ()

    def _through(self, links: tuple[Link, ...], first: Sequence[int] = ()) -> tuple[Link, ...]:
        """The chain, on through the thread that counts in each process at its end. `first`: the
        process that waits."""
        while len(links) < LINKS_MAX and len(further := self._onward(links, first)) > len(links):
            links = further
        return links

    def _onward(self, links: tuple[Link, ...], first: Sequence[int]) -> tuple[Link, ...]:
        pid = links[-1].pid if links and not links[-1].circle else None
        passed = [*first, *(link.pid for link in links[:-1] if link.pid is not None)]
        state = links[-1].process.state if links and links[-1].process is not None else ""
        if state in _WAITS_FOR_NOBODY and state:
            return links
        within = self._inside.get(pid or 0, Inside())
        if pid is not None and within != Inside() and not _only_parks(links, within):
            return (*links, *_within(pid, within, passed))
        known = self._places.get(pid or 0)
        if pid is None or known is None or not known.own:
            return links
        # A child that runs code of the program does not wait for the next order of its parent.
        busy = links[-1].resource == CHILD and not links[-1].does
        if known.tid == pid and not busy:
            return links
        return (*links, *_follow(pid, known.tid, _Budget(DESCRIPTORS_MAX), passed))

    def _with_place(self, links: tuple[Link, ...]) -> tuple[Link, ...]:
        return tuple(
            msgspec.structs.replace(link, process=known.process, place=known.place)
            if (known := self._places.get(link.pid or 0)) is not None
            else link
            for link in links
        )


def _only_parks(links: Sequence[Link], within: Inside) -> bool:
    """Whether the wait of this thread says nothing of a connection that is not accepted: it waits
    for the end of its server."""
    at = within.links[0].resource if within.links else ""
    return links[-1].does == BACKLOG and at in (OBJECT, ENDING)


def _within(pid: int, within: Inside, passed: Sequence[int]) -> Iterator[Link]:
    """The links inside this process, and those of the thread or the client that has the lock."""
    yield from within.links
    if within.tid:
        yield from _follow(pid, within.tid, _Budget(DESCRIPTORS_MAX), passed)
    others = _clients(pid) - {pid, *passed} if within.of_client else set()
    ended = _ended_child(passed[0], well=True) if within.of_client and passed else None
    if ended is not None:
        yield ended
    elif len(others) == 1:
        yield _held(Link(SHARED, does=MAY), *others)


def _clients(pid: int) -> set[int]:
    """The processes that have a connection with this server over unix sockets; none where there are
    too many to look for."""
    every = sockets.inodes(pid) or ()
    peers = [sockets.unix_peer(one)[0] for one in every] if len(every) <= CLIENTS_MAX else []
    return {user for inode in filter(None, peers) for user in sockets.sharers(inode)}


def _with_ranks(chain: Sequence[Link], ranks: Mapping[int, int | None]) -> tuple[Link, ...]:
    return tuple(msgspec.structs.replace(link, rank=ranks.get(link.pid or 0)) for link in chain)


def serving(address: str) -> tuple[Link, ...]:
    """The process of this host that serves this address, and what it waits for: the only one that
    has a connection there, else the one that listens."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not sockets.is_local(host):
        return ()
    table = sockets.table(os.getpid()) or ()
    here = [one for one in table if one.port == int(port)]
    talks = {one.inode for one in here if one.local == host and one.state == "ESTABLISHED"}
    listens = [one.inode for one in here if one.state == "LISTEN"]
    owners = {pid for one in talks if one and (pid := sockets.owner(one, ())) is not None}
    if len(owners) != 1:
        owners = {pid for one in listens[:1] if (pid := sockets.owner(one, ())) is not None}
    for pid in owners:
        found = _held(Link(CONNECTION, address, does="ESTABLISHED"), pid)
        return (found, *_follow(pid, pid, _Budget(DESCRIPTORS_MAX)))
    return ()


def waiting_of(here: Sequence[Watched], now_mono_ns: int) -> dict[int, int]:
    """The ranks that make no progress, and what their state pages say of their waits."""
    return {
        watched.hello.pid: watched.page.awaited_tid
        for watched in here
        if watched.page is not None and stands_for(watched, now_mono_ns) > WAITS_S * 1e9
    }


def _is_packages(file: str) -> bool:
    """Whether it is of a library that the program has chosen."""
    return any(map(file.__contains__, PACKAGES)) and not any(map(file.__contains__, _RUNS_ALL))


def _line_in(
    counts: Callable[[str], bool], threads: Sequence[ThreadStack]
) -> tuple[ThreadStack, Place] | None:
    """The innermost line in such a file, and its thread: the main one, or another one if the main
    one only waits for others of its process or for its next client."""
    for thread in sorted(threads, key=lambda thread: (_idles(thread), not thread.main)):
        # What lies further out is of the parent that has forked it.
        own = takewhile(lambda frame: not is_birth(frame.function, frame.file), thread.frames)
        found = [frame for frame in own if frame.line and counts(frame.file)]
        # A proxy of multiprocessing has code without a file.
        at = next((one for one in found if not one.file.startswith("<")), next(iter(found), None))
        if at is not None:
            return thread, place_of(thread, at)
    return None


def _idles(thread: ThreadStack) -> int:
    """How likely another thread holds up the process: 2 if this one waits for the end of a thread,
    or for a client, 1 if it waits for something else of a thread, 0 otherwise."""
    calls = {frame.function.rpartition(".")[2] for frame in thread.frames[:2]}
    if not calls.isdisjoint(_LEAVES_TO_OTHERS):
        return 2
    return int(bool(thread.frames) and thread.frames[0].file.endswith(_WAITS_INSIDE))


def _sleeper(pid: int, tid: int) -> Sleeper | None:
    """Where this thread of the process is; None if it is gone, or another user's."""
    fields, sleep = stat_fields(f"{pid}/task/{tid}"), sockets.sleeping_in(pid, tid)
    if fields is None:
        return None
    letter = own_letter(pid, fields[0])
    if letter in _ASLEEP and cgroup.is_frozen(cgroup.freezer(pid)):
        letter = FROZEN
    return Sleeper(letter, wchan(f"{pid}/task/{tid}"), sleep.call, sleep.file)


def chain_of(pid: int, awaited: int = 0) -> tuple[Link, ...]:
    """What this process waits for, the nearest first; empty if that is no other process's doing.

    `awaited`: as on the state page. The kernel's number of the thread of it that counts, 0: the
    main thread, or the number of another process.
    """
    budget = _Budget(DESCRIPTORS_MAX)
    if awaited > 0 and link(pid, f"task/{awaited}/exe") is None:
        if stat_fields(awaited) is None:
            # It was a thread, and has ended.
            return ()
        return (_held(Link(PROCESS), awaited), *_follow(awaited, awaited, budget, [pid]))
    if (stat_fields(pid) or "?")[0] == "t":
        return tuple(_debugger(pid))
    found = tuple(_follow(pid, max(awaited, 0) or pid, budget))
    if not found and not awaited:
        # The main thread waits for a thread of a library that talks for it.
        talking = (tuple(_follow(pid, tid, budget)) for tid in _talking_threads(pid))
        found = next(filter(None, talking), ())
    if awaited == ENDED_CHILD and not found and (ended := _ended_child(pid)) is not None:
        return (ended,)
    if awaited in (ITS_CHILDREN, OF_CHILDREN) and (not found or found[-1].nobody):
        return _of_children(pid, awaited == ITS_CHILDREN, budget) or found
    return found


def _talking_threads(pid: int) -> Iterator[int]:
    """The threads of this process that have the connections of a library."""
    for task in tasks(pid):
        if (command_name(task) or "").startswith(_TALKING):
            yield int(task.rpartition("/")[2])


def _of_children(pid: int, theirs: bool, budget: _Budget) -> tuple[Link, ...]:
    """The child that holds it up, and what that one waits for: the first that a signal or an error
    has ended, else one that waits for another process than its parent. `theirs`: only children can
    end the wait, so it is one that runs, or the only one; what they wait for among each other may
    be their next task."""
    if (ended := _ended_child(pid)) is not None:
        return (ended,)
    states = {child: (stat_fields(child) or "Z")[0] for child in _at_work(pid)}
    if (stopped := next((one for one in states if states[one] in "Tt"), None)) is not None:
        return (_held(Link(CHILD), stopped),)
    living = [child for child, state in states.items() if state != "Z"]
    waits: list[tuple[Link, ...]] = []
    for child in living:
        found = tuple(_follow(child, child, budget, [pid]))
        if found and not found[-1].circle:
            waits.append((_held(Link(CHILD), child), *found))
    busy = (child for child in living if states[child] == "R")
    child = next(busy, living[0] if len(living) == 1 else 0) if theirs else 0
    outwards = [chain for chain in waits if not theirs or chain[-1].pid not in living]
    if outwards:
        return outwards[0]
    child = child or next((chain[-1].pid or 0 for chain in waits), 0)
    if child:
        return (_held(Link(CHILD), child),)
    # What it waits for may have been the work of a child that has ended well.
    ended = _ended_child(pid, well=True) if not theirs else None
    return (ended,) if ended is not None else ()


def _at_work(pid: int) -> list[int]:
    """Its children, without those that only wait for its end."""
    return [one for one in children(pid) if _TRACKER not in " ".join(command_line(one) or ())]


class _Budget:
    """How many descriptors may still be read. `waiting`: the processes of the chain so far, the
    rank first: each waits for the next one, and the last one for the process that is looked at."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.waiting: Sequence[int] = ()


def _follow(pid: int, tid: int, budget: _Budget, passed: Sequence[int] = ()) -> Iterator[Link]:
    """The chain from this thread on. `passed`: processes that wait for it."""
    seen = [*passed, pid]
    while len(seen) <= LINKS_MAX:
        budget.waiting = seen[:-1]
        found = _link_of(pid, tid, budget)
        if found is None and pid != seen[0]:
            found = _unread(pid, seen[:-1], budget)
        if found is None or (found.does == LISTENS and pid != seen[0]):
            # A server that waits for its next client.
            return
        if found.pid is None or found.process is None or found.pid == pid:
            yield found
            return
        circle = found.pid in seen
        if not circle and pid != seen[len(passed)] and parent_of(pid) == found.pid:
            # A worker that waits for the next order of its parent.
            return
        yield msgspec.structs.replace(found, circle=circle)
        if found.does == KEPT:
            return
        if circle or found.process.state in _WAITS_FOR_NOBODY:
            yield from _debugger(found.pid)
            return
        pid = tid = found.pid
        seen.append(pid)


def _unread(pid: int, waiting: Sequence[int], budget: _Budget) -> Link | None:
    """What another thread of this process writes, if a process that waits for this one should read
    it: its main thread may wait for that thread."""
    for task in tasks(pid)[:THREADS_MAX]:
        found = _link_of(pid, int(task.rpartition("/")[2]), budget)
        if found is not None and found.does == _READER and found.pid in waiting:
            return found
    return None


class _Call(NamedTuple):
    """`tid`: the thread that has made it. Descriptors and locks are of the process."""

    pid: int
    tid: int
    name: str
    arguments: tuple[int, ...]

    def target(self, number: int) -> str:
        """What this descriptor is: `pipe:[7]`, a path."""
        return link(self.pid, f"fd/{number & 0xFFFFFFFF}") or ""

    def sleeps_in(self, *parts: str) -> bool:
        """It sleeps in a function of the kernel whose name has one of these."""
        return any(part in (wchan(f"{self.pid}/task/{self.tid}") or "") for part in parts)


def _link_of(pid: int, tid: int, budget: _Budget) -> Link | None:
    name, arguments = sockets.parsed_wait((read(f"{pid}/task/{tid}", "syscall") or b"").decode())
    if name is None or len(arguments) < 2:
        return None
    call = _Call(pid, tid, name, arguments)
    if (stat_fields(f"{pid}/task/{tid}") or "?")[0] == "D" or call.sleeps_in(*_SERVERS):
        return _on_disk(call)
    if name in _SLEEPS or (name in _SELECTS and not arguments[0]):
        return _locked_by_other(pid, budget)
    how = next((how for names, how in _HOW if name in names), _of_descriptor)
    return how(call, budget)


def _on_disk(call: _Call) -> Link | None:
    """The file system that does not answer, and its source. Its mount point is the longest one with
    which the path of the call begins."""
    path = sockets.sleeping_in(call.pid, call.tid).file or ""
    mounts: dict[str, str] = {}
    for line in (read(call.pid, "mountinfo") or b"").decode(errors="replace").splitlines():
        words, _, kind = line.partition(" - ")
        point = words.split(" ")[4].replace("\\040", " ")
        if path == point or path.startswith(point.rstrip("/") + "/"):
            mounts[point] = " from ".join(kind.split(" ")[:2])
    if not path.startswith("/") or not mounts:
        return None
    return Link(MOUNT, path, does=mounts[max(mounts, key=len)])


def _debugger(pid: int) -> Iterator[Link]:
    """Who holds this process, as a debugger does."""
    tracer = int(status_of(status(pid), "TracerPid") or 0)
    if tracer:
        yield _held(Link(DEBUGGER), tracer)


def _signal(call: _Call, _budget: _Budget) -> Link:
    return Link(SIGNAL, _signals(call))


def _signals(call: _Call) -> str:
    """`SIGUSR1`: the signals for which it waits; empty for any."""
    if call.name != "rt_sigtimedwait":
        return ""
    (mask,) = _SIGSET.unpack(_memory(call, call.arguments[0], _SIGSET.size) or bytes(8))
    found = [one.name for one in signal.Signals if mask >> (one - 1) & 1]
    return " or ".join(found) if len(found) <= _SIGNALS_NAMED else ""


def _listener(call: _Call, _budget: _Budget) -> Link | None:
    """Where it waits for somebody to connect."""
    inode = sockets.inode(call.pid, call.arguments[0] & 0xFFFFFFFF)
    if inode is None:
        return None
    tcp = (one for one in sockets.table(call.pid) or () if one.inode == inode)
    named = next((f"{one.local}:{one.port}" for one in tcp), None)
    return Link(CONNECTION, named or sockets.unix_peer(inode)[1], does=LISTENS, nobody=True)


def _of_descriptor(call: _Call, budget: _Budget) -> Link | None:
    """The other end of the pipe or the socket that it reads or writes, or of those that it polls,
    if all lead to the same; of one that forwards what others send, the end to which it does."""
    first = call.arguments[0] & 0xFFFFFFFF
    if call.name in _READS and not first and _is_inherited(call, budget):
        return Link(PIPE, does=INHERITED, nobody=True)
    numbers = _watched(call, first)
    found = [end for one in numbers if (end := _far_end(call, one, budget)) is not None]
    ends = {end.pid or end.named for end in found}
    if len(ends) == 1:
        return found[0]
    onward = [one for one in found if one.named and one.pid not in budget.waiting]
    forwards = len(onward) == 1 and len(onward) < len(found) and onward[0].resource == CONNECTION
    return onward[0] if forwards else _last_of(found, budget)


def _is_inherited(call: _Call, budget: _Budget) -> bool:
    """Whether its standard input is that of its parent, and of the process that waits: who writes
    it belongs to neither."""
    own = call.target(0)
    above = {parent_of(call.pid) or 0, *budget.waiting[:1]}
    return bool(own) and all(own == link(pid, "fd/0") for pid in above)


def _last_of(found: Sequence[Link], budget: _Budget) -> Link | None:
    """Of the processes that have these pipes the only one that waits for none of the others: of a
    shell what it has started, of a pipeline the part for which the others wait."""
    pids = {one.pid for one in found if one.resource == PIPE and one.pid is not None}
    waits = {pid: _link_of(pid, pid, budget) for pid in pids}
    last = [pid for pid, then in waits.items() if then is None or then.pid not in pids]
    return next((one for one in found if [one.pid] == last), None)


def _watched(call: _Call, number: int) -> list[int]:
    """The descriptors for which it waits."""
    if call.name in _POLLS:
        return _polled(call)
    if call.name in _SELECTS:
        return _selected(call)
    if call.name not in _EPOLLS:
        return [number]
    text = (read(call.pid, f"fdinfo/{number}") or b"").decode()
    found = [int(line.split()[1]) for line in text.splitlines() if line.startswith("tfd:")]
    return found if len(found) <= POLLED_MAX else []


def _far_end(call: _Call, number: int, budget: _Budget) -> Link | None:
    target = call.target(number)
    if target.startswith("socket:"):
        return _connection(call, number) if call.name in _TALKS else None
    reads = call.name in _READS | _POLLS | _EPOLLS | _SELECTS
    fifo = target.startswith("/") and call.sleeps_in("pipe")
    if call.name not in _READS | _WRITES and not _is_open_to(call.pid, f"{number}", write=False):
        # It only looks whether the other end has been closed.
        return None
    if not (reads or call.name in _WRITES) or not (fifo or target.startswith("pipe:")):
        return None
    found = _other_end(call.pid, target, reads, budget)
    wakes_itself = found.nobody and call.name not in _READS | _WRITES
    return None if wakes_itself and _has_open(call.pid, _fds(call.pid), target, reads) else found


def _held(link: Link, pid: int) -> Link:
    """The link, with this process as the one that has what is awaited."""
    words, state = command_line(pid), _sleeper(pid, pid)
    if state is None:
        return msgspec.structs.replace(link, pid=pid)
    who = _program(words or ()) or command_name(pid)
    return msgspec.structs.replace(link, pid=pid, who=who, process=state)


def _program(words: Sequence[str]) -> str | None:
    """`cat`, `tiles.py`: the program, of an interpreter its script."""
    names = [os.path.basename(word) for word in words if word and not word.startswith("-")]
    return next((name for name in names if name.endswith(".py")), names[0] if names else None)


def _child(call: _Call, budget: _Budget) -> Link | None:
    asked = call.arguments[0] if call.name == "wait4" else call.arguments[1]
    asked &= 0xFFFFFFFF
    mine = [one for one in children(call.pid) if asked in (one, _ANY_CHILD)] or [asked]
    # Of several it waits for the one that does not end by itself.
    waits = (one for one in mine if len(mine) == 1 or _link_of(one, one, budget) is not None)
    pid = next(waits, None)
    return _held(Link(CHILD), pid) if pid in children(call.pid) and pid else None


def _ended_child(pid: int, well: bool = False) -> Link | None:
    """The first child that a signal or an error has ended, and for which nobody has waited yet.
    `well`: one that has ended without either counts too."""
    for child in children(pid):
        if (stat_fields(child) or "?")[0] != "Z":
            continue
        end = ending(None, child)
        if end.signal is not None or end.code or (well and end.code is not None):
            how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.code}"
            return _held(Link(CHILD, does=how), child)
    return None


def _locked_by_other(pid: int, budget: _Budget) -> Link | None:
    """A lock that another process has on a file that this one has open, and has not locked: a
    database that is busy is asked again and again."""
    inodes = {words[5].rpartition(":")[2]: words[4] for words in _locks() if _writes(words, pid)}
    if not inodes:
        return None
    for number in names_in(pid, "fd") or ():
        text = (read(pid, f"fdinfo/{number}") or b"").decode()
        inode = next((line.split()[1] for line in text.splitlines() if line[:4] == "ino:"), "")
        if inode in inodes and "\nlock:" not in text:
            path = link(pid, f"fd/{number}") or ""
            holder = _keeper(int(inodes[inode]), path, budget)
            return _held(Link(FILE_LOCK, path), holder) if holder != pid else None
    return None


def _writes(words: Sequence[str], pid: int) -> bool:
    held = len(words) > 7 and words[1] != "->"
    # A library may lock a byte for each of its readers. SQLite's bytes are beyond 1 GiB. Who reads
    # the whole file keeps writers out.
    whole = held and (words[7] == "EOF" or (words[3] == "WRITE" and int(words[6]) >= _SQLITE))
    return whole and words[4].isdigit() and words[4] != str(pid)


def _locks() -> list[list[str]]:
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        return [line.split() for line in file]
    return []


def _file_lock(call: _Call, budget: _Budget) -> Link | None:
    """The lock for which it is queued in /proc/locks, and who holds it."""
    lines = _locks()
    for words in lines:
        if len(words) > 6 and words[1] == "->" and words[5] == str(call.pid):
            holders = [one for one in lines if one[0] == words[0] and one[1] != "->"]
            path = call.target(call.arguments[0])
            known = (int(one[4]) for one in holders if one[4].isdigit())
            holder = next((_keeper(pid, path, budget) for pid in known), None)
            return _held(Link(FILE_LOCK, path), holder) if holder else Link(FILE_LOCK, path)
    return None


def _keeper(pid: int, path: str, budget: _Budget) -> int:
    """Who has this lock: the process that took it, or one that it has forked meanwhile, if only
    that one has the file open still. The kernel says of each descriptor which locks it has."""
    every = (pid, *children(pid))
    having = (one for one in every if any(link(one, f"fd/{fd}") == path for fd in _fds(one)))
    found = next(having, pid)
    if stat_fields(found) is not None:
        return found
    for other in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        numbers = _fds(other)
        budget.left -= len(numbers)
        if budget.left < 0:
            break
        if any(_locks_by(other, number, path) for number in numbers):
            return other
    return pid


def _locks_by(pid: int, number: str, path: str) -> bool:
    """Whether this descriptor is of that file, and has a lock of it."""
    opened = link(pid, f"fd/{number}") == path
    return opened and b"\nlock:" in (read(pid, f"fdinfo/{number}") or b"")


def _fds(pid: int) -> list[str]:
    return (names_in(pid, "fd") or [])[:DESCRIPTORS_MAX]


def _opening(call: _Call, budget: _Budget) -> Link | None:
    """A named pipe that it opens waits until another process opens the other end."""
    if not call.sleeps_in("fifo", "partner"):
        return None
    path = sockets.sleeping_in(call.pid, call.tid).file or ""
    reads = call.arguments[2 if call.name == "openat" else 1] & _O_ACCMODE != _O_WRONLY
    return _other_end(call.pid, path, reads, budget)


def _other_end(pid: int, target: str, reads: bool, budget: _Budget) -> Link:
    """Who has the other end of this pipe open. `reads`: the process waits for data."""
    named = target if target.startswith("/") else ""
    role = "writes" if reads else _READER
    whole = True
    mine = children(pid)
    every = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for other in (*mine, *(one for one in every if one not in mine and one != pid)):
        numbers = names_in(other, "fd")
        if numbers is None:
            continue
        budget.left -= len(numbers)
        if budget.left < 0:
            whole = False
            break
        if _has_open(other, numbers, target, reads) and reads and _was_left(pid, other, target):
            above = (
                one for one in parents(other, ABOVE_MAX) if _has_open(one, _fds(one), target, reads)
            )
            return _held(Link(PIPE, named, does=KEPT), next(reversed([other, *above])))
        if _has_open(other, numbers, target, reads):
            # A shell that waits for its children still has the pipes that it has made for them.
            theirs = (one for one in children(other) if one != pid)
            users = (one for one in theirs if _has_open(one, names_in(one, "fd"), target, reads))
            return _held(Link(PIPE, named, does=role), next(users, other))
    return Link(PIPE, named, does=role, nobody=whole)


def _was_left(pid: int, other: int, target: str) -> bool:
    """Whether the process that `pid` had started has ended, and has left the pipe to this one."""
    ended = any((stat_fields(child) or "?")[0] == "Z" for child in children(pid))
    return ended and target.startswith("pipe:") and pid not in parents(other, ABOVE_MAX)


def _has_open(pid: int, numbers: Sequence[str] | None, target: str, write: bool) -> bool:
    return any(
        link(pid, f"fd/{number}") == target and _is_open_to(pid, number, write)
        for number in numbers or ()
    )


def _is_open_to(pid: int, number: str, write: bool) -> bool:
    text = (read(pid, f"fdinfo/{number}") or b"").decode()
    flags = next((line.split()[1] for line in text.splitlines() if line.startswith("flags:")), "")
    mode = int(flags, 8) & _O_ACCMODE if flags else -1
    return mode >= 0 and (mode != 0 if write else mode != _O_WRONLY)


def _polled(call: _Call) -> list[int]:
    """The descriptors of a poll."""
    count = call.arguments[1]
    if not 0 < count <= POLLED_MAX:
        return []
    data = _memory(call, call.arguments[0], count * _POLLFD.size)
    return [number for number, _, _ in _POLLFD.iter_unpack(data) if number >= 0]


def _selected(call: _Call) -> list[int]:
    """The descriptors of which a select waits for one that can be read."""
    count, address = call.arguments[0] & 0xFFFFFFFF, call.arguments[1]
    if not address or count > DESCRIPTORS_MAX:
        return []
    bits = int.from_bytes(_memory(call, address, (count + 7) // 8), "little")
    found = [number for number in range(count) if bits >> number & 1]
    return found if len(found) <= POLLED_MAX else []


def _memory(call: _Call, address: int, size: int) -> bytes:
    """What stands there in the memory of the process; empty if that cannot be read."""
    try:
        with open(f"/proc/{call.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            data = memory.read(size)
    except (OSError, ValueError, OverflowError):
        return b""
    return data if len(data) == size else b""


def _connection(call: _Call, number: int) -> Link | None:
    inode = sockets.inode(call.pid, number)
    table = sockets.table(call.pid) or ()
    own = next((one for one in table if one.inode == inode and one.remote_port), None)
    if own is None and inode is not None:
        names = sockets.name_server(call.pid, inode)
        return Link(LOOKUP, names) if names is not None else _unix_socket(call, inode)
    if own is None:
        return None
    if own.state == "SYN_SENT":
        server = next((one for one in table if one.listens_for(own)), None)
        pid = sockets.owner(server.inode, ()) if server is not None else None
        found = Link(CONNECTION, own.far_end, does=own.state)
        return found if pid is None else _held(found, pid)
    if own.state != "ESTABLISHED":
        return Link(CONNECTION, own.far_end, does=own.state)
    far = next((inode for one, inode in sockets.both_ends(table) if one.inode == own.inode), None)
    pid = sockets.owner(far, ()) if far is not None else None
    waits = any(one.is_other_end(own) and not one.inode for one in table)
    serves = any(one.state == "LISTEN" and one.port == own.port for one in table)
    named = "" if serves and pid is not None else own.far_end
    found = Link(CONNECTION, named, does=BACKLOG if waits else own.state)
    return found if pid is None else _held(found, pid)


def _unix_socket(call: _Call, inode: int) -> Link | None:
    """The process at the other end of a unix socket."""
    far, path = sockets.unix_peer(inode)
    users = sockets.sharers(far) if far else ()
    # With both ends of a pair, or of a pipe, a program wakes its own poll.
    if len(users) == 1 and call.pid in users and call.name in _POLLS | _EPOLLS:
        return None
    if len(users) > 1:
        # What has started it, and its own copy of the other end, do not answer.
        above = {call.pid, *parents(call.pid, ABOVE_MAX)}
        users = tuple(pid for pid in users if pid not in above) or users[:1]
    # The server's own end: it waits for a client, which serves nothing.
    named = "" if sockets.is_unix_server(inode) else path
    return _held(Link(CONNECTION, named), users[0]) if len(users) == 1 else None


def _shared_lock(call: _Call, budget: _Budget) -> Link | None:
    """A lock in memory that processes share, and who has it."""
    lock = shared_locks.lock_of(call.pid, call.name, call.arguments)
    if lock is None:
        return None
    # What is only in memory has no name that a reader knows.
    named = "" if lock.path.startswith(_MEMORY) else lock.path
    memory = _memory(call, call.arguments[0], shared_locks.MUTEX.size)
    has = shared_locks.holder(call.pid, lock, memory)
    if has is not None:
        return _held(Link(FILE_LOCK if named else SHARED, named), has)
    waiting = parents(call.pid, 1) if _is_awaited(call.pid, budget) else ()
    may = shared_locks.others(call.pid, lock, waiting)
    if may is None or len(may) > 1:
        return Link(SHARED, named)
    if may:
        return _held(Link(SHARED, named, does=MAY), may[0])
    return _ended_child(call.pid) or Link(SHARED, named, nobody=True)


def _is_awaited(pid: int, budget: _Budget) -> bool:
    """Whether its parent waits for what this process writes, or for its end."""
    above = parent_of(pid) or 0
    found = _link_of(above, above, budget) if above else None
    return found is not None and found.pid == pid


_HOW: tuple[tuple[frozenset[str], Callable[[_Call, _Budget], Link | None]], ...] = (
    (_CHILDS, _child),
    (_LOCKS, _file_lock),
    (_SIGNALS, _signal),
    (_ACCEPTS, _listener),
    (_OPENS, _opening),
    (frozenset({"futex"}), _shared_lock),
)
"""How the link of a call is found; of all others by their descriptor."""
