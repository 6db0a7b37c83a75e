"""Where chains of waits end: at ranks that others wait for and that wait for nobody, or in cycles.

When one half of ten thousand ranks waits for the other half, there are 25 million pairs. This is a
healthy moment: half of the ranks have entered the collective and the others follow within
milliseconds. So the nodes of the graph are crowds. A crowd is all waits with the same `behind`
tuple, and stands between the ranks that wait and the ranks that they wait for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Union

from ddtop.model.facts import Blame, PeerWait, RankFields, State, Wait
from ddtop.policy import Limits, Policy
from ddtop.wire.mpi import is_outside
from ddtop.wire.names import GROUP_MAKERS, MPI_STARTED, ROOT_GIVES, WAITING_CALLS
from ddtop.wire.records import Collective, Group, GroupProgress


@dataclass(frozen=True)
class BlameLimits(Limits, of="blame"):
    """From when a rank is blamed for a wait."""

    working_limit_s: float = 5.0
    """Waiting for a rank that visibly works, at least. Usually `healthy_wait_factor` counts."""
    working_habit_factor: float = 1.5
    """... or, for such a rank, this many times the second longest pause of those that wait, at most
    `working_critical_s`. A job that validates every 500 steps has such a pause each time, and the
    waits are remembered for 100 steps only."""
    still_stay_factor: float = 2.0
    """Nothing is said of a rank without progress up to this many times its longest stay at the same
    line so far. A master that sleeps between bursts does so each time, and bursts differ in
    length."""


GONE, STOPPED, STILL, WORKING, UNKNOWN = "gone", "stopped", "still", "working", "unknown"
LOST = "lost"
AnyWait = Union[Wait, PeerWait]


@dataclass
class Crowd:
    """The waits for one set of ranks."""

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
        # All members are in this call: it is about to complete, or the network is at fault.
        for rank in crowd.behind - graph.held:
            roots.setdefault(rank, []).append(number)
    kinds: dict[tuple[int, ...], _Kind] = {}
    blames = []
    for root, numbers in roots.items():
        if _waits_elsewhere(ranks.get(root)):
            continue
        kind = kinds.get(key := tuple(numbers))
        if kind is None:
            kind = kinds[key] = _kind(graph, key, ranks)
        blames.append(kind.blame(root, ranks.get(root), now_unix_ns, policy))
    return tuple(sorted(blames, key=lambda blame: (-len(blame.waiters), blame.root)))


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
    leading_ranks = graph.ranks_of(graph.leading_to(numbers))
    here = sorted(found for number in numbers for found in graph.crowds[number].waits)
    direct = min(
        (wait for _, wait in here if isinstance(wait, Wait)), key=_since_unix_ns, default=None
    )
    single = min(
        (wait for _, wait in here if isinstance(wait, PeerWait)), key=_since_unix_ns, default=None
    )
    healthy_ms = max(
        (ranks[rank].comm.healthy_wait_max_ms or 0.0 for rank in leading_ranks), default=0.0
    )
    # All of them have made a pause of this length twice.
    pause_s = min(
        (ranks[rank].progress.usual_pause_s or 0.0 for rank in leading_ranks), default=0.0
    )
    since_unix_ns = min(_since_unix_ns(wait) for _, wait in here)
    return _Kind(tuple(sorted(leading_ranks)), healthy_ms, pause_s, since_unix_ns, direct, single)


def _stayed_s(facts: RankFields, since_unix_ns: int, policy: Policy) -> float:
    """The longest time for which it has stood at its line before; 0 if it sleeps longer now."""
    stayed_s, until = facts.progress.stayed_s or 0.0, facts.progress.sleeps_until_unix_ns
    longer = (
        until is not None
        and until - since_unix_ns > policy.of(BlameLimits).still_stay_factor * stayed_s * 1e9
    )
    return 0.0 if longer else stayed_s


def _since_unix_ns(wait: AnyWait) -> int:
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
        crowds = {number for rank in inside for number in graph.of[rank]}
        if len(inside) > 1 and all(graph.crowds[number].behind <= inside for number in crowds):
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
                    component = _pop(stack, one)
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


def _pop(stack: list[int], down_to: int) -> list[int]:
    component = [stack.pop()]
    while component[-1] != down_to:
        component.append(stack.pop())
    return component


def _waits_elsewhere(facts: RankFields | None) -> bool:
    """Whether it is inside a wait that these numbers do not show: point-to-point."""
    if facts is None or facts.gone:
        return False
    # The last place of a rank that leaves may be that of a call which has ended since.
    in_p2p = facts.reported.phase != "leaving" and facts.reported.waits_on == "p2p"
    # A call with another world waits for no rank of this one: such a rank is the end of a chain.
    calls = [call.name for call in facts.comm.open_calls if not is_outside(call.group)]
    return (in_p2p and not waits_outside(facts)) or any(name in WAITING_CALLS for name in calls)


def waits_outside(facts: RankFields) -> bool:
    """Whether it is in a call of MPI with processes of another world."""
    return any(is_outside(call.group) for call in facts.comm.open_calls)


def _too_soon(facts: RankFields | None, condition: str) -> bool:
    """Whether it has not been looked at for long enough, or its host does not report.

    This is not a reason to blame it, and no reason to wait longer.
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
    # What another world does is not known: it may work.
    works = True if waits_outside(facts) else facts.process.working
    if works is None:
        return UNKNOWN
    return WORKING if works else STILL


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
        return max(policy.still_limit_s, policy.of(BlameLimits).still_stay_factor * stayed_s)
    if condition == LOST:
        return policy.still_limit_s
    habit_s = min(policy.of(BlameLimits).working_habit_factor * pause_s, policy.working_critical_s)
    return max(
        policy.of(BlameLimits).working_limit_s,
        policy.healthy_wait_factor * healthy_ms / 1000,
        habit_s,
    )


