"""`collective-mismatch` that MPI itself has detected: a message longer than its buffer
(MPI_ERR_TRUNCATE).

The rank with the smaller buffer raises, and would be reported as crashed. But the cause is its
call, and the call of the others with the same number.
"""

from __future__ import annotations

import re

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.ending import fatal_exception, went_unix_ns
from ddtop.model.state.facts import RankFacts
from ddtop.wire.calls import MPI_COLLECTIVES
from ddtop.wire.mpi import MpiCall
from ddtop.wire.records import Collective
from ddtop.words.ranks import ranks_text
from ddtop.words.sentences import file_line, names_of_groups
from ddtop.words.units import duration

_TRUNCATED = re.compile(r"MPI_ERR_TRUNCATE|message truncated", re.IGNORECASE)


def rule(context: Context) -> list[Finding]:
    """At most one finding: the first rank that such an error has ended."""
    snapshot = context.snapshot
    raised = [rank for rank in snapshot.ranks if _is_truncated(rank)]
    if not raised:
        return []
    first = min(raised, key=went_unix_ns)
    failed = _failed(first)
    assert failed is not None
    group = failed.group or ""
    name = names_of_groups(snapshot.groups).get(group, group)
    ranks = tuple(rank.rank for rank in raised)
    others = {
        rank.rank: call
        for rank in snapshot.ranks
        if rank.rank not in ranks and (call := _at(rank, group, failed.seq)) is not None
    }
    theirs = [f"rank {rank}: {call.op}{_bytes(call)}" for rank, call in sorted(others.items())][:8]
    own = f"{failed.name} of {failed.nbytes:,} bytes" if failed.nbytes is not None else failed.name
    place = first.reported.exception.place if first.reported.exception is not None else None
    spot = f" at {file_line(place)} {place.function}" if place is not None else ""
    waiting = tuple(
        rank.rank for rank in snapshot.ranks if rank.rank not in ranks and not rank.gone
    )
    return [
        Finding(
            kind=Kind.COLLECTIVE_MISMATCH,
            severity=CRITICAL,
            ranks=ranks,
            victims=waiting,
            since_unix_ns=went_unix_ns(first),
            summary=(
                f"{ranks_text(ranks)} received more in {own} (#{failed.seq} of {name}) than there"
                f" was room for{spot}: MPI_ERR_TRUNCATE,"
                f" {duration((snapshot.time_unix_ns - went_unix_ns(first)) / 1e9)} ago"
            ),
            evidence=tuple(
                f"{text} (#{failed.seq})" for text in (f"{ranks_text(ranks)}: {own}", *theirs)
            ),
            advice=(
                "bring buffers of the same length, type and root on all ranks (gather the lengths"
                " first)"
            ),
            group=group or None,
            op=failed.name,
            seq=failed.seq,
        )
    ]


def _is_truncated(rank: RankFacts) -> bool:
    failed = _failed(rank)
    if failed is None or rank.reported.exception is None or not fatal_exception(rank):
        return False
    return failed.name in MPI_COLLECTIVES and bool(_TRUNCATED.search(rank.reported.exception.text))


def _failed(rank: RankFacts) -> MpiCall | None:
    """The call that raised. If the agent ended before it could report it: the last call on the
    state page.
    """
    if rank.comm.mpi is None or rank.comm.mpi.failed is not None:
        return rank.comm.mpi.failed if rank.comm.mpi is not None else None
    last = max(
        (comm for comm in rank.comm.mpi.comms if comm.last_op),
        key=lambda comm: comm.completed,
        default=None,
    )
    if last is None or not rank.gone:
        return None
    return MpiCall(last.last_op or "", rank.comm.mpi.unix_ns, 0, last.name, last.completed)


def _at(rank: RankFacts, group: str, seq: int | None) -> Collective | None:
    calls = (*rank.comm.open_collectives, *rank.comm.retired_collectives)
    return next((call for call in calls if (call.group, call.seq) == (group, seq)), None)


def _bytes(call: Collective) -> str:
    return f" of {call.sizes[0][0]:,} bytes" if call.sizes and call.sizes[0] else ""
