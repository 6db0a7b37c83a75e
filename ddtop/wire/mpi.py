"""What a rank does in MPI: the part of the state page that mpi4py's wrappers write, and its record.

A call is on the page before it starts. MPI_Init, MPI_Finalize and the first lowercase allreduce of
a communicator hold the GIL: then no thread of the process can report anything, and the relay reads
the page instead of the agent. Each line belongs to one thread and holds its outermost call. It is
written in one pass between two equal serial numbers. A reader that finds them different reads
again.
"""

from __future__ import annotations

import msgspec

from ddtop.wire.names import MPI_CALLS, MPI_EXCHANGES, MPI_ONE_WAITS, MPI_WAITS

# Words of the MPI part of the page, counted from its own beginning.
WORLD_SIZE_AT, WORLD_RANK_AT, FINALIZE_AT = 0, 1, 2
LINES_AT, LINES, LINE_WORDS = 8, 4, 64
COMMS_AT, COMMS, COMM_WORDS = LINES_AT + LINES * LINE_WORDS, 64, 4
WORDS = COMMS_AT + COMMS * COMM_WORDS

# A line. PEER is a world rank: the root of a rooted collective, else whom the call waits for.
SERIAL, CALL, COMM, SEQ, PEER, TAG, NBYTES, SINCE, SERIAL_AGAIN, THREAD, PARTS = range(11)
HEAD_WORDS = 9
"""Written anew for every call, in this order; THREAD once, PARTS by those that have some."""
PARTS_AT, PART_WORDS, PARTS_MAX = 16, 4, 12
"""The requests that a Waitall waits for, or both halves of a Sendrecv; each CALL, COMM, then SEQ or
PEER, then TAG. A Wait for one request has it in its head: COMM, SEQ or PEER, and TAG are the
request's, and its CALL stands in NBYTES."""
COMM_UID, COMM_ENQUEUED, COMM_DONE, COMM_LAST = range(4)
"""ENQUEUED is written by nonblocking collectives only, DONE and LAST (the code of the call) when a
blocking one returned."""

NONE, ANY, SEQ_MARK = -1, -2, -3
"""No peer, any peer, any tag: the same for all MPI libraries. In the place of a part's tag: the
part is a collective, and the word before is its number."""
WORLD_UID, OUTSIDE_BIT = 1, 1 << 62
"""Set in the number of a communicator with processes of another world, which have no rank here."""
_READS_MAX = 4


class MpiPart(msgspec.Struct, frozen=True, array_like=True):
    """One request of a Wait, one half of a Sendrecv, or one collective that is over.

    `peer`: a world rank, of a collective its root; None: any, `tag` likewise. `seq` is set for
    collectives.
    """

    name: str
    group: str | None = None
    seq: int | None = None
    peer: int | None = None
    tag: int | None = None
    nbytes: int | None = None


class MpiCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that has not returned. `parts`: the first of the requests that it waits for."""

    name: str
    since_unix_ns: int
    thread_id: int
    group: str | None = None
    seq: int | None = None
    peer: int | None = None
    tag: int | None = None
    nbytes: int | None = None
    dtype: str | None = None
    parts: tuple[MpiPart, ...] = ()
    serial: int = 0


class MpiComm(msgspec.Struct, frozen=True, array_like=True):
    """How far this rank is in one communicator.

    Collectives that were called, blocking ones that returned, and the last of these.
    """

    name: str
    enqueued: int
    completed: int
    last_op: str | None = None


class MpiTraffic(msgspec.Struct, frozen=True, array_like=True):
    """Sends and receives that this rank has begun with one peer (a world rank) and tag.

    None: any peer, any tag. `is_last`: the last send to this peer had this tag.
    """

    group: str
    peer: int | None
    tag: int | None
    sent: int
    received: int
    is_last: bool = False


class MpiState(msgspec.Struct, frozen=True, array_like=True):
    """What a rank does in MPI at one moment, as the agent or, from the page alone, the relay sees
    it.

    Only the agent tells `done` (the last collectives that are over), `traffic` and `failed` (the
    call that raised last), and only while something is stuck or has raised.
    """

    unix_ns: int
    calls: tuple[MpiCall, ...] = ()
    comms: tuple[MpiComm, ...] = ()
    finalize_since_unix_ns: int | None = None
    done: tuple[MpiPart, ...] = ()
    traffic: tuple[MpiTraffic, ...] = ()
    failed: MpiCall | None = None


_OUTSIDE = "mpi-outside:"


def group_name(uid: int) -> str:
    """The name of a communicator, equal on all its members in this world."""
    return f"{_OUTSIDE if uid & OUTSIDE_BIT else 'mpi:'}{uid:x}"


def is_outside(group: str | None) -> bool:
    """Whether processes of another world are in the communicator of this name."""
    return group is not None and group.startswith(_OUTSIDE)


def read_mpi(part: memoryview | bytes, unix_ns: int, unix_minus_mono: int) -> MpiState | None:
    """What the MPI part of a page says, None where no world is known yet and no call is open."""
    words = memoryview(part)[: WORDS * 8].cast("q")
    if not words[WORLD_SIZE_AT]:
        return None
    names: dict[int, str] = {}
    for index in range(COMMS):
        uid = words[COMMS_AT + index * COMM_WORDS + COMM_UID]
        if uid > 0:
            names[index] = group_name(uid)
    calls = tuple(
        call
        for index in range(LINES)
        if (call := _read_line(words, index, names, unix_minus_mono)) is not None
    )
    comms = tuple(_read_comm(words, index, name, calls) for index, name in names.items())
    finalize = words[FINALIZE_AT]
    return MpiState(unix_ns, calls, comms, finalize + unix_minus_mono if finalize else None)


def _read_line(
    words: memoryview, index: int, names: dict[int, str], unix_minus_mono: int
) -> MpiCall | None:
    at = LINES_AT + index * LINE_WORDS
    for _ in range(_READS_MAX):
        line = words[at : at + LINE_WORDS].tolist()
        if (
            line[SERIAL] == line[SERIAL_AGAIN] == words[at + SERIAL]
            and line[CALL] == words[at + CALL]
        ):
            break
    else:
        return None
    if not 0 < line[CALL] < len(MPI_CALLS):
        return None
    name = MPI_CALLS[line[CALL]]
    if name in MPI_ONE_WAITS:
        part = _part(line[NBYTES], line[COMM], line[PEER], line[TAG], names)
        found = (part,) if part.name else ()
        since = line[SINCE] + unix_minus_mono
        return MpiCall(name, since, line[THREAD], parts=found, serial=line[SERIAL])
    parts = line[PARTS] if name in MPI_WAITS or name in MPI_EXCHANGES else 0
    return MpiCall(
        name,
        line[SINCE] + unix_minus_mono,
        line[THREAD],
        names.get(line[COMM]),
        line[SEQ] if line[SEQ] > 0 else None,
        _number(line[PEER]),
        _number(line[TAG]),
        line[NBYTES] if line[NBYTES] >= 0 else None,
        parts=tuple(
            _read_part(line, number, names) for number in range(max(0, min(parts, PARTS_MAX)))
        ),
        serial=line[SERIAL],
    )


def _read_part(line: list[int], number: int, names: dict[int, str]) -> MpiPart:
    at = PARTS_AT + number * PART_WORDS
    return _part(line[at], line[at + 1], line[at + 2], line[at + 3], names)


def _part(code: int, comm: int, what: int, tag: int, names: dict[int, str]) -> MpiPart:
    name = MPI_CALLS[code] if 0 < code < len(MPI_CALLS) else ""
    if tag == SEQ_MARK:
        return MpiPart(name, names.get(comm), what)
    return MpiPart(name, names.get(comm), None, _number(what), _number(tag))


def _read_comm(words: memoryview, index: int, name: str, calls: tuple[MpiCall, ...]) -> MpiComm:
    at = COMMS_AT + index * COMM_WORDS
    done, last = words[at + COMM_DONE], words[at + COMM_LAST]
    begun = max(
        (call.seq for call in calls if call.group == name and call.seq is not None), default=0
    )
    enqueued = max(done, words[at + COMM_ENQUEUED], begun)
    return MpiComm(name, enqueued, done, MPI_CALLS[last] if 0 < last < len(MPI_CALLS) else None)


def _number(word: int) -> int | None:
    return word if word >= 0 else None
