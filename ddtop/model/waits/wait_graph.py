"""Where chains of waits end: at ranks that others wait for and that wait for nobody, or in cycles.

When one half of ten thousand ranks waits for the other half, there are 25 million pairs. This is a
healthy moment: half of the ranks have entered the collective and the others follow within
milliseconds. So the nodes of the graph are crowds. A crowd is all waits with the same `behind`
tuple, and stands between the ranks that wait and the ranks that they wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Union

from ddtop.model.state.facts import Blame, PeerWait, RankFields, State, Wait
from ddtop.policy import Policy
from ddtop.wire.calls import WAITING_CALLS

GONE, STOPPED, STILL, WORKING, UNKNOWN = "gone", "stopped", "still", "working", "unknown"
LOST = "lost"
AnyWait = Union[Wait, PeerWait]


@dataclass
class Crowd:
    """Waits for the same ranks."""

    #: The ranks that they wait for.
    behind: frozenset[int]
    #: (place among all waits, the wait)
    waits: list[tuple[int, AnyWait]] = field(default_factory=list)
    #: Numbers of the crowds in which a rank waits that this crowd waits for.
    next: set[int] = field(default_factory=set)


class Graph:
    """All waits for other ranks, as crowds.

    `of`: the numbers of the crowds that each waiting rank is in. `held`: all ranks that wait, also
    those for which everyone has come.
    """

    def __init__(self, waits: Iterable[AnyWait], peer_waits: Iterable[AnyWait] = ()) -> None:
        self.crowds: list[Crowd] = []
        self.of: dict[int, list[int]] = {}
        known: dict[int, int] = {}
        sets: dict[int, frozenset[int]] = {}
        every: tuple[AnyWait, ...] = (*waits, *peer_waits)
        self.held = {wait.rank for wait in every}
        for place, wait in enumerate(every):
            if not wait.behind:
                continue
            # `every` holds all of them, so that no two have one id.
            key = id(wait.behind)
            behind = sets.get(key)
            if behind is None:
                behind = sets[key] = frozenset(wait.behind)
            if wait.rank in behind:
                number = self._add(behind - {wait.rank})
            else:
                found = known.get(key)
                number = known[key] = self._add(behind) if found is None else found
            self.crowds[number].waits.append((place, wait))
            self.of.setdefault(wait.rank, []).append(number)
        waiting = self.of.keys()
        for crowd in self.crowds:
            for rank in crowd.behind & waiting:
                crowd.next.update(self.of[rank])

    def _add(self, behind: frozenset[int]) -> int:
        self.crowds.append(Crowd(behind))
        return len(self.crowds) - 1

    def leading_to(self, numbers: Iterable[int]) -> set[int]:
        """These crowds, and all whose waits lead into them."""
        before: dict[int, list[int]] = {}
        for number, crowd in enumerate(self.crowds):
            for other in crowd.next:
                before.setdefault(other, []).append(number)
        found, todo = set(numbers), list(numbers)
        while todo:
            for number in before.get(todo.pop(), ()):
                if number not in found:
                    found.add(number)
                    todo.append(number)
        return found

    def ranks_of(self, numbers: Iterable[int]) -> set[int]:
        """The ranks that wait in these crowds."""
        return {wait.rank for number in numbers for _, wait in self.crowds[number].waits}


def waiters_of(blames: Iterable[Blame]) -> set[int]:
    """All ranks that wait for a blamed one. Thousands that are blamed together share one `waiters`
    tuple."""
    found: set[int] = set()
    seen: set[int] = set()
    for blame in blames:
        if id(blame.waiters) not in seen:
            seen.add(id(blame.waiters))
            found.update(blame.waiters)
    return found


def blames_of(
    ranks: Mapping[int, RankFields], graph: Graph, now_unix_ns: int, policy: Policy
) -> tuple[Blame, ...]:
    """The ends of all chains of waits; those for which most ranks wait come first."""
    roots: dict[int, list[int]] = {}
    for number, crowd in enumerate(graph.crowds):
        # A rank that waits for nobody who is elsewhere: its wait is about to end, or is the
        # network's fault.
        for rank in crowd.behind - graph.held:
            roots.setdefault(rank, []).append(number)
    kinds: dict[tuple[int, ...], _Kind] = {}
    found = []
    for root, numbers in roots.items():
        if _waits_elsewhere(ranks.get(root)):
            continue
        kind = kinds.get(key := tuple(numbers))
        if kind is None:
            kind = kinds[key] = _kind(graph, key, ranks)
        found.append(kind.blame(root, ranks.get(root), now_unix_ns, policy))
    return tuple(sorted(found, key=lambda blame: (-len(blame.waiters), blame.root)))


@dataclass(frozen=True)
class _Kind:
    """What is the same for all ranks that are waited for in the same crowds."""

    waiters: tuple[int, ...]
    healthy_ms: float
    pause_s: float
    since_unix_ns: int
    direct: Wait | None
    single: PeerWait | None

    def blame(self, root: int, facts: RankFields | None, now_unix_ns: int, policy: Policy) -> Blame:
        condition = condition_of(facts, now_unix_ns, policy)
        stayed_s = _stayed_s(facts, self.since_unix_ns, policy) if facts is not None else 0.0
        limit_s = limit_of(condition, self.healthy_ms, self.pause_s, stayed_s, policy)
        due = (
            now_unix_ns - self.since_unix_ns > limit_s * 1e9
            and not _too_soon(facts, condition)
            and not _seen_before(facts, condition, self.since_unix_ns, now_unix_ns, policy)
        )
        if self.direct is not None:
            group, seq, op = self.direct.group, self.direct.seq, self.direct.op
            return Blame(
                root, self.waiters, group, seq, op, self.since_unix_ns, condition, limit_s, due
            )
        op = self.single.call if self.single is not None else None
        return Blame(
            root,
            self.waiters,
            None,
            None,
            op,
            self.since_unix_ns,
            condition,
            limit_s,
            due,
            self.single,
        )


def _kind(graph: Graph, numbers: tuple[int, ...], ranks: Mapping[int, RankFields]) -> _Kind:
    who = graph.ranks_of(graph.leading_to(numbers))
    here = sorted(found for number in numbers for found in graph.crowds[number].waits)
    direct = min((wait for _, wait in here if isinstance(wait, Wait)), key=_since, default=None)
    single = min((wait for _, wait in here if isinstance(wait, PeerWait)), key=_since, default=None)
    healthy_ms = max((ranks[rank].comm.healthy_wait_max_ms or 0.0 for rank in who), default=0.0)
    # All of them have made a pause of this length twice.
    pause_s = min((ranks[rank].progress.usual_pause_s or 0.0 for rank in who), default=0.0)
    since_unix_ns = min(_since(wait) for _, wait in here)
    return _Kind(tuple(sorted(who)), healthy_ms, pause_s, since_unix_ns, direct, single)


def _stayed_s(facts: RankFields, since_unix_ns: int, policy: Policy) -> float:
    """The longest time for which it has stood at its line before; 0 if it sleeps longer now."""
    stayed_s, until = facts.progress.stayed_s or 0.0, facts.progress.sleeps_until_unix_ns
    longer = until is not None and until - since_unix_ns > policy.still_stay_factor * stayed_s * 1e9
    return 0.0 if longer else stayed_s


def _since(wait: AnyWait) -> int:
    return wait.since_unix_ns


def cycles_of(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks that wait for each other and for nobody outside: no end of a chain explains
    them.

    These are the strongly connected components (Tarjan, without recursion) that no edge leaves.
    The ranks of a component are those that wait in one of its crowds and for which one of its
    crowds waits.
    """
    found = []
    for component in _components(graph.crowds):
        behind = frozenset[int]().union(*(graph.crowds[number].behind for number in component))
        inside = behind & graph.ranks_of(component)
        mine = {number for rank in inside for number in graph.of[rank]}
        if len(inside) > 1 and all(graph.crowds[number].behind <= inside for number in mine):
            found.append(tuple(sorted(inside)))
    return tuple(sorted(found))


