"""Who waits for whom: sequence numbers of all ranks laid beside each other.

A rank with an open collective k of a group waits for every member that has not put k in. Chains of such waits end at
ranks that wait for nobody: those are the ones to look at. What does not work: taking the rank whose stack differs (with
gloo the smaller side of a size mismatch passes and is seen one collective later), or comparing gloo's own sequence
numbers as they are (send and recv advance them too: `p2p_offset` is taken off). What remains uncertain: point-to-point
waits and store waits are not in these numbers, so a rank inside one of them is never called the end of a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddtop.model.facts import Blame, PeerWait, RankFacts, State, Wait
from ddtop.model.policy import Policy
from ddtop.wire.records import P2P_CALLS, Collective, Group, GroupProgress

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


def tells_nothing(facts: RankFacts) -> bool:
    """Its agent could not read its collectives and has said so: where it stands is not known, and no reason to blame it."""
    return any(reason.startswith("collectives:") for reason in facts.probes_off)


def _really_waits(facts: RankFacts) -> bool:
    # An open asynchronous collective while the main thread computes holds nobody up yet.
    return facts.activity in ("collective", "backward", "cuda_sync") or not facts.working


def _is_behind(other: RankFacts | None, group: str, seq: int) -> bool:
    # A member that is gone cannot help any more, whatever it had put in.
    if other is None or other.hello is None or other.gone:
        return True
    if tells_nothing(other):
        return False
    progress = next((item for item in other.groups if item.group == group), None)
    return progress is None or comparable_seq(progress) < seq


def edges_of(waits: Iterable[Wait], peer_waits: Iterable[PeerWait]) -> dict[int, set[int]]:
    """Who waits for whom: each waiting rank with all that it waits for, itself left out."""
    edges: dict[int, set[int]] = {}
    every: list[Wait | PeerWait] = [*waits, *peer_waits]
    for wait in every:
        if wait.behind:
            edges.setdefault(wait.rank, set()).update(set(wait.behind) - {wait.rank})
    return edges


def blames_of(
    ranks: Mapping[int, RankFacts],
    waits: tuple[Wait, ...],
    peer_waits: tuple[PeerWait, ...],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[Blame, ...]:
    """The ends of all chains of waits, those that are waited for by most first."""
    edges = edges_of(waits, peer_waits)
    held = {wait.rank for wait in waits} | {wait.rank for wait in peer_waits}
    waiters: dict[int, set[int]] = {}
    for rank in edges:
        for root in _ends(rank, edges):
            # One that waits for nobody who is elsewhere: its own wait is about to end, or the network's.
            if root not in held and not _waits_elsewhere(ranks.get(root)):
                waiters.setdefault(root, set()).add(rank)
    found = [_blame(root, who, ranks, waits, peer_waits, now_unix_ns, policy) for root, who in waiters.items()]
    return tuple(sorted(found, key=lambda blame: (-len(blame.waiters), blame.root)))


def _blame(
    root: int,
    who: set[int],
    ranks: Mapping[int, RankFacts],
    waits: tuple[Wait, ...],
    peer_waits: tuple[PeerWait, ...],
    now_unix_ns: int,
    policy: Policy,
) -> Blame:
    direct = [wait for wait in waits if root in wait.behind and wait.rank in who]
    single = [wait for wait in peer_waits if root in wait.behind and wait.rank in who]
    standing = standing_of(ranks.get(root), now_unix_ns, policy)
    limit_s = limit_of(standing, [ranks[rank] for rank in who], policy)
    since = min([wait.since_unix_ns for wait in direct] + [wait.since_unix_ns for wait in single])
    due = now_unix_ns - since > limit_s * 1e9
    everyone = tuple(sorted(who))
    if direct:
        first = min(direct, key=lambda wait: wait.since_unix_ns)
        return Blame(root, everyone, first.group, first.seq, first.op, since, standing, limit_s, due)
    peer = min(single, key=lambda wait: wait.since_unix_ns)
    return Blame(root, everyone, None, None, peer.call, since, standing, limit_s, due, peer)


def cycles_of(waits: tuple[Wait, ...], peer_waits: tuple[PeerWait, ...]) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks that wait for each other and for nobody outside: no end of a chain explains them.

    These are the strongly connected components (Tarjan, without recursion) that no edge leaves.
    """
    edges = edges_of(waits, peer_waits)
    found = []
    for component in _components(edges):
        inside = set(component)
        if len(inside) > 1 and all(edges.get(rank, set()) <= inside for rank in inside):
            found.append(tuple(sorted(inside)))
    return tuple(sorted(found))


def _components(edges: Mapping[int, set[int]]) -> list[list[int]]:
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for start in edges:
        if start in number:
            continue
        todo = [(start, iter(sorted(edges[start])))]
        number[start] = lowest[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        while todo:
            rank, others = todo[-1]
            other = next(others, None)
            if other is None:
                todo.pop()
                if todo:
                    lowest[todo[-1][0]] = min(lowest[todo[-1][0]], lowest[rank])
                if lowest[rank] == number[rank]:
                    component = stack[stack.index(rank) :]
                    del stack[-len(component) :]
                    on_stack.difference_update(component)
                    found.append(component)
            elif other not in number:
                number[other] = lowest[other] = len(number)
                stack.append(other)
                on_stack.add(other)
                todo.append((other, iter(sorted(edges.get(other, ())))))
            elif other in on_stack:
                lowest[rank] = min(lowest[rank], number[other])
    return found


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
    if facts is None or facts.gone:
        return False
    in_p2p = facts.place is not None and facts.place.waits_on == "p2p"
    return in_p2p or any(call.name in P2P_CALLS for call in facts.open_calls)


def standing_of(facts: RankFacts | None, now_unix_ns: int, policy: Policy) -> str:
    """What is known of a rank that others wait for."""
    if facts is None or facts.hello is None:
        return UNKNOWN
    if facts.gone:
        return GONE
    if facts.state is State.STOPPED:
        return STOPPED
    if facts.progress_unix_ns is not None and now_unix_ns - facts.progress_unix_ns < policy.cpu_window_s * 1e9:
        # It goes on in another group, in batches or in steps, whatever CPU that takes.
        return WORKING
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