# -- Which rank waits for which: compares the sequence numbers of all ranks. `wait_graph` finds
#    where these waits end
#
# A rank with an open collective k of a group waits for every member that has not enqueued k. Chains
# of such waits end at ranks that wait for nobody: look at those first.
#
# Two simpler measures do not work. A rank whose stack differs need not be the cause: with gloo the
# smaller side of a size mismatch passes and is seen one collective later. gloo's own sequence
# numbers cannot be compared as they are: send and recv advance them too, so `p2p_offset` is
# subtracted.
#
# Point-to-point waits and store waits are not in these numbers, so a rank inside one of them is
# never called the end of a chain.


# -- Whether a rank's main thread waits for its GPU
#
# Waiting for a GPU takes a whole core: cudaStreamSynchronize, which `loss.item()` calls, spins, and
# so does a launch whose queue is full. From outside that looks like a rank that computes. The
# difference is that it stays inside one line of Python, with an open NCCL collective that does not
# move.


def on_nccl(groups: Iterable[Group]) -> frozenset[str]:
    """The names of the groups whose collectives run on GPUs."""
    return frozenset(group.name for group in groups if "nccl" in group.backend)


def stuck_on_gpu(facts: RankFields, policy: Policy) -> bool:
    """Whether its main thread is stuck in one call on the GPU.

    For seconds it has been inside one call, no collective has completed, and its GPU does not
    compute as far as that is known. In a job that is limited by its GPUs each report finds the host
    in the same call, so only both together mean no progress.
    """
    still_s = min(facts.reported.line_age_s or 0.0, facts.comm.collective_age_s or 0.0)
    return still_s >= policy.same_line_s and not facts.gpu.computes


# -- align


def comparable_seq(progress: GroupProgress) -> int:
    """The last collective that was enqueued, counted as on all other ranks."""
    return progress.enqueued - (progress.p2p_offset or 0)


def first_open_seq(progress: GroupProgress, open_collectives: Iterable[Collective] = ()) -> int:
    """The first collective that is open, counted as on all other ranks.

    Its own entry is used once it has been read. monitored_barrier advances the count and leaves no
    entry behind, so the one after the last completed need not be the next.
    """
    return _first_open(progress, open_collectives)[0]


def _first_open(
    progress: GroupProgress, open_collectives: Iterable[Collective]
) -> tuple[int, Collective | None]:
    """`first_open_seq`, and its entry once that has been read."""
    first: Collective | None = None
    for item in open_collectives:
        if item.group == progress.group and (first is None or item.seq < first.seq):
            first = item
    if first is not None:
        return first.seq, first
    if progress.completed is None:
        return comparable_seq(progress), None
    return progress.completed + 1 - (progress.p2p_offset or 0), None


def waits_of(
    ranks: Mapping[int, RankFields], groups: Collection[Group], policy: Policy
) -> tuple[Wait, ...]:
    """All open waits, one for each rank and group.

    Ranks that wait for the same ranks share one `behind` tuple.
    """
    members, nccl = {group.name: group.ranks for group in groups}, on_nccl(groups)
    fronts: dict[str, _Front] = {}
    waits = []
    for rank in sorted(ranks):
        facts = ranks[rank]
        # Ignore the last reported wait of a rank that is stopped or silent: it may be over by now.
        if (
            facts.process.exit is not None
            or facts.agent.unheard
            or facts.state in (State.STOPPED, State.SILENT)
        ):
            continue
        for progress in facts.comm.groups:
            since = progress.pending_since_unix_ns
            if since is None:
                continue
            name = progress.group
            if not _thread_waits_for_it(facts) and not (
                name in nccl and stuck_on_gpu(facts, policy)
            ):
                continue
            front = fronts.get(name)
            if front is None:
                front = fronts[name] = _Front(ranks, name, members.get(name, ()))
            seq, entry = _first_open(progress, facts.comm.open_collectives)
            op, root = (entry.op, entry.root) if entry is not None else (None, None)
            behind = front.behind(facts.rank, seq)
            if root is not None and op in ROOT_GIVES and root != facts.rank and root in behind:
                behind = front.only(root)
            if not behind and op in MPI_STARTED:
                behind = front.outside_mpi(facts.rank)
            waits.append(Wait(facts.rank, name, seq, since, behind, op or progress.last_op))
    return tuple(waits)


