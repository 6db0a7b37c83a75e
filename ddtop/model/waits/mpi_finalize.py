"""Waits without numbers: MPI_Finalize, and calls on windows and files known only by name.

MPI_Finalize is collective, so a rank in it waits for all ranks that have not come to it.

Every program whose ranks have unequal work ends like this. So only a rank without progress counts
as the reason for the wait, and only if no rank waits for one that is in Finalize. If one does, the
rank that came to Finalize too early is the one to name, or the rank that waits has another cause.
It is not known for which ranks a Win.Fence waits. If all others make no progress outside MPI, it
can only be for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddtop.model.state.ending import failed
from ddtop.model.state.facts import PeerWait, RankFields, Wait
from ddtop.model.waits.wait_graph import STILL, AnyWait, condition_of
from ddtop.policy import Policy
from ddtop.wire.calls import FINALIZE, NAME_ONLY
from ddtop.wire.mpi import MpiCall


def unnumbered_waits_of(
    ranks: Mapping[int, RankFields],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[PeerWait, ...]:
    """Waits for ranks without progress, of ranks in MPI_Finalize or in a call without numbers."""
    found = _in_finalize(ranks, waits, peer_waits, now_unix_ns, policy)
    return found or _in_named(ranks, now_unix_ns, policy)


def _in_finalize(
    ranks: Mapping[int, RankFields],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[PeerWait, ...]:
    since = {
        rank: at
        for rank, facts in ranks.items()
        if not facts.agent.unheard and (at := _finalizing_since(facts)) is not None
    }
    # A rank that raised and stays there has a rule of its own.
    if not since or any(failed(ranks[rank]) for rank in since):
        return ()
    held = set()
    every: tuple[AnyWait, ...] = (*waits, *peer_waits)
    for wait in every:
        if not since.keys().isdisjoint(wait.behind):
            return ()
        held.add(wait.rank)
    behind = tuple(
        sorted(
            rank
            for rank, facts in ranks.items()
            if rank not in since
            and rank not in held
            and facts.comm.mpi is not None
            and not facts.gone
            and condition_of(facts, now_unix_ns, policy) == STILL
        )
    )
    if not behind:
        return ()
    return tuple(
        PeerWait(rank, FINALIZE, None, None, at, behind) for rank, at in sorted(since.items())
    )


def _in_named(
    ranks: Mapping[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[PeerWait, ...]:
    # It is not known who shares the window or file: all other ranks have to be stuck.
    inside: dict[int, MpiCall] = {}
    still = set()
    for rank, facts in ranks.items():
        if facts.gone or facts.agent.unheard or facts.comm.mpi is None:
            return ()
        call = next((call for call in facts.comm.mpi.calls if call.name in NAME_ONLY), None)
        if call is not None:
            inside[rank] = call
        elif not facts.comm.mpi.calls and condition_of(facts, now_unix_ns, policy) == STILL:
            still.add(rank)
        else:
            return ()
    if not inside or not still:
        return ()
    behind = tuple(sorted(still))
    return tuple(
        PeerWait(rank, call.name, None, None, call.since_unix_ns, behind)
        for rank, call in inside.items()
    )


def _finalizing_since(facts: RankFields) -> int | None:
    """Since when it has been in MPI_Finalize, or in the exit of an interpreter that ends with it.

    Unix ns; None if it is in neither.
    """
    if facts.comm.mpi is None or facts.gone:
        return None
    if facts.comm.mpi.finalize_since_unix_ns is not None:
        return facts.comm.mpi.finalize_since_unix_ns
    if facts.reported.phase == "leaving":
        return facts.reported.phase_since_unix_ns
    return (
        facts.agent.heard_unix_ns
        if facts.process.report is not None and facts.process.report.exiting
        else None
    )
