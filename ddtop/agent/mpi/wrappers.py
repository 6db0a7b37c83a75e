"""The wrapper of each of mpi4py's methods: write the call to the page, run the method, erase the
call.

Written for speed: about a microsecond per call, half of it for packing and the clock. Only the
outermost call of a thread is noted. The wrappers raise no errors of their own: if they cannot read
an argument, mpi4py refuses it too.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from struct import Struct
from threading import get_ident
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard, suppressed
from ddtop.agent.mpi.communicators import Comm, Communicators
from ddtop.agent.plain import module_of, whole
from ddtop.agent.probes import exceptions
from ddtop.agent.tracebacks import leave_out, without_ours
from ddtop.wire import mpi as layout
from ddtop.wire.mpi import ANY, NONE, SEQ_MARK
from ddtop.wire.names import (
    MPI_CODES,
    MPI_COLLECTIVES,
    MPI_FILE_COLLECTIVES,
    P2P_CALLS,
    ROOTED,
)

# -- Which of mpi4py's methods are watched, and which of their arguments are read
#
# Get_rank, Get_size, Test, Iprobe and other methods that programs call in hot loops are left out on
# purpose.


CREATIONS = (
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph",
    "Create_dist_graph_adjacent", "Create_dist_graph", "Sub", "Create_intercomm", "Merge",
)  # fmt: skip
NONBLOCKING = tuple(name for name in MPI_CODES if name in MPI_COLLECTIVES and name.startswith("I"))
ON_FILES = tuple(name.removeprefix("File.") for name in MPI_FILE_COLLECTIVES)
BLOCKING = tuple(MPI_COLLECTIVES - MPI_FILE_COLLECTIVES - {*NONBLOCKING, *CREATIONS})

# Place of the root among the arguments.
ROOTS = {
    "Bcast": 1, "Gather": 2, "Gatherv": 2, "Scatter": 2, "Scatterv": 2, "Reduce": 3,
    "bcast": 1, "gather": 1, "scatter": 1, "reduce": 2,
    "Ibcast": 1, "Igather": 2, "Igatherv": 2, "Iscatter": 2, "Iscatterv": 2, "Ireduce": 3,
}  # fmt: skip
# Index of the buffer that must have the same length on all members: the receive buffer, because the
# other one may be IN_PLACE.
BUFFERS = {
    "Bcast": 0,
    "Ibcast": 0,
    "Allreduce": 1,
    "Iallreduce": 1,
    "Scan": 1,
    "Iscan": 1,
    "Exscan": 1,
    "Iexscan": 1,
}

SENDS = ("Send", "Ssend", "Bsend", "Rsend", "send", "ssend", "bsend")
STARTED_SENDS = ("Isend", "Issend", "Ibsend", "Irsend", "isend", "issend", "ibsend")
PREPARED_SENDS = ("Send_init", "Ssend_init", "Bsend_init", "Rsend_init")
RECEIVES = ("Recv", "recv")
STARTED_RECEIVES = ("Irecv", "irecv")
PREPARED_RECEIVES = ("Recv_init",)
PROBES = ("Probe", "probe", "Mprobe", "mprobe")
# Places of dest, sendtag, source, recvtag.
EXCHANGES = {"Sendrecv": (1, 2, 4, 5), "sendrecv": (1, 2, 4, 5), "Sendrecv_replace": (1, 2, 3, 4)}

WAITS = ("Wait", "wait")
MANY_WAITS = ("Waitall", "waitall", "Waitany", "waitany", "Waitsome", "waitsome")

# Methods of which only the name is noted: (class, method).
NAMED: tuple[tuple[str, str], ...] = (
    *(
        (name.partition(".")[0], name.partition(".")[2])
        for name in MPI_CODES
        if "." in name and name not in MPI_FILE_COLLECTIVES
    ),
    ("Topocomm", "Neighbor_allgather"),
    ("Topocomm", "Neighbor_allgatherv"),
    ("Topocomm", "Neighbor_alltoall"),
    ("Topocomm", "Neighbor_alltoallv"),
    ("Topocomm", "Neighbor_alltoallw"),
    ("Topocomm", "neighbor_allgather"),
    ("Topocomm", "neighbor_alltoall"),
    ("Intracomm", "Create_group"),
    ("Comm", "Disconnect"),
)

assert set(ROOTS) == set(ROOTED)


# -- Writes the MPI part of the state page: one line per thread


RING = 1024
"""Collectives that are remembered. Their times are used to find stragglers and the program's
pattern, and the last few to explain ranks that are blocked in a collective that this rank has
completed."""
MARKS_MAX = 1 << 16
ARRAYS = frozenset({"builtins", "numpy", "cupy"})
"""Modules of the buffers whose size is read. One of the program may compute it."""
_array: type = memoryview
"""The type of the last such buffer: to compare it is faster."""

Mark = tuple[int, Comm, int, int, Callable[[], None] | None]
"""Of a request: CALL, its communicator, then PEER and TAG, or SEQ and SEQ_MARK; if it is
persistent, the function that counts a start of it."""
Past = tuple[Comm, int, int, int, int, int]
"""A collective that was entered: communicator, code, root, number, bytes, when (monotonic ns)."""


class ThreadLine:
    """One thread's place on the page. `inside`: it shows a call, or the thread has no place.

    `given`: the arguments of the collective that the thread is in. Other threads must not hold
    them: they could come to hold the last reference to a buffer of the program.
    """

    __slots__ = ("at_bytes", "call_at", "given", "inside", "serial", "thread")

    def __init__(self, index: int) -> None:
        self.call_at = layout.LINES_AT + index * layout.LINE_WORDS + layout.CALL
        self.at_bytes = (layout.LINES_AT + index * layout.LINE_WORDS) * 8
        self.inside, self.serial = index < 0, 0
        self.thread = ctypes.c_int64(get_ident()).value
        self.given: tuple[Any, ...] = ()


class Lines:
    """All lines of this process, its communicators and its requests.

    The threads that call MPI write them.
    """

    def __init__(self, mpi: Any, part: memoryview, backend: str) -> None:
        self.part, self.words = part, part[: layout.WORDS * 8].cast("q")
        self.communicators = Communicators(mpi, self.words, backend)
        self.comms = self.communicators.by_handle
        self.marks: dict[int, Mark] = {}
        self.by_thread: dict[int, ThreadLine] = {}
        self.ring: deque[Past] = deque(maxlen=RING)
        self.total = 0
        self.failed: tuple[int, Comm, int, int, int, int] | None = None
        self.nowhere = Comm(0, -1, (), None)
        self.counts_starts = False
        """Whether the starts of persistent requests are seen."""
        self._overflow, self._given_out = ThreadLine(-1), 0
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # The page belongs to the parent: nothing is written in a child, whatever it calls.
        self.by_thread.clear()
        self._given_out = layout.LINES

    def new_line(self) -> ThreadLine:
        """A line for the calling thread; if the page is full, one that is never shown."""
        if self._given_out >= layout.LINES:
            return self._overflow
        line = self.by_thread[get_ident()] = ThreadLine(self._given_out)
        self.words[line.call_at - layout.CALL + layout.THREAD] = line.thread
        self._given_out += 1
        return line

    def last_collectives(self, number: int) -> list[Past]:
        """The last `number` collectives, the oldest first. May be called on the agent's thread."""
        return list(self.ring)[-number:]

    def mark(self, handle: int, mark: Mark) -> None:
        """Remember what a request stands for. The next request with this handle replaces it."""
        if len(self.marks) < MARKS_MAX:
            self.marks[handle] = mark

    def note_failure(
        self, error: BaseException, call: tuple[int, Comm, int, int, int, int]
    ) -> None:
        """The call raised. What ends the program, such as Ctrl-C, is not a failure of the call."""
        if issubclass(type(error), Exception):
            self.failed = call

    def forget(self, handle: int) -> None:
        """The request with this handle is freed."""
        self.marks.pop(handle, None)

    def write_parts(self, line: ThreadLine, parts: list[Mark]) -> None:
        """Write what the next call on this line waits for."""
        base = line.call_at - layout.CALL
        self.words[base + layout.PARTS] = len(parts)
        at = base + layout.PARTS_AT
        for number, (code, comm, what, tag, _) in enumerate(parts[: layout.PARTS_MAX]):
            place, words = at + number * layout.PART_WORDS, self.words
            words[place], words[place + 1] = code, comm.index
            words[place + 2], words[place + 3] = what, tag


