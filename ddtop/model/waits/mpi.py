"""What a rank does in MPI, in the terms of process groups and calls, so that one graph serves both.

The agent reports it, and the relay also reads it from the state page. The newer of the two counts,
because the agent cannot report during calls that hold the GIL. A blocking collective is open on its
communicator; a Wait is open in every operation of its requests.
"""

from __future__ import annotations

import msgspec

from ddtop.wire.calls import MPI_ANY_WAITS, MPI_COLLECTIVES, MPI_RECEIVES
from ddtop.wire.mpi import MpiCall, MpiComm, MpiPart, MpiState
from ddtop.wire.records import Collective, Exit, GroupProgress, OpenCall, ProcessState, RankState


def newest(
    state: RankState, process: ProcessState | None, ended: Exit | None = None
) -> MpiState | None:
    """What is known of the rank's MPI: the newer look, with the details that only the agent has.

    For a rank that has ended: the last content of its page.
    """
    own, outside = state.mpi, process.mpi if process is not None else None
    outside = (ended.mpi if ended is not None else None) or outside
    if own is None or outside is None or outside.unix_ns <= own.unix_ns:
        return own or outside
    calls = tuple(_with_dtype(call, own.calls) for call in outside.calls)
    return msgspec.structs.replace(
        outside, calls=calls, done=own.done, traffic=own.traffic, failed=own.failed
    )


def _with_dtype(call: MpiCall, known: tuple[MpiCall, ...]) -> MpiCall:
    same = next(
        (one for one in known if (one.thread_id, one.serial) == (call.thread_id, call.serial)), None
    )
    return (
        call
        if same is None
        else msgspec.structs.replace(call, dtype=same.dtype, nbytes=same.nbytes)
    )


def with_calls(state: RankState, mpi: MpiState | None) -> RankState:
    """The rank's state with what it does in MPI."""
    if mpi is None:
        return state
    open_now: dict[str, tuple[int, list[Collective]]] = {}
    calls: list[OpenCall] = []
    for call in mpi.calls:
        for part in _parts(call):
            if part.group is not None and part.seq is not None:
                since, found = open_now.get(part.group, (call.since_unix_ns, []))
                found.append(_collective(part, call))
                open_now[part.group] = min(since, call.since_unix_ns), found
            else:
                calls.append(_open_call(part, call))
    groups = tuple(_progress(comm, open_now.get(comm.name)) for comm in mpi.comms)
    done = tuple(
        _done(part)
        for part in mpi.done
        if part.seq is not None and not _is_open(part, open_now.get(part.group or ""))
    )
    finalizing = mpi.finalize_since_unix_ns is not None
    return msgspec.structs.replace(
        state,
        groups=state.groups + groups,
        open_collectives=state.open_collectives
        + tuple(one for _, found in open_now.values() for one in found),
        retired_collectives=state.retired_collectives + done,
        open_calls=state.open_calls + tuple(calls),
        activity="collective" if mpi.calls else state.activity,
        phase="leaving" if finalizing else state.phase,
    )


def is_inside(mpi: MpiState | None) -> bool:
    """Whether it is in a call of MPI: however much CPU that takes, it waits."""
    return mpi is not None and bool(mpi.calls or mpi.finalize_since_unix_ns is not None)


def _parts(call: MpiCall) -> tuple[MpiPart, ...]:
    if call.parts:
        # A send may have been buffered long ago: what has not arrived is what holds it.
        return tuple(sorted(call.parts, key=lambda part: part.name not in MPI_RECEIVES))
    seq = call.seq if call.name in MPI_COLLECTIVES else None
    return (MpiPart(call.name, call.group, seq, call.peer, call.tag, call.nbytes),)


def _collective(part: MpiPart, call: MpiCall) -> Collective:
    assert part.group is not None
    assert part.seq is not None
    sizes = ((part.nbytes,),) if part.nbytes is not None else ()
    dtypes = (f"bytes of {call.dtype}" if call.dtype else "bytes",) if sizes else ()
    return Collective(
        part.group, part.name, part.seq, part.seq, sizes, dtypes, "started", call.since_unix_ns,
        thread_id=call.thread_id, root=part.peer,
    )  # fmt: skip


def _done(part: MpiPart) -> Collective:
    sizes = ((part.nbytes,),) if part.nbytes is not None else ()
    seq = part.seq or 0
    return Collective(
        part.group or "",
        part.name,
        seq,
        seq,
        sizes,
        ("bytes",) if sizes else (),
        "completed",
        root=part.peer,
    )


def _is_open(part: MpiPart, open_now: tuple[int, list[Collective]] | None) -> bool:
    return open_now is not None and any(one.seq == part.seq for one in open_now[1])


def _open_call(part: MpiPart, call: MpiCall) -> OpenCall:
    within = call.name if call.parts else None
    return OpenCall(
        part.name, call.since_unix_ns, part.peer, part.tag, call.thread_id, part.group, within,
        call.name in MPI_ANY_WAITS,
    )  # fmt: skip


def _progress(comm: MpiComm, open_now: tuple[int, list[Collective]] | None) -> GroupProgress:
    if open_now is None:
        return GroupProgress(comm.name, comm.enqueued, comm.completed, 0, None, comm.last_op)
    since, found = open_now
    first = min(found, key=lambda one: one.seq)
    enqueued = max(comm.enqueued, first.seq)
    return GroupProgress(comm.name, enqueued, first.seq - 1, 0, since, first.op)
