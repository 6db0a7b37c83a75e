"""`collective-mismatch`: the ranks made different calls with the same group and sequence number.

Group and sequence number identify one collective for ever, so records of different age can be
compared. Retired entries count too: with gloo the smaller side of a size mismatch completes, and
the mismatch is seen one collective later.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple

from ddtop.diagnosis.patience import ran_dry
from ddtop.diagnosis.rule import (
    CRITICAL,
    RUNS,
    STARTS,
    Context,
    Explanation,
    Finding,
    Kind,
    RuleRow,
)
from ddtop.model.ending import fatal_exception, went_unix_ns
from ddtop.model.errors import Says
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.wire.mpi import MpiCall
from ddtop.wire.names import EQUAL_BYTES, MPI_COLLECTIVES, ROOTED, same_call
from ddtop.wire.records import Collective, LastCall, unpack

_SAME_SIZES = {
    "all_reduce",
    "allreduce",
    "broadcast",
    "all_gather",
    "allgather",
    "reduce",
    "reduce_scatter",
    "_all_gather_base",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
}
"""Collectives to which every rank must pass the same number of values; in others sizes may differ.
"""


class OtherCalls(NamedTuple):
    """Calls of the ranks that cannot be one. `sides`: the ranks that agree, the odd ones first.

    `since_unix_ns`: since when ranks wait, or when gloo has `aborted` ranks for it. Then `last` has
    what is known of the calls. `dry`: those whose DataLoader has ended before that of the others.
    """

    calls: Mapping[int, Collective]
    sides: list[list[int]]
    since_unix_ns: int
    last: Mapping[int, LastCall] | None = None
    aborted: Sequence[int] = ()
    dry: tuple[int, ...] = ()


class MadeAlone(NamedTuple):
    """A call of ranks that gloo has aborted in it; `others` of the group have made fewer calls from
    Python, and were in one that a library makes."""

    call: LastCall
    others: tuple[int, ...]
    since_unix_ns: int


class Truncated(NamedTuple):
    """The call that has `failed`, on the `first` rank and others of the finding, because its buffer
    was too short; and the same call of the `others`."""

    failed: MpiCall
    first: RankFacts
    others: dict[int, Collective]


def rule(context: Context) -> list[Finding]:
    """At most one finding: the earliest collective on which the ranks of a group disagree."""
    snapshot, policy = context.snapshot, context.policy
    limit_ns = policy.stopped_limit_s * 1e9
    if not any(snapshot.time_unix_ns - wait.since_unix_ns > limit_ns for wait in snapshot.waits):
        return []
    # Two groups of other jobs may have one name.
    foreign = {group.name for group in snapshot.groups if group.foreign is not None}
    calls: dict[tuple[str, int], dict[int, Collective]] = {}
    for rank in snapshot.ranks:
        if rank.gone:
            continue
        for call in (*rank.comm.retired_collectives, *rank.comm.open_collectives):
            if call.group not in foreign:
                calls.setdefault((call.group, call.seq), {})[rank.rank] = call
    last: dict[str, int] = {}
    for wait in snapshot.waits:
        last[wait.group] = max(wait.seq, last.get(wait.group, wait.seq))
    for (group, seq), by_rank in sorted(calls.items(), key=lambda item: item[0][1]):
        stuck = group in last and last[group] >= seq
        if len(by_rank) > 1 and stuck and _differ(by_rank.values()):
            return [_finding(context, group, seq, by_rank)]
    return []


def _differ(calls: Collection[Collective]) -> bool:
    """Whether these calls of a group cannot be one collective. An unknown length does not count."""
    if next(iter(calls)).group.startswith("mpi:"):
        return len(set(_signatures(dict(enumerate(calls))).values())) > 1
    # Most of 10,000 calls are equal, and one signature takes 2 us.
    kinds = {(call.op, call.sizes, call.dtypes): call for call in calls}
    if len({call.root for call in calls} - {None}) > 1:
        return True
    return len(kinds) > 1 and len({_signature(call) for call in kinds.values()}) > 1


def _signatures(by_rank: Mapping[int, Collective]) -> dict[int, tuple[object, ...]]:
    """The values that must be equal. A root that is not known is assumed to match: torch's of a
    call that is over, MPI's of a nonblocking call at its wait. So is the length of such a call.
    """
    roots = Counter(call.root for call in by_rank.values() if call.root is not None)
    lengths = Counter(
        call.sizes for call in by_rank.values() if call.op in EQUAL_BYTES and call.sizes
    )
    root, sizes = (found.most_common(1)[0][0] if found else None for found in (roots, lengths))
    found: dict[int, tuple[object, ...]] = {}
    for rank, call in by_rank.items():
        own_root = root if call.root is None else call.root
        if not call.group.startswith("mpi:"):
            found[rank] = (*_signature(call), own_root)
            continue
        own_sizes = call.sizes or sizes
        found[rank] = (
            same_call(call.op),
            own_root if call.op in ROOTED else None,
            own_sizes if call.op in EQUAL_BYTES else None,
        )
    return found


def _signature(call: Collective) -> tuple[object, ...]:
    if call.op not in _SAME_SIZES or not call.sizes:
        return (call.op,)
    return (call.op, sum(prod(shape) for shape in call.sizes), tuple(sorted(set(call.dtypes))))


def _finding(context: Context, group: str, seq: int, by_rank: dict[int, Collective]) -> Finding:
    snapshot = context.snapshot
    odd, sides = _sides(by_rank)
    facts = {rank: snapshot.rank(rank) for rank in by_rank}
    dry = tuple(
        rank
        for rank in odd
        if ran_dry(facts[rank], [facts[one] for one in facts if one != rank], context.policy)
    )
    odd = dry or odd
    waits = [wait for wait in snapshot.waits if wait.group == group and wait.seq >= seq]
    since = min(wait.since_unix_ns for wait in waits)
    return Finding(
        Kind.COLLECTIVE_MISMATCH,
        CRITICAL,
        odd,
        tuple(sorted({wait.rank for wait in waits} - set(odd))),
        since,
        group=group,
        op=_same_op(by_rank),
        seq=seq,
        seen=OtherCalls(by_rank, sides, since, dry=dry),
    )


def _same_op(calls: Mapping[int, Collective]) -> str | None:
    ops = {call.op for call in calls.values()}
    return ops.pop() if len(ops) == 1 else None


def _sides(by_rank: dict[int, Collective]) -> tuple[tuple[int, ...], list[list[int]]]:
    """(the odd ranks, the ranks of each side, the odd ones first). Without a clear majority all are
    odd."""
    signatures = _signatures(by_rank)
    counts = Counter(signatures.values())
    (usual, most), *rest = counts.most_common()
    majority = most > sum(number for _, number in rest)
    odd = tuple(sorted(rank for rank in by_rank if not majority or signatures[rank] != usual))
    sides: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(by_rank):
        sides.setdefault(signatures[rank], []).append(rank)
    return odd, sorted(sides.values(), key=lambda ranks: ranks[0] not in odd)


# -- `collective-mismatch` that gloo has detected: more values than the others expect
#
# It aborts a rank, sometimes that of the smaller tensor, and the others lose their connections. The
# last calls of a rank are on its state page before torch gets them.


def aborted(context: Context) -> list[Finding]:
    """At most one finding: the last calls of ranks differ, and one of these ranks was aborted."""
    snapshot = context.snapshot
    killed = [
        rank
        for rank in snapshot.ranks
        if rank.process.exit is not None and rank.process.exit.signal == signal.SIGABRT
    ]
    foreign = {group.name for group in snapshot.groups if group.foreign is not None}
    calls: dict[tuple[str, int], dict[int, LastCall]] = {}
    for rank in snapshot.ranks if killed else ():
        for call in rank.process.exit.calls if rank.process.exit else rank.reported.calls:
            if call.group not in foreign:
                calls.setdefault((call.group, call.count), {})[rank.rank] = call
    for _, last_calls in sorted(calls.items(), key=lambda item: item[0][1]):
        by_rank = {rank: as_collective(call) for rank, call in last_calls.items()}
        aborted_here = [rank for rank in killed if rank.rank in by_rank]
        if aborted_here and len(by_rank) > 1 and _differ(by_rank.values()):
            return [_aborted_in(snapshot, by_rank, last_calls, aborted_here)]
    for (_, count), last_calls in sorted(calls.items(), key=lambda item: -item[0][1]):
        alone = [rank for rank in killed if rank.rank in last_calls]
        if alone and len(last_calls) == len(alone):
            return _made_alone(snapshot, last_calls[alone[0].rank], alone, count)
    return []


def _made_alone(
    snapshot: Snapshot, call: LastCall, alone: list[RankFacts], count: int
) -> list[Finding]:
    """Whether all other members have made fewer calls, and have ended too: the call that gloo has
    matched with this one is none from Python, such as that of a backward pass."""
    group = next((one for one in snapshot.groups if one.name == call.group), None)
    if group is None or "gloo" not in group.backend:
        # NCCL's watchdog aborts a rank that only waits.
        return []
    members = map(snapshot.rank, unpack(group).ranks)
    others = [rank for rank in members if rank not in alone]
    made = [one for rank in others if rank.process.exit for one in rank.process.exit.calls]
    later = any(one.group == call.group and one.count >= count for one in made)
    if not others or later or any(rank.process.exit is None for rank in others):
        return []
    since_unix_ns = min(map(went_unix_ns, alone))
    return [
        Finding(
            Kind.COLLECTIVE_MISMATCH,
            CRITICAL,
            tuple(rank.rank for rank in alone),
            tuple(rank.rank for rank in others),
            since_unix_ns,
            group=call.group,
            op=call.op,
            seen=MadeAlone(call, tuple(rank.rank for rank in others), since_unix_ns),
        )
    ]


def as_collective(call: LastCall) -> Collective:
    """The call in the form of a recorded one."""
    return Collective(
        call.group,
        call.op,
        call.count,
        call.count,
        ((call.numel,),),
        ((call.dtype or "").removeprefix("torch."),),
        "scheduled",
    )


def _aborted_in(
    snapshot: Snapshot,
    by_rank: dict[int, Collective],
    last_calls: dict[int, LastCall],
    killed: list[RankFacts],
) -> Finding:
    odd, sides = _sides(by_rank)
    since_unix_ns = min(map(went_unix_ns, killed))
    seen = OtherCalls(by_rank, sides, since_unix_ns, last_calls, [rank.rank for rank in killed])
    return Finding(
        Kind.COLLECTIVE_MISMATCH,
        CRITICAL,
        odd,
        tuple(rank.rank for rank in snapshot.ranks if rank.rank not in odd),
        since_unix_ns,
        group=next(iter(by_rank.values())).group,
        op=_same_op(by_rank),
        seen=seen,
    )


# -- `collective-mismatch` that MPI itself has detected: a message longer than its buffer
#    (MPI_ERR_TRUNCATE)
#
# The rank with the smaller buffer raises, and would be reported as crashed. But the cause is its
# call, and the call of the others with the same number.


def mpi_truncated(context: Context) -> list[Finding]:
    """At most one finding: the first rank that such an error has ended."""
    snapshot = context.snapshot
    raised = [rank for rank in snapshot.ranks if _is_truncated(rank)]
    if not raised:
        return []
    first = min(raised, key=went_unix_ns)
    failed = _failed_call(first)
    assert failed is not None
    group = failed.group or ""
    ranks = tuple(rank.rank for rank in raised)
    others = {
        rank.rank: call
        for rank in snapshot.ranks
        if rank.rank not in ranks and (call := _collective_at(rank, group, failed.seq)) is not None
    }
    return [
        Finding(
            Kind.COLLECTIVE_MISMATCH,
            CRITICAL,
            ranks,
            tuple(rank.rank for rank in snapshot.ranks if rank.rank not in ranks and not rank.gone),
            went_unix_ns(first),
            group=group or None,
            op=failed.name,
            seq=failed.seq,
            seen=Truncated(failed, first, others),
        )
    ]


def _is_truncated(rank: RankFacts) -> bool:
    failed = _failed_call(rank)
    if failed is None or rank.reported.exception is None or not fatal_exception(rank):
        return False
    return failed.name in MPI_COLLECTIVES and Says.TRUNCATED.within(rank.reported.exception.text)


def _failed_call(rank: RankFacts) -> MpiCall | None:
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


def _collective_at(rank: RankFacts, group: str, seq: int | None) -> Collective | None:
    calls = (*rank.comm.open_collectives, *rank.comm.retired_collectives)
    return next((call for call in calls if (call.group, call.seq) == (group, seq)), None)


ROWS = (
    RuleRow(
        mpi_truncated,
        (Kind.COLLECTIVE_MISMATCH,),
        "exceptions, the MPI call that failed",
        silenced_by=STARTS,
    ),
    RuleRow(
        aborted,
        (Kind.COLLECTIVE_MISMATCH,),
        "the last calls of ranks that have ended, and whether gloo has aborted one",
        silenced_by=STARTS,
    ),
    RuleRow(
        rule,
        (Kind.COLLECTIVE_MISMATCH,),
        "the flight recorder's entries of each rank, by group and sequence number",
        needs=("waits",),
        silenced_by=("mpi_truncated", "stopped", "group_calls"),
        unless=RUNS,
        may_be_earlier=True,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.COLLECTIVE_MISMATCH,
        severity="critical",
        brief="ranks called different collectives at the same point",
        meaning=(
            "For the same sequence number of a group, the ranks called different collectives: the"
            " operation, the number of values or the dtype differs. The job hangs, or it computes"
            " wrong numbers."
        ),
        found=(
            (
                "ddtop compares operation, sizes and dtypes of open and recently completed"
                " collectives by sequence number. (With gloo the smaller call completes, so the"
                " difference shows one call later.)"
            ),
            (
                "Sizes are compared only where all ranks must pass the same size: in all_reduce,"
                " broadcast, all_gather, reduce and the like, but not in gather, scatter or"
                " all_to_all."
            ),
            (
                "A rank must have waited for more than {stopped_limit_s}. The minority is at"
                " fault, and so is one rank in a call of another group while several wait for it."
                " If there is no majority, all ranks are at fault."
            ),
            (
                "Each new_group must have the same members on all ranks. Their last 16 are"
                " compared, once a rank waits for {still_limit_s} in one or in its first"
                " collective."
            ),
        ),
        steps=(
            (
                "The evidence shows both calls and the source line of each rank. Look there for a"
                " branch, a call order or a shape that depends on the rank's own data."
            ),
            "If sizes differ, pad the tensors, or gather the sizes first.",
            (
                "Reduce metrics in a fixed order: for key in sorted(metrics), never in the order of"
                " a set."
            ),
            (
                "Have torch check every call in a short run (slow):\nTORCH_DISTRIBUTED_DEBUG=DETAIL"
                " torchrun ..."
            ),
        ),
        before=(
            "if loss.isnan():          # true on one rank: it skips backward's",
            "    continue              # all_reduce, and its next call meets that",
            "loss.backward()",
        ),
        after=(
            "bad = loss.isnan().float()",
            "dist.all_reduce(bad)      # now all ranks decide the same",
            "if bad > 0:",
            "    continue",
            "loss.backward()",
        ),
    ),
)