PACK = Struct(f"={layout.HEAD_WORDS}q").pack_into
NOW, _frame = time.monotonic_ns, sys._getframe


# -- The wrapper of each method


Method = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Noted = tuple[Comm, int, int, int]
"""What the head of a line says of a call: communicator, PEER or SEQ, TAG, and the CALL of the
request."""
Read = Callable[[ThreadLine, Any, Args, Kwargs], "Noted | None"]
"""Reads a call of this object that waits; None: it is not noted."""


def collective(lines: Lines, name: str, original: Method) -> Method:
    """A blocking collective."""
    root_at, buffer_at = ROOTS.get(name), BUFFERS.get(name)
    code, comms, by_thread, handle_of = (
        MPI_CODES[name],
        lines.comms,
        lines.by_thread,
        lines.communicators.handle_of,
    )
    part, words, nowhere = lines.part, lines.words, lines.nowhere
    remember, note = lines.ring.append, lines.communicators.calls.note
    # Each opening of a file is another group: its calls would be in no pattern.
    repeats = name not in MPI_FILE_COLLECTIVES

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        if line.inside:
            with without_ours:
                return original(self, *args, **kwargs)
        comm = comms.get(handle_of(self), nowhere)
        seq = comm.seq = comm.seq + 1
        order = comm.order
        if order is not None:
            note(order, name, _frame(1))
        root: Any = NONE
        if root_at is not None:
            # As `_root`, without its call.
            root = args[root_at] if len(args) > root_at else kwargs.get("root", 0)
            if type(root) is not int:
                root = whole(root)
            known = root is not None and 0 <= root < len(comm.peers)
            root = comm.peers[root] if known else NONE
        nbytes = _nbytes(args, buffer_at) if buffer_at is not None else NONE
        serial = line.serial = line.serial + 1
        line.inside, line.given, now = True, args, NOW()
        if repeats:
            remember((comm, code, root, seq, nbytes, now))
            lines.total += 1
        PACK(part, line.at_bytes, serial, code, comm.index, seq, root, ANY, nbytes, now, serial)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            lines.note_failure(error, (code, comm, seq, root, ANY, nbytes))
            leave_out(error)
            raise
        finally:
            words[line.call_at] = 0
            words[comm.done_at] = seq
            if comm.last != code:
                words[comm.last_at] = comm.last = code
            line.inside, line.given = False, ()

    return call


