"""The state page: a small mapped file.

A rank writes each call there before it makes the call.

The relay reads the same file. So it knows the last calls of a rank even while C code holds the GIL,
while the agent is silent, or after the end of the process. The layout is fixed: 64-bit words in the
machine's order, because both sides are on one host. A single word is written in one store and needs
no lock. What takes several words (a call slot, the exception) has a sequence word that is odd while
the writer is inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from ddtop.wire.mpi import WORLD_SIZE_AT
from ddtop.wire.names import INIT_CALLS, JAX_INIT
from ddtop.wire.records import LastCall, LastException, Whereabouts

MAGIC = 0x31504F5444  # "DDTOP1" read as a little-endian word, without the trailing zero bytes
VERSION = 2
PAGE_BYTES = 16384

# Words of the head.
MAGIC_AT, VERSION_AT = 0, 1
HEARTBEAT_AT = 4  # monotonic ns of the agent's last tick
ITERATION_AT, ITERATION_SOURCE_AT, STEP_AT = 5, 6, 7  # STEP_AT: monotonic ns of the last step
BATCHES_AT, LOADER_WAIT_SINCE_AT, LOADER_WAIT_TOTAL_AT = 8, 9, 10
EXHAUSTED_AT, EXHAUSTED_MONO_AT = 11, 12
EXITING_AT = 13  # monotonic ns at which the interpreter began to exit, 0 before
EXCEPTION_SEQUENCE_AT, EXCEPTION_BYTES_AT = 14, 15
GC_SINCE_AT = 16  # monotonic ns at which a garbage collection began, 0 outside of one
# The DataLoader worker that must deliver a batch for which the rank has waited long; 0: none.
OWING_PID_AT = 17
LEAD_AT = 18  # the kernel's number of the rank's thread, 0: the main thread
GC_TOTAL_AT = 19  # ns in all garbage collections together
WALKING_AT = 20  # 1 while the agent's thread reads frames of other threads
# Of the group of all ranks that it has joined: its number there plus 1 (negative after it has left
# again), how many members there are, and a checksum of where they have met (0: not known).
MEMBER_AT, MEMBERS_AT, MET_AT = 21, 22, 23
# The kernel's number of the thread, or of another process, for which the rank's thread waits. 0:
# none is known. -1: it waits for its children. -2: one of them may have to end the wait. -3: only a
# child that has ended with an error would explain it.
AWAITED_AT, ITS_CHILDREN, OF_CHILDREN, ENDED_CHILD = 24, -1, -2, -3
FOR_CHILDREN = {
    "child": ITS_CHILDREN,
    "pool": ITS_CHILDREN,
    "future": ITS_CHILDREN,
    "queue": OF_CHILDREN,
    "DataLoader": OF_CHILDREN,
    "pipe": OF_CHILDREN,
}
"""What stands there for waits that children of the process may have to end, by `Place.waits_on`."""

# ns after a step in which the next one has to end: if it does not, the relay wakes the agent.
# 0: it wakes up often enough by itself.
LATE_AFTER_AT = 25

WHEREABOUTS_SEQUENCE_AT, WHEREABOUTS_BYTES_AT = 30, 31

SOURCE_NONE, SOURCE_BATCH, SOURCE_OPTIMIZER, SOURCE_USER, SOURCE_COLLECTIVES = 0, 1, 2, 3, 4
SOURCES = (None, "batch", "optimizer", "ddtop.step", "collectives")
STEP_SOURCES = (SOURCE_BATCH, SOURCE_OPTIMIZER, SOURCE_USER)
"""Counts of the program's own steps, not of its calls."""

# Call slots, one per thread, for calls that the flight recorder does not record.
SLOTS_AT, SLOTS, SLOT_WORDS = 32, 16, 8
SLOT_STARTS = range(SLOTS_AT, SLOTS_AT + SLOTS * SLOT_WORDS, SLOT_WORDS)
SLOT_SEQUENCE, SLOT_THREAD, SLOT_CALL, SLOT_SINCE, SLOT_PEER, SLOT_TAG = range(6)
CALLS = (
    None,
    "init_process_group",
    "new_group",
    "destroy_process_group",
    "monitored_barrier",
    "send",
    "recv",
    "batch_isend_irecv",
    "isend",
    "irecv",
    "MPI_Init",
    "split_group",
    JAX_INIT,
)
NO_PEER = -1
# The last two collective calls, written alternately: when a call aborts one rank, another one may
# have made the next call already. Of each: how many the rank has made in that group, how many
# elements the tensor has, and the length of the text, a LastCall without these two.
LAST_CALLS = (160, 272)
MADE, NUMEL, CALL_BYTES, CALL_TEXT = range(4)
CALL_BYTES_MAX = 8 * (LAST_CALLS[1] - LAST_CALLS[0] - CALL_TEXT)
_INITS = tuple(CALLS.index(name) for name in INIT_CALLS)

