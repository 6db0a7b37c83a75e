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

from ddtop.agent.guard import guard, suppressed
from ddtop.agent.mpi.communicators import Comm, Communicators
from ddtop.agent.plain import module_of, name_of, whole
from ddtop.agent.tracebacks import leave_out, without_ours
from ddtop.wire import mpi as layout
from ddtop.wire.mpi import ANY, NONE, SEQ_MARK
from ddtop.wire.names import MPI_CODES, MPI_COLLECTIVES, MPI_FILE_COLLECTIVES, ROOTED

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

Mark = tuple[int, int, int, int, Callable[[], None] | None]
"""Of a request: CALL, COMM, then PEER and TAG, or SEQ and SEQ_MARK; if it is persistent, the
function that counts a start of it."""
NO_MARK: Mark = (0, -1, layout.NONE, layout.NONE, None)
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
        self.inside = index < 0
        self.serial = 0
        self.thread = ctypes.c_int64(get_ident()).value
        self.given: tuple[Any, ...] = ()


class Lines:
    """All lines of this process, its communicators and its requests.

    The threads that call MPI write them.
    """

    def __init__(self, mpi: Any, part: memoryview, backend: str) -> None:
        self.part = part
        self.words = part[: layout.WORDS * 8].cast("q")
        self.communicators = Communicators(mpi, self.words, backend)
        self.comms = self.communicators.by_handle
        self.marks: dict[int, Mark] = {}
        self.by_thread: dict[int, ThreadLine] = {}
        self.ring: deque[Past] = deque(maxlen=RING)
        self.total = 0
        self.failed: tuple[str, int, Comm, int, int, int, int] | None = None
        self.nowhere = Comm(0, -1, (), None)
        self.counts_starts = False
        """Whether the starts of persistent requests are seen."""
        self._overflow = ThreadLine(-1)
        self._given_out = 0
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

    def forget(self, handle: int) -> None:
        """The request with this handle is freed."""
        self.marks.pop(handle, None)

    def write_parts(self, line: ThreadLine, parts: list[Mark]) -> None:
        """Write what the next call on this line waits for."""
        base = line.call_at - layout.CALL
        self.words[base + layout.PARTS] = len(parts)
        at = base + layout.PARTS_AT
        for number, (code, comm, what, tag, _) in enumerate(parts[: layout.PARTS_MAX]):
            place = at + number * layout.PART_WORDS
            words = self.words
            words[place], words[place + 1], words[place + 2], words[place + 3] = (
                code,
                comm,
                what,
                tag,
            )


PACK = Struct(f"={layout.HEAD_WORDS}q").pack_into
NOW, _frame = time.monotonic_ns, sys._getframe


# -- The wrapper of each method


Method = Callable[..., Any]


def collective(
    lines: Lines, name: str, original: Method, root_at: int | None, buffer_at: int | None
) -> Method:
    """A blocking collective."""
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
        nbytes = NONE
        if root_at is not None:
            root = args[root_at] if len(args) > root_at else kwargs.get("root", 0)
            if type(root) is not int:
                root = whole(root)
            try:
                root = comm.peers[root] if root is not None and root >= 0 else NONE
            except IndexError:
                root = NONE
        if buffer_at is not None:
            nbytes = _nbytes(args, buffer_at)
        serial = line.serial = line.serial + 1
        line.inside, line.given, now = True, args, NOW()
        if repeats:
            remember((comm, code, root, seq, nbytes, now))
            lines.total += 1
        PACK(part, line.at_bytes, serial, code, comm.index, seq, root, ANY, nbytes, now, serial)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            _note_failure(lines, error, code, comm, seq, root, ANY, nbytes)
            raise
        finally:
            words[line.call_at] = 0
            words[comm.done_at] = seq
            words[comm.last_at] = code
            line.inside, line.given = False, ()

    return call


def _note_failure(lines: Lines, error: BaseException, *call: Any) -> None:
    """The call raised. What ends the program, Ctrl-C for example, is no failure of the call."""
    if issubclass(type(error), Exception):
        lines.failed = (name_of(type(error)), *call)
    leave_out(error)


def creation(lines: Lines, name: str, original: Method) -> Method:
    """A collective that makes a communicator."""
    inner = collective(lines, name, original, None, None)
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
    inner = original if name == "Get_parent" else wrap_by_name(lines, shown, original)

    def note(_: object, result: Any, args: Any) -> None:
        guard.run("mpi communicators", adopt, result, name, args)

    return _followed(inner, id, note)


def wrap_ending(lines: Lines, original: Method, drop: Callable[[int], object]) -> Method:
    """Free, Disconnect and the Close of a file: a new one may get the same handle."""
    return _followed(original, lines.communicators.handle_of, lambda handle, *_: drop(handle))