def creation(lines: Lines, name: str, original: Method) -> Method:
    """A collective that makes a communicator."""
    inner = collective(lines, name, original)
    comms, handle_of, adopt = lines.comms, lines.communicators.handle_of, lines.communicators.adopt

    def note(parent: Comm, result: Any, _args: Any) -> None:
        guard.run("mpi communicators", adopt, result, name, parent, parent.seq)

    return _followed(inner, lambda self: comms.get(handle_of(self), lines.nowhere), note)


def _followed(
    original: Method, before: Callable[[Any], Any], after: Callable[[Any, Any, Any], object]
) -> Method:
    """A rare call. `after` gets what `before` made of the object, the result and the arguments."""

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        noted = before(self)
        with without_ours:
            result = original(self, *args, **kwargs)
        after(noted, result, args)
        return result

    return call


def opening(lines: Lines, name: str, original: Method, adopt: Callable[..., None]) -> Method:
    """A call that gives a communicator with another world, or a file. Of the call only the name is
    known. `adopt` gets what it gives, the name and the arguments.
    """
    shown = name if name in MPI_CODES else "Spawn"
    inner = original if name == "Get_parent" else waiting(lines, by_name(lines), shown, original)

    def note(_: object, result: Any, args: Any) -> None:
        guard.run("mpi communicators", adopt, result, name, args)

    return _followed(inner, id, note)


def wrap_ending(lines: Lines, original: Method, drop: Callable[[int], object]) -> Method:
    """Free, Disconnect and the Close of a file: a new one may get the same handle."""
    return _followed(original, lines.communicators.handle_of, lambda handle, *_: drop(handle))


def aborting(original: Method) -> Method:
    """Abort ends the process: the exception that is handled there is why."""

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        running = current.get()
        if running is not None:
            exceptions.note_handled(running)
        return original(self, *args, **kwargs)

    return call


def _started(lines: Lines, read: Callable[[Any, Args, Kwargs], Mark], original: Method) -> Method:
    """A call that starts something or prepares it: the program waits for its request."""
    words, handle_of = lines.words, lines.communicators.handle_of

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        mark = read(self, args, kwargs)
        try:
            request = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        _, comm, what, tag, _ = mark
        if tag == SEQ_MARK:
            words[comm.enqueued_at] = what
        if what != NONE:
            lines.mark(handle_of(request), mark)
        return request

    return call


