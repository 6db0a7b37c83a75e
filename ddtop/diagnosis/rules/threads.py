"""`threads-share-group`: two threads of one rank are in collectives of one group at the same time.

Their order is then random on every rank: calls of different threads are matched and never return.
Different thread ids in a group alone are normal, because backward passes communicate from
autograd's own threads while the calling thread waits. So only threads that Python started count,
and only collectives that both have open at the same time.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.wire.records import ThreadStack
from ddtop.words.sentences import names_of_groups, ranks_text

_NOT_PYTHONS = ("pt_", "native")
"""Prefixes of the names of threads that Python did not start: those of autograd and of the
backend."""
_COLLECTIVE = re.compile(r"^(?:all_|reduce|broadcast|gather|scatter|barrier$)")
_SAME_ORDER = (
    "give each thread its own group (dist.new_group), or let one thread do all the communication"
)

Calls = tuple[tuple[str, str], ...]
"""(thread, what it has open), the longest open first."""


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
    return [_finding(snapshot, group, sharing) for group, sharing in sorted(found.items())]


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings. A finding that follows from a shared group becomes part of its cause: no rank
    is wrong where the order of two threads is left to chance.
    """
    by_group = {one.group: one for one in own}
    findings = list(own)
    for finding in context.found:
        why = by_group.get(finding.group) if finding.kind in _FOLLOWS else None
        if why is None:
            findings.append(finding)
            continue
        findings[findings.index(why)] = by_group[why.group] = replace(
            why,
            severity=finding.severity,
            victims=tuple(sorted({*finding.ranks, *finding.victims} - set(why.ranks))),
            since_unix_ns=finding.since_unix_ns,
            summary=f"{why.summary}; {finding.summary.partition('; no rank is missing')[0]}",
            evidence=(*why.evidence, *finding.evidence),
            op=finding.op,
            seq=finding.seq,
        )
    return findings


_FOLLOWS = frozenset({Kind.COLLECTIVE_MISMATCH, Kind.COLLECTIVE_STUCK, Kind.WAIT_CYCLE})
"""Its possible consequences."""


def _recorded_calls(rank: RankFacts, group: str) -> Calls:
    """The open entries of two threads in the flight recorder."""
    if len(rank.comm.open_collectives) < 2:
        return ()
    first: dict[int, tuple[str, str]] = {}
    for call in sorted(rank.comm.open_collectives, key=lambda collective: collective.seq):
        if (
            call.group == group
            and call.thread_id is not None
            and not (call.thread or "native").startswith(_NOT_PYTHONS)
        ):
            first.setdefault(call.thread_id, (call.thread or "", f"{call.op} #{call.seq}"))
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
        (_name(thread), call) for thread in stacks.threads if (call := _call(thread)) is not None
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
        and _COLLECTIVE.match(name := frame.function.rpartition(".")[2])
    ]
    return names[-1] if names else None


def _finding(snapshot: Snapshot, group: str, sharing: list[tuple[RankFacts, Calls]]) -> Finding:
    name = names_of_groups(snapshot.groups).get(group, group)
    ranks = tuple(rank.rank for rank, _ in sharing)
    lead, calls = sharing[0]
    doing = " and ".join(f"{thread} in {call}" for thread, call in calls[:2])
    since = min(
        progress.pending_since_unix_ns
        for rank, _ in sharing
        for progress in rank.comm.groups
        if progress.group == group and progress.pending_since_unix_ns is not None
    )
    return Finding(
        kind=Kind.THREADS_SHARE_GROUP,
        severity=WARNING,
        ranks=ranks,
        victims=(),
        since_unix_ns=since,
        summary=(
            f"{len(calls)} threads of {ranks_text(ranks)} communicate on {name} at the same time"
        )
        + (f" (rank {lead.rank}: {doing})" if len(ranks) > 1 else f" ({doing})")
        + ": their order may differ from rank to rank",
        evidence=tuple(
            f"rank {rank.rank} has these calls open on {name}: "
            + ", ".join(f"{call} by {thread}" for thread, call in theirs[:8])
            for rank, theirs in sharing[:8]
        ),
        advice=_SAME_ORDER,
        group=group,
    )