def _components(crowds: list[Crowd]) -> list[list[int]]:
    """The strongly connected components of more than one crowd."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for start, crowd in enumerate(crowds):
        if start in number or not crowd.next:
            continue
        todo = [(start, iter(crowd.next))]
        number[start] = lowest[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        while todo:
            one, others = todo[-1]
            other = next(others, None)
            if other is None:
                todo.pop()
                if todo:
                    lowest[todo[-1][0]] = min(lowest[todo[-1][0]], lowest[one])
                if lowest[one] == number[one]:
                    component = _popped(stack, one)
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
            elif other not in number:
                number[other] = lowest[other] = len(number)
                stack.append(other)
                on_stack.add(other)
                todo.append((other, iter(crowds[other].next)))
            elif other in on_stack:
                lowest[one] = min(lowest[one], number[other])
    return found


def _popped(stack: list[int], down_to: int) -> list[int]:
    component = [stack.pop()]
    while component[-1] != down_to:
        component.append(stack.pop())
    return component


def _waits_elsewhere(facts: RankFields | None) -> bool:
    """Whether it is inside a wait that these numbers do not show: point-to-point."""
    if facts is None or facts.gone:
        return False
    in_p2p = facts.reported.place is not None and facts.reported.place.waits_on == "p2p"
    return in_p2p or any(call.name in WAITING_CALLS for call in facts.comm.open_calls)


def _too_soon(facts: RankFields | None, condition: str) -> bool:
    """Whether it has not been looked at for long enough, or its host does not report.

    This is no reason to blame it, and no reason to wait longer.
    """
    if facts is None:
        return False
    return (
        facts.agent.unlooked
        if condition == UNKNOWN
        else condition == LOST and facts.state is not State.LOST
    )


def _seen_before(
    facts: RankFields | None, condition: str, since_unix_ns: int, now_unix_ns: int, policy: Policy
) -> bool:
    """Whether its relay last saw it asleep when the others had hardly begun to wait.

    A relay that gets no CPU for seconds says nothing of what the rank has done since. One that has
    not looked for long is not waited for.
    """
    looked = facts.process.looked_unix_ns if facts is not None else None
    if condition != STILL or looked is None:
        return False
    looked_after = looked >= since_unix_ns + policy.cpu_window_s * 1e9
    return not looked_after and now_unix_ns - looked < policy.relay_away_s * 1e9


def condition_of(facts: RankFields | None, now_unix_ns: int, policy: Policy) -> str:
    """What is known of a rank that others wait for."""
    if facts is None or facts.hello is None:
        return UNKNOWN
    if facts.gone:
        return GONE
    if facts.agent.unheard or facts.state is State.STOPPED:
        return STOPPED if facts.state is State.STOPPED else LOST
    if (
        facts.progress.last_unix_ns is not None
        and now_unix_ns - facts.progress.last_unix_ns < policy.cpu_window_s * 1e9
    ):
        # It makes progress in another group, in batches or in steps, even with little CPU.
        return WORKING
    if facts.process.working is None:
        return UNKNOWN
    return WORKING if facts.process.working else STILL


def limit_of(
    condition: str, healthy_ms: float, pause_s: float, stayed_s: float, policy: Policy
) -> float:
    """How long waiting for such a rank is normal, seconds.

    `healthy_ms`: the longest wait of the waiters that ended well lately. `pause_s`: the second
    longest pause that all of them have made since they were first heard. `stayed_s`: the longest
    time for which the rank has stood at the same line before, without harm.
    """
    if condition == GONE:
        return policy.gone_limit_s
    if condition == STOPPED:
        return policy.stopped_limit_s
    if condition == STILL:
        return max(policy.still_limit_s, policy.still_stay_factor * stayed_s)
    if condition == LOST:
        return policy.still_limit_s
    habit_s = min(policy.working_habit_factor * pause_s, policy.working_critical_s)
    return max(policy.working_limit_s, policy.healthy_wait_factor * healthy_ms / 1000, habit_s)