def started_collective(lines: Lines, name: str, original: Method) -> Method:
    """A nonblocking collective. It gets its number when it starts."""
    root_at, buffer_at = ROOTS.get(name), BUFFERS.get(name)
    note = lines.communicators.calls.note
    code, comms, handle_of = MPI_CODES[name], lines.comms, lines.communicators.handle_of

    def read(self: Any, args: Args, kwargs: Kwargs) -> Mark:
        comm = comms.get(handle_of(self), lines.nowhere)
        seq = comm.seq = comm.seq + 1
        if comm.order is not None:
            note(comm.order, name, _frame(2))
        root = _root(comm, args, kwargs, root_at) if root_at is not None else NONE
        nbytes = _nbytes(args, buffer_at) if buffer_at is not None else NONE
        lines.ring.append((comm, code, root, seq, nbytes, NOW()))
        lines.total += 1
        return code, comm, seq, SEQ_MARK, None

    return _started(lines, read, original)


def _root(comm: Comm, args: Args, kwargs: Kwargs, at: int) -> int:
    root: Any = args[at] if len(args) > at else kwargs.get("root", 0)
    if type(root) is not int:
        root = whole(root)
    return comm.peers[root] if root is not None and 0 <= root < len(comm.peers) else NONE


def _nbytes(args: Args, at: int) -> int:
    global _array
    buffer: Any = args[at] if len(args) > at else None
    if type(buffer) is not _array:
        if module_of(type(buffer)) not in ARRAYS:
            return NONE
        _array = type(buffer)
    return getattr(buffer, "nbytes", NONE)


class PeerAt:
    """What reads peer and tag of a call: `read` gives (world rank, tag), ANY if left open, NONE for
    MPI.PROC_NULL and what cannot be read. `which`: 1 of a call that receives, 0 of one that sends.
    """

    __slots__ = ("read", "which")

    def __init__(
        self, mpi: Any, peer_at: int, tag_at: int, receives: bool, names: tuple[str, str]
    ) -> None:
        """The positions of peer and tag among the arguments, and their names."""
        any_source, any_tag, (peer_name, tag_name) = int(mpi.ANY_SOURCE), int(mpi.ANY_TAG), names
        tag_else = any_tag if receives else 0

        def read(comm: Comm, args: Args, kwargs: Kwargs) -> tuple[int, int]:
            peer = args[peer_at] if len(args) > peer_at else kwargs.get(peer_name, any_source)
            tag = args[tag_at] if len(args) > tag_at else kwargs.get(tag_name, tag_else)
            if type(peer) is not int or type(tag) is not int:
                peer, tag = whole(peer), whole(tag)
                if peer is None or tag is None:
                    return NONE, NONE
            if receives and tag == any_tag:
                tag = ANY
            if receives and peer == any_source:
                return ANY, tag
            return (comm.peers[peer] if 0 <= peer < len(comm.peers) else NONE), tag

        self.read, self.which = read, int(receives)


def waiting(lines: Lines, read: Read, name: str, original: Method) -> Method:
    """A call that waits, other than a collective."""
    code, by_thread = MPI_CODES[name], lines.by_thread
    part, words, tells_failure = lines.part, lines.words, name in P2P_CALLS

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        noted = None if line.inside else read(line, self, args, kwargs)
        if noted is None:
            with without_ours:
                return original(self, *args, **kwargs)
        comm, what, tag, kind = noted
        serial = line.serial = line.serial + 1
        line.inside = True
        PACK(part, line.at_bytes, serial, code, comm.index, 0, what, tag, kind, NOW(), serial)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            if tells_failure:
                lines.note_failure(error, (code, comm, 0, what, tag, NONE))
            leave_out(error)
            raise
        finally:
            words[line.call_at] = 0
            line.inside = False

    return call


def by_name(lines: Lines) -> Read:
    """Reads a call of which only the name is known."""
    noted = lines.nowhere, NONE, NONE, NONE
    return lambda *_: noted