WHEREABOUTS_AT_BYTES, EXCEPTION_AT_BYTES = 3072, 4096
MPI_AT_BYTES = 8192  # laid out in wire.mpi
EXCEPTION_BYTES_MAX = MPI_AT_BYTES - EXCEPTION_AT_BYTES
Part = tuple[int, int, int]
"""An encoded record: the place of its sequence word, which its size follows, its first byte, and
where the next part begins."""
EXCEPTION: Part = (EXCEPTION_SEQUENCE_AT, EXCEPTION_AT_BYTES, MPI_AT_BYTES)
WHEREABOUTS: Part = (WHEREABOUTS_SEQUENCE_AT, WHEREABOUTS_AT_BYTES, EXCEPTION_AT_BYTES)
_READS_MAX = (
    8  # a writer that died inside leaves the sequence odd for ever; then the text cannot be read
)


class PageError(ValueError):
    """These bytes are not a state page of this version."""


class PageView(msgspec.Struct, frozen=True):
    """What a state page says, all clocks monotonic ns of that host; 0 stands for "never".

    `mpi`: read by `wire.mpi`. `iteration`: how many it has finished; None while nothing counts
    them. `late_after_ns`: how long a step may take before its agent wants to be woken, 0: it does
    not.
    """

    heartbeat_mono_ns: int
    iteration: int | None
    exiting_mono_ns: int
    exception: LastException | None
    gc_since_mono_ns: int = 0
    step_mono_ns: int = 0
    init_since_mono_ns: int = 0
    mpi: bytes = b""
    owing_pid: int = 0
    lead_tid: int = 0
    awaited_tid: int = 0
    walking: bool = False
    calls: tuple[LastCall, ...] = ()
    whereabouts: Whereabouts | None = None
    late_after_ns: int = 0


def read_page(page: memoryview | bytes) -> PageView:
    """What is written on a page that another process may be writing to.

    Raises:
        PageError: too short, foreign, or of another version.
    """
    if len(page) < PAGE_BYTES:
        raise PageError(f"{len(page)} bytes, a state page has {PAGE_BYTES}")
    words = memoryview(page)[: SLOTS_AT * 8].cast("q")
    if words[MAGIC_AT] != MAGIC:
        raise PageError("not a state page")
    if words[VERSION_AT] != VERSION:
        raise PageError(f"state page version {words[VERSION_AT]}, this ddtop reads {VERSION}")
    return PageView(
        heartbeat_mono_ns=words[HEARTBEAT_AT],
        iteration=words[ITERATION_AT] if words[ITERATION_SOURCE_AT] else None,
        exiting_mono_ns=words[EXITING_AT],
        exception=_read_part(page, words, EXCEPTION, LastException),
        gc_since_mono_ns=words[GC_SINCE_AT],
        step_mono_ns=words[STEP_AT],
        init_since_mono_ns=_init_since(page),
        mpi=_mpi(page),
        owing_pid=words[OWING_PID_AT],
        lead_tid=words[LEAD_AT],
        awaited_tid=words[AWAITED_AT],
        walking=bool(words[WALKING_AT]),
        calls=tuple(last_calls(page)),
        whereabouts=_read_part(page, words, WHEREABOUTS, Whereabouts),
        late_after_ns=words[LATE_AFTER_AT],
    )


def last_calls(page: memoryview | bytes) -> Iterator[LastCall]:
    """The last collective calls; one that is being written is left out."""
    words = memoryview(page)[:EXCEPTION_AT_BYTES].cast("q")
    for at in LAST_CALLS:
        size, text = words[at + CALL_BYTES], 8 * (at + CALL_TEXT)
        if not 0 < size <= CALL_BYTES_MAX:
            continue
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            call = msgspec.json.decode(page[text : text + size], type=LastCall)
            yield msgspec.structs.replace(call, count=words[at + MADE], numel=words[at + NUMEL])


def _mpi(page: memoryview | bytes) -> bytes:
    """The part that `wire.mpi` reads; empty where MPI is not in use."""
    part = bytes(page[MPI_AT_BYTES:PAGE_BYTES])
    return part if any(part[8 * WORLD_SIZE_AT : 8 * WORLD_SIZE_AT + 8]) else b""


def _init_since(page: memoryview | bytes) -> int:
    """Since when a thread is inside init_process_group or MPI_Init."""
    words = memoryview(page)[: (SLOTS_AT + SLOTS * SLOT_WORDS) * 8].cast("q")
    return min(
        (words[at + SLOT_SINCE] for at in SLOT_STARTS if words[at + SLOT_CALL] in _INITS),
        default=0,
    )


def _read_part(page: memoryview | bytes, words: memoryview, part: Part, record: Any) -> Any:
    sequence_at, start, end = part
    for _ in range(_READS_MAX):
        before = words[sequence_at]
        if before == 0:
            return None
        if before % 2:
            continue
        size = words[sequence_at + 1]
        if not 0 < size <= end - start:
            return None
        data = bytes(page[start : start + size])
        if words[sequence_at] == before:
            try:
                return msgspec.msgpack.decode(data, type=record)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
    return None
