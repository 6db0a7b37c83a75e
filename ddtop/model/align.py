"""Who waits for whom: sequence numbers of all ranks laid beside each other.

A rank with an open collective k of a group waits for every member that has not put k in. Chains of such waits end at
ranks that wait for nobody: those are the ones to look at. What does not work: taking the rank whose stack differs (with
gloo the smaller side of a size mismatch passes and is seen one collective later), or comparing gloo's own sequence
numbers as they are (send and recv advance them too: `p2p_offset` is taken off). What remains uncertain: point-to-point
waits and store waits are not in these numbers, so a rank inside one of them is never called the end of a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddtop.model.facts import Blame, RankFacts, State, Wait
from ddtop.model.policy import Policy
from ddtop.wire.records import Collective, Group, GroupProgress

GONE, STOPPED, STILL, WORKING, UNKNOWN = "gone", "stopped", "still", "working", "unknown"


def comparable_seq(progress: GroupProgress) -> int:
    """The last collective that was put in, counted as on all other ranks."""
    return progress.enqueued - (progress.p2p_offset or 0)


def first_open_seq(progress: GroupProgress, open_collectives: Iterable[Collective] = ()) -> int:
    """The first collective that is open, counted as on all other ranks.

    Its own entry knows best, once it has been read: monitored_barrier advances the count and leaves no entry behind, so
    the one after the last completed need not be the next.
    """
    entries = [item.seq for item in open_collectives if item.group == progress.group]
    if entries:
        return min(entries)
    if progress.completed is None:
        return comparable_seq(progress)
    return progress.completed + 1 - (progress.p2p_offset or 0)


def waits_of(ranks: Mapping[int, RankFacts], groups: Iterable[Group]) -> tuple[Wait, ...]:
    """All open waits, one a rank and group."""
    members = {group.name: group.ranks for group in groups}
    found = []
    for _, facts in sorted(ranks.items()):
        # What a stopped or silent rank said last is old: by now it may have been let go, or be the one to look at.
        if facts.gone or facts.state in (State.STOPPED, State.SILENT):
            continue
        for progress in facts.groups:
            if progress.pending_since_unix_ns is None or not _really_waits(facts):
                continue
            seq = first_open_seq(progress, facts.open_collectives)
            behind = tuple(
                other
                for other in members.get(progress.group, ())
                if other != facts.rank and _is_behind(ranks.get(other), progress.group, seq)
            )
            op = next(
                (item.op for item in facts.open_collectives if (item.group, item.seq) == (progress.group, seq)), None
            )
            found.append(
                Wait(facts.rank, progress.group, seq, progress.pending_since_unix_ns, behind, op or progress.last_op)
            )
    return tuple(found)


def _really_waits(facts: RankFacts) -> bool:
    # An open asynchronous collective while the main thread computes holds nobody up yet.
    return facts.activity in ("collective", "backward", "cuda_sync") or not facts.working


def _is_behind(other: RankFacts | None, group: str, seq: int) -> bool:
    # A member that is gone cannot help any more, whatever it had put in.
    if other is None or other.hello is None or other.gone:
        return True
    progress = next((item for item in other.groups if item.group == group), None)
    return progress is None or comparable_seq(progress) < seq


def blames_of(
    ranks: Mapping[int, RankFacts], waits: tuple[Wait, ...], now_unix_ns: int, policy: Policy
) -> tuple[Blame, ...]:
    """The ends of all chains of waits, those that are waited for by most first."""
    edges: dict[int, set[int]] = {}
    for wait in waits:
        edges.setdefault(wait.rank, set()).update(wait.behind)
    waiters: dict[int, set[int]] = {}
    for rank in edges:
        for root in _ends(rank, edges):
            if not _waits_elsewhere(ranks.get(root)):
                waiters.setdefault(root, set()).add(rank)
    found = []
    for root, who in waiters.items():
        direct = [wait for wait in waits if root in wait.behind and wait.rank in who]
        first = min(direct, key=lambda wait: wait.since_unix_ns)
        standing = standing_of(ranks.get(root))
        limit_s = limit_of(standing, [ranks[rank] for rank in who], policy)
        due = now_unix_ns - first.since_unix_ns > limit_s * 1e9
        found.append(
            Blame(
                root, tuple(sorted(who)), first.group, first.seq, first.op, first.since_unix_ns, standing, limit_s, due
            )
        )
    return tuple(sorted(found, key=lambda blame: (-len(blame.waiters), blame.root)))


def _ends(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    """Ranks reachable from `start` that wait for nobody."""
    seen, todo, ends = {start}, list(edges.get(start, ())), set()
    while todo:
        rank = todo.pop()
        if rank in seen:
            continue
        seen.add(rank)
        if rank in edges:
            todo.extend(edges[rank])
        else:
            ends.add(rank)
    return ends


def _waits_elsewhere(facts: RankFacts | None) -> bool:
    """It is inside a wait that these numbers do not show: point-to-point."""
    return facts is not None and not facts.gone and facts.place is not None and facts.place.waits_on == "p2p"


def standing_of(facts: RankFacts | None) -> str:
    """What is known of a rank that others wait for."""
    if facts is None or facts.hello is None:
        return UNKNOWN
    if facts.gone:
        return GONE
    if facts.state is State.STOPPED:
        return STOPPED
    if facts.working is None:
        return UNKNOWN
    return WORKING if facts.working else STILL


def limit_of(standing: str, waiting: list[RankFacts], policy: Policy) -> float:
    """How long waiting for such a rank is borne, seconds."""
    if standing == GONE:
        return policy.gone_limit_s
    if standing == STOPPED:
        return policy.stopped_limit_s
    if standing == STILL:
        return policy.still_limit_s
    healthy_ms = max((facts.healthy_wait_max_ms or 0.0 for facts in waiting), default=0.0)
    return max(policy.working_limit_s, policy.healthy_wait_factor * healthy_ms / 1000)