def with_peer(lines: Lines, point: PeerAt, counts: bool = True) -> Read:
    """Reads a blocking send, receive or probe."""
    comms, handle_of, nowhere = lines.comms, lines.communicators.handle_of, lines.nowhere
    read_peer, which = point.read, point.which

    def read(_line: ThreadLine, self: Any, args: Args, kwargs: Kwargs) -> Noted | None:
        comm = comms.get(handle_of(self), nowhere)
        peer, tag = read_peer(comm, args, kwargs)
        if peer == NONE:
            return None
        if counts:
            comm.count(peer, tag, which)
        return comm, peer, tag, NONE

    return read


def started_single(
    lines: Lines, point: PeerAt, persistent: bool, name: str, original: Method
) -> Method:
    """A nonblocking send or receive. The peer is remembered with its request."""
    code, comms, handle_of = MPI_CODES[name], lines.comms, lines.communicators.handle_of
    read_peer, which = point.read, point.which

    def read(self: Any, args: Args, kwargs: Kwargs) -> Mark:
        comm = comms.get(handle_of(self), lines.nowhere)
        peer, tag = read_peer(comm, args, kwargs)
        if persistent:
            comm.wild = comm.wild or not lines.counts_starts
            return code, comm, peer, tag, functools.partial(comm.count, peer, tag, which)
        if peer != NONE:
            comm.count(peer, tag, which)
        return code, comm, peer, tag, None

    return _started(lines, read, original)


def starting(lines: Lines, original: Method, several: bool) -> Method:
    """Persistent requests are started. Each start counts as one more send or receive."""
    lines.counts_starts = True

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        requests = _requests(args, kwargs) if several else (self,)
        for _, _, _, _, count in _marks_of(lines, requests, over=False):
            if count is not None:
                count()
        with without_ours:
            return original(self, *args, **kwargs)

    return call


def exchange(lines: Lines, out: PeerAt, back: PeerAt) -> Read:
    """Reads a Sendrecv: it waits for both its send and its receive."""
    comms, handle_of, nowhere = lines.comms, lines.communicators.handle_of, lines.nowhere
    ends = (MPI_CODES["Send"], out), (MPI_CODES["Recv"], back)

    def read(line: ThreadLine, self: Any, args: Args, kwargs: Kwargs) -> Noted | None:
        comm = comms.get(handle_of(self), nowhere)
        parts: list[Mark] = []
        for code, point in ends:
            peer, tag = point.read(comm, args, kwargs)
            if peer != NONE:
                comm.count(peer, tag, point.which)
                parts.append((code, comm, peer, tag, None))
        lines.write_parts(line, parts)
        return (comm, NONE, NONE, NONE) if parts else None

    return read


def one_request(lines: Lines) -> Read:
    """Reads the wait of a request."""
    marks, handle_of = lines.marks, lines.communicators.handle_of
    unknown = lines.nowhere, NONE, NONE, 0

    def read(_line: ThreadLine, self: Any, _args: Args, _kwargs: Kwargs) -> Noted:
        handle = handle_of(self)
        mark = marks.pop(handle, None)
        if mark is None:
            return unknown
        code, comm, what, tag, count_start = mark
        if count_start is not None:
            marks[handle] = mark
        return comm, what, tag, code

    return read


def wait_many(lines: Lines, name: str, original: Method) -> Method:
    """A class method that waits for several requests. Requests that are still open keep their
    marks."""
    noted, all_of_them = (lines.nowhere, NONE, NONE, NONE), name.lower() == "waitall"

    def read(line: ThreadLine, _cls: Any, args: Args, kwargs: Kwargs) -> Noted | None:
        parts = _marks_of(lines, _requests(args, kwargs), over=all_of_them)
        lines.write_parts(line, parts)
        return noted if parts else None

    return waiting(lines, read, name, original)


def _requests(args: Args, kwargs: Kwargs) -> Any:
    found = args[0] if args else kwargs.get("requests")
    return found if type(found) in (list, tuple) else ()


def _marks_of(lines: Lines, requests: Any, over: bool) -> list[Mark]:
    """`over`: the requests are used up, but for the persistent ones."""
    marks, parts = lines.marks, []
    take, handle_of = marks.pop if over else marks.get, lines.communicators.handle_of
    for request in requests:
        handle = None
        # What is not a request mpi4py will refuse.
        with suppressed:
            handle = handle_of(request)
        if handle is None:
            return []
        mark = take(handle, None)
        if mark is not None:
            parts.append(mark)
            if mark[4] is not None:
                marks[handle] = mark
    return parts