def started_collective(
    lines: Lines, name: str, original: Method, root_at: int | None, buffer_at: int | None
) -> Method:
    """A nonblocking collective. It gets its number when it starts; the program waits for its
    request.
    """
    note = lines.communicators.calls.note
    code, comms, handle_of, words = (
        MPI_CODES[name],
        lines.comms,
        lines.communicators.handle_of,
        lines.words,
    )

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        comm = comms.get(handle_of(self), lines.nowhere)
        seq = comm.seq = comm.seq + 1
        if comm.order is not None:
            note(comm.order, name, _frame(1))
        root = _root(comm, args, kwargs, root_at) if root_at is not None else NONE
        nbytes = _nbytes(args, buffer_at) if buffer_at is not None else NONE
        lines.ring.append((comm, code, root, seq, nbytes, NOW()))
        lines.total += 1
        try:
            request = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        words[comm.enqueued_at] = seq
        lines.mark(handle_of(request), (code, comm.index, seq, SEQ_MARK, None))
        return request

    return call


def _root(comm: Comm, args: tuple[Any, ...], kwargs: dict[str, Any], at: int) -> int:
    root: Any = args[at] if len(args) > at else kwargs.get("root", 0)
    if type(root) is not int:
        root = whole(root)
    return comm.peers[root] if root is not None and 0 <= root < len(comm.peers) else NONE


def _nbytes(args: tuple[Any, ...], at: int) -> int:
    global _array
    buffer: Any = args[at] if len(args) > at else None
    kind = type(buffer)
    if kind is not _array:
        if module_of(kind) not in ARRAYS:
            return NONE
        _array = kind
    return getattr(buffer, "nbytes", NONE)