class _Front:
    """How far the members of one group have got, worked out once for all that wait."""

    def __init__(
        self, ranks: Mapping[int, RankFields], group: str, members: tuple[int, ...]
    ) -> None:
        self._ranks, self._members = ranks, members
        self._outside: tuple[int, ...] | None = None
        reached = [_last_enqueued(ranks.get(member), group) for member in members]
        self._places = sorted(range(len(reached)), key=reached.__getitem__)
        self._reached = [reached[place] for place in self._places]
        self._known: dict[int, tuple[tuple[int, ...], frozenset[int]]] = {}
        self._roots: dict[int, tuple[int, ...]] = {}

    def only(self, root: int) -> tuple[int, ...]:
        """Only the root, for a collective in which it gives and the others take."""
        return self._roots.setdefault(root, (root,))

    def outside_mpi(self, rank: int) -> tuple[int, ...]:
        """The other members that are not in an MPI call. A collective that all have started
        progresses only while they are in a call."""
        if self._outside is None:
            self._outside = tuple(
                [member for member in self._members if _is_outside_mpi(self._ranks.get(member))]
            )
        return tuple([other for other in self._outside if other != rank])

    def behind(self, rank: int, seq: int) -> tuple[int, ...]:
        """The other members that have not enqueued `seq`, in the order of the group."""
        first = bisect_left(self._reached, seq)
        known = self._known.get(first)
        if known is None:
            found = tuple([self._members[place] for place in sorted(self._places[:first])])
            known = self._known[first] = (found, frozenset(found))
        behind, members = known
        return tuple([other for other in behind if other != rank]) if rank in members else behind


def _is_outside_mpi(member: RankFields | None) -> bool:
    mpi = member.comm.mpi if member is not None and not member.gone else None
    return mpi is not None and not mpi.calls and mpi.finalize_since_unix_ns is None


def _last_enqueued(member: RankFields | None, group: str) -> float:
    """The last collective that this member has enqueued.

    -inf: it will never enqueue more; inf: nothing is known of it.
    """
    # A member that is gone cannot help any more, whatever it had enqueued.
    if member is None or member.hello is None or member.gone:
        return float("-inf")
    if tells_nothing(member):
        return float("inf")
    for progress in member.comm.groups:
        if progress.group == group:
            return comparable_seq(progress)
    return float("-inf")


def tells_nothing(facts: RankFields) -> bool:
    """Whether its agent has reported that it cannot read the collectives.

    Then it is not known where the rank is, which is not a reason to blame it.
    """
    return bool(facts.agent.probes_off) and any(
        reason.startswith("collectives:") for reason in facts.agent.probes_off
    )


_ELSEWHERE = frozenset(
    {
        "DataLoader",
        "child",
        "pipe",
        "file",
        "socket",
        "stdin",
        "debugger",
        "import",
        "compile",
        "checkpoint-save",
    }
    | {"checkpoint-load"}
)
"""What a thread waits on that is not a collective.

Locks, queues and futures are not among them: a thread that communicates for it may hold one.
"""
_ELSEWHERE_CALLS = frozenset(
    {"nanosleep", "clock_nanosleep", "wait4", "waitid", "pause", "rt_sigsuspend"}
)
_ELSEWHERE_WCHANS = ("nanosleep", "pipe_read", "pipe_write", "n_tty_read")


def _thread_waits_for_it(facts: RankFields) -> bool:
    """Whether something of it is open, and its thread waits for that.

    An open asynchronous collective holds nobody up while the thread computes, sleeps or waits for a
    batch.
    """
    if any(call.name in GROUP_MAKERS for call in facts.comm.open_calls):
        # Meanwhile its agent does not read the recorder: what was open then may have completed.
        return False
    if facts.reported.activity in ("collective", "backward", "cuda_sync"):
        return True
    if facts.process.working or (facts.reported.waits_on in _ELSEWHERE):
        return False
    process = facts.process.report
    if process is None or process.state not in ("S", "D"):
        return True
    wchan = process.wchan or ""
    return process.syscall not in _ELSEWHERE_CALLS and not any(
        part in wchan for part in _ELSEWHERE_WCHANS
    )
