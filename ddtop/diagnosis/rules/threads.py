"""`threads-share-group`: two threads of one rank are in collectives of one group at the same time.

Their order is then random on every rank: calls of different threads are matched and never return.
Different thread ids in a group alone are normal, because backward passes communicate from
autograd's own threads while the calling thread waits. So only threads that Python started count,
and only collectives that both have open at the same time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ddtop.diagnosis.rule import RUNS, WARNING, Context, Explanation, Finding, Kind, RuleRow
from ddtop.model.facts import RankFacts, State
from ddtop.wire.records import ThreadStack

_NOT_PYTHONS = ("pt_", "native")
"""Prefixes of the names of threads that Python did not start: those of autograd and of the
backend."""
_COLLECTIVES = ("all_", "reduce", "broadcast", "gather", "scatter", "barrier")
"""How the names of torch's functions for collectives begin."""

Calls = tuple[tuple[str, str, int | None], ...]
"""(thread, the call that it has open, its number), the longest open first."""


class Sharing(NamedTuple):
    """The calls by which threads of these ranks use the group of the finding at the same time."""

    calls: list[tuple[RankFacts, Calls]]


class Led(NamedTuple):
    """The same, and the finding to which it has led."""

    finding: Finding
    calls: list[tuple[RankFacts, Calls]]


def rule(context: Context) -> list[Finding]:
    """One finding for each group."""
    snapshot = context.snapshot
    found: dict[str, list[tuple[RankFacts, Calls]]] = {}
    for rank in snapshot.ranks:
        if rank.gone or rank.state in (State.STOPPED, State.SILENT):
            continue
        for progress in rank.comm.groups:
            if progress.pending_since_unix_ns is None:
                continue
            calls = _recorded_calls(rank, progress.group) or _dumped_calls(
                rank, progress.group, progress.pending_since_unix_ns
            )
            if calls:
                found.setdefault(progress.group, []).append((rank, calls))
    return [_finding(group, sharing) for group, sharing in sorted(found.items())]


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings. A finding that follows from a shared group becomes part of its cause: no rank
    is wrong where the order of two threads is left to chance.
    """
    shared = {one.group for one in own}
    after = {
        one.group: one for one in context.found if one.kind in _FOLLOWS and one.group in shared
    }
    findings = [one for one in context.found if after.get(one.group) is not one]
    return [*(_with(why, after.get(why.group)) for why in own), *findings]


def _with(why: Finding, after: Finding | None) -> Finding:
    if after is None or not isinstance(why.seen, Sharing):
        return why
    return replace(
        why,
        severity=after.severity,
        victims=tuple(sorted({*after.ranks, *after.victims} - set(why.ranks))),
        since_unix_ns=after.since_unix_ns,
        op=after.op,
        seq=after.seq,
        seen=Led(after, why.seen.calls),
    )


_FOLLOWS = frozenset({Kind.COLLECTIVE_MISMATCH, Kind.COLLECTIVE_STUCK, Kind.WAIT_CYCLE})
"""Its possible consequences."""


def _recorded_calls(rank: RankFacts, group: str) -> Calls:
    """The open entries of two threads in the flight recorder."""
    if len(rank.comm.open_collectives) < 2:
        return ()
    first: dict[int, tuple[str, str, int | None]] = {}
    for call in sorted(rank.comm.open_collectives, key=lambda collective: collective.seq):
        if (
            call.group == group
            and call.thread_id is not None
            and not (call.thread or "native").startswith(_NOT_PYTHONS)
        ):
            first.setdefault(call.thread_id, (call.thread or "", call.op, call.seq))
    return tuple(first.values()) if len(first) > 1 else ()


def _dumped_calls(rank: RankFacts, group: str, since_unix_ns: int) -> Calls:
    """Two threads in collective calls in a dump of its threads, if the recorder has no thread ids.

    A frame does not show its group, so only one group may be pending.
    """
    stacks = rank.dump.stacks
    if stacks is None or stacks.taken_unix_ns < since_unix_ns:
        return ()
    pending = [
        progress for progress in rank.comm.groups if progress.pending_since_unix_ns is not None
    ]
    known = any(call.thread_id is not None for call in rank.comm.open_collectives)
    if known or len(pending) != 1 or pending[0].group != group:
        return ()
    calls = [
        (_name(thread), call, None)
        for thread in stacks.threads
        if (call := _call(thread)) is not None
    ]
    return tuple(calls) if len(calls) > 1 else ()


def _name(thread: ThreadStack) -> str:
    return "MainThread" if thread.main else thread.name or "thread"


def _call(thread: ThreadStack) -> str | None:
    """The outermost collective call of torch in its frames."""
    if (thread.name or "").startswith(_NOT_PYTHONS):
        return None
    names = [
        name
        for frame in thread.frames
        if frame.file.endswith("torch/distributed/distributed_c10d.py")
        and (name := frame.function.rpartition(".")[2]).startswith(_COLLECTIVES)
    ]
    return names[-1] if names else None


def _finding(group: str, sharing: list[tuple[RankFacts, Calls]]) -> Finding:
    since = min(
        progress.pending_since_unix_ns
        for rank, _ in sharing
        for progress in rank.comm.groups
        if progress.group == group and progress.pending_since_unix_ns is not None
    )
    ranks, seen = tuple(rank.rank for rank, _ in sharing), Sharing(sharing)
    return Finding(Kind.THREADS_SHARE_GROUP, WARNING, ranks, (), since, group=group, seen=seen)


ROWS = (
    RuleRow(
        rule,
        (Kind.THREADS_SHARE_GROUP,),
        "which threads have opened the collectives of one group",
        unless=RUNS,
        fold=fold,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.THREADS_SHARE_GROUP,
        severity="warning; critical once the ranks wait because of it",
        brief="two threads of a rank communicate on one group at once",
        meaning=(
            "Two threads of one rank have collectives of one group open at the same time. Their"
            " order is random on each rank, so calls that do not belong together can meet. They"
            " give wrong numbers or never return."
        ),
        found=(
            (
                "Torch's flight recorder names the thread of each open collective. If it does not,"
                " ddtop uses a dump of all threads: it must show two of them inside collectives"
                " while only one group is pending."
            ),
            (
                "Only threads that Python started count, because backward passes communicate from"
                " autograd's own threads."
            ),
        ),
        steps=(
            (
                "Give each thread its own group. Create the groups on all ranks in the same order,"
                " as below."
            ),
            "Or let one thread do all the communication, and pass work to it through a queue.",
            "The second thread is often the one for logging or asynchronous checkpoints.",
        ),
        before=("Thread(target=lambda: dist.all_reduce(metrics)).start()", "dist.all_reduce(loss)"),
        after=(
            "side = dist.new_group()                # once, on all ranks",
            "Thread(target=lambda: dist.all_reduce(metrics, group=side)).start()",
            "dist.all_reduce(loss)",
        ),
    ),
)