class PeerAt:
    """The positions of peer and tag among the arguments, and the values that mean "any"."""

    __slots__ = ("any_source", "any_tag", "peer_at", "peer_name", "tag_at", "tag_name", "which")

    def __init__(
        self, mpi: Any, peer_at: int, tag_at: int, receives: bool, names: tuple[str, str]
    ) -> None:
        self.peer_at, self.tag_at, self.which = peer_at, tag_at, int(receives)
        self.peer_name, self.tag_name = names
        self.any_source, self.any_tag = int(mpi.ANY_SOURCE), int(mpi.ANY_TAG)

    def read(self, comm: Comm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
        """(world rank, tag): ANY if left open, NONE for MPI.PROC_NULL and what cannot be read."""
        receives = self.which
        peer = (
            args[self.peer_at]
            if len(args) > self.peer_at
            else kwargs.get(self.peer_name, self.any_source)
        )
        tag = (
            args[self.tag_at]
            if len(args) > self.tag_at
            else kwargs.get(self.tag_name, self.any_tag * receives)
        )
        if type(peer) is not int or type(tag) is not int:
            peer, tag = whole(peer), whole(tag)
            if peer is None or tag is None:
                return NONE, NONE
        if receives and tag == self.any_tag:
            tag = ANY
        if receives and peer == self.any_source:
            return ANY, tag
        return (comm.peers[peer] if 0 <= peer < len(comm.peers) else NONE), tag

    def count(self, comm: Comm, peer: int, tag: int) -> None:
        """Count one more call."""
        if peer >= 0 or peer == ANY:
            comm.count(peer, tag, self.which)


def wrap_single(
    lines: Lines, name: str, original: Method, point: PeerAt, counts: bool = True
) -> Method:
    """A blocking send, receive or probe."""
    code, comms, by_thread, handle_of = (
        MPI_CODES[name],
        lines.comms,
        lines.by_thread,
        lines.communicators.handle_of,
    )
    part, words, nowhere = lines.part, lines.words, lines.nowhere

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        comm = comms.get(handle_of(self), nowhere)
        peer, tag = (NONE, NONE) if line.inside else point.read(comm, args, kwargs)
        if peer == NONE:
            with without_ours:
                return original(self, *args, **kwargs)
        if counts:
            point.count(comm, peer, tag)
        serial = line.serial = line.serial + 1
        line.inside = True
        PACK(part, line.at_bytes, serial, code, comm.index, 0, peer, tag, NONE, NOW(), serial)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            _note_failure(lines, error, code, comm, 0, peer, tag, NONE)
            raise
        finally:
            words[line.call_at] = 0
            line.inside = False

    return call


def started_single(
    lines: Lines, name: str, original: Method, point: PeerAt, persistent: bool = False
) -> Method:
    """A nonblocking send or receive. The peer is remembered with its request."""
    code, comms, handle_of = MPI_CODES[name], lines.comms, lines.communicators.handle_of

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        comm = comms.get(handle_of(self), lines.nowhere)
        peer, tag = point.read(comm, args, kwargs)
        if not persistent:
            point.count(comm, peer, tag)
        elif not lines.counts_starts:
            comm.wild = True
        try:
            request = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        if peer != NONE:
            count = functools.partial(point.count, comm, peer, tag) if persistent else None
            lines.mark(handle_of(request), (code, comm.index, peer, tag, count))
        return request

    return call


def starting(lines: Lines, original: Method, several: bool) -> Method:
    """Persistent requests are started. Each start counts as one more send or receive."""
    handle_of, marks = lines.communicators.handle_of, lines.marks
    lines.counts_starts = True

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        requests = (args[0] if args else kwargs.get("requests")) if several else (self,)
        if type(requests) in (list, tuple):
            for _, _, _, _, count in _take(_Peek(marks), requests, handle_of):
                if count is not None:
                    count()
        with without_ours:
            return original(self, *args, **kwargs)

    return call


def exchange(lines: Lines, name: str, out: PeerAt, back: PeerAt, original: Method) -> Method:
    """Sendrecv: it waits for both its send and its receive."""
    code, comms, by_thread, handle_of = (
        MPI_CODES[name],
        lines.comms,
        lines.by_thread,
        lines.communicators.handle_of,
    )
    send, receive = MPI_CODES["Send"], MPI_CODES["Recv"]

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        comm = comms.get(handle_of(self), lines.nowhere)
        parts: list[Mark] = []
        for point, kind in ((out, send), (back, receive)):
            peer, tag = (NONE, NONE) if line.inside else point.read(comm, args, kwargs)
            point.count(comm, peer, tag)
            if peer != NONE:
                parts.append((kind, comm.index, peer, tag, None))
        with without_ours:
            return _run_waiting(
                lines,
                line,
                code,
                comm.index,
                parts,
                len(parts),
                lambda: original(self, *args, **kwargs),
            )

    return call


def wait_one(lines: Lines, name: str, original: Method) -> Method:
    """The wait of a request."""
    part, words = lines.part, lines.words
    code, by_thread, handle_of, marks = (
        MPI_CODES[name],
        lines.by_thread,
        lines.communicators.handle_of,
        lines.marks,
    )

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        if line.inside:
            with without_ours:
                return original(self, *args, **kwargs)
        handle = handle_of(self)
        mark = marks.pop(handle, NO_MARK)
        kind, comm, what, tag, count_start = mark
        if count_start is not None:
            marks[handle] = mark
        serial = line.serial = line.serial + 1
        line.inside = True
        PACK(part, line.at_bytes, serial, code, comm, 0, what, tag, kind, NOW(), serial)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            words[line.call_at] = 0
            line.inside = False

    return call


def wait_many(lines: Lines, name: str, original: Method) -> Method:
    """A class method that waits for several requests. Requests that are still open keep their
    marks."""
    code, by_thread, handle_of, marks = (
        MPI_CODES[name],
        lines.by_thread,
        lines.communicators.handle_of,
        lines.marks,
    )
    all_of_them = name.lower() == "waitall"

    @functools.wraps(original)
    def call(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        requests = args[0] if args else kwargs.get("requests")
        parts: list[Mark] = []
        if type(requests) in (list, tuple) and not line.inside:
            parts = _take(marks if all_of_them else _Peek(marks), requests, handle_of)
        total = len(parts)
        with without_ours:
            return _run_waiting(
                lines, line, code, NONE, parts, total, lambda: original(cls, *args, **kwargs)
            )

    return call


class _Peek:
    """Marks whose `pop` leaves them in place."""

    def __init__(self, marks: dict[int, Mark]) -> None:
        self._marks = marks

    def pop(self, handle: int, default: Mark | None = None) -> Mark | None:
        return self._marks.get(handle, default)

    def __setitem__(self, handle: int, mark: Mark) -> None:
        pass


def _take(marks: Any, requests: Any, handle_of: Any) -> list[Mark]:
    parts = []
    for request in requests:
        handle = None
        # What is no request mpi4py will refuse.
        with suppressed:
            handle = handle_of(request)
        if handle is None:
            return []
        mark = marks.pop(handle, None)
        if mark is not None:
            parts.append(mark)
            if mark[4] is not None:
                marks[handle] = mark
    return parts


def _run_waiting(
    lines: Lines,
    line: ThreadLine,
    code: int,
    comm: int,
    parts: list[Mark],
    total: int,
    run: Callable[[], Any],
) -> Any:
    if not total:
        return run()
    lines.write_parts(line, parts)
    serial = line.serial = line.serial + 1
    line.inside = True
    PACK(lines.part, line.at_bytes, serial, code, comm, 0, NONE, NONE, NONE, NOW(), serial)
    try:
        return run()
    finally:
        lines.words[line.call_at] = 0
        line.inside = False


def wrap_by_name(lines: Lines, name: str, original: Method) -> Method:
    """A call of which only the name is known."""
    code, by_thread = MPI_CODES[name], lines.by_thread

    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = by_thread.get(get_ident()) or lines.new_line()
        total = 0 if line.inside else 1
        with without_ours:
            return _run_waiting(
                lines, line, code, NONE, [], total, lambda: original(self, *args, **kwargs)
            )

    return call
