"""Which rank waits for which: compares the sequence numbers of all ranks. `wait_graph` finds where
these waits end.

A rank with an open collective k of a group waits for every member that has not enqueued k. Chains
of such waits end at ranks that wait for nobody: look at those first.

Two simpler measures do not work. A rank whose stack differs need not be the cause: with gloo the
smaller side of a size mismatch passes and is seen one collective later. gloo's own sequence numbers
cannot be compared as they are: send and recv advance them too, so `p2p_offset` is subtracted.

Point-to-point waits and store waits are not in these numbers, so a rank inside one of them is never
called the end of a chain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping

from ddtop.model.state.facts import RankFields, State, Wait
from ddtop.model.waits.gpu_wait import on_nccl, stuck_on_gpu
from ddtop.policy import Policy
from ddtop.wire.calls import MPI_STARTED, ROOT_GIVES
from ddtop.wire.records import Collective, Group, GroupProgress


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
    found = []
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
            found.append(Wait(facts.rank, name, seq, since, behind, op or progress.last_op))
    return tuple(found)


class _Front:
    """How far the members of one group have got, worked out once for all that wait."""

    def __init__(
        self, ranks: Mapping[int, RankFields], group: str, members: tuple[int, ...]
    ) -> None:
        self._ranks, self._members = ranks, members
        self._outside: tuple[int, ...] | None = None
        reached = [_reached(ranks.get(member), group) for member in members]
        self._places = sorted(range(len(reached)), key=reached.__getitem__)
        self._reached = [reached[place] for place in self._places]
        self._known: dict[int, tuple[tuple[int, ...], frozenset[int]]] = {}
        self._roots: dict[int, tuple[int, ...]] = {}

    def only(self, root: int) -> tuple[int, ...]:
        """Only the root, of a collective in which it gives and the others take."""
        return self._roots.setdefault(root, (root,))

    def outside_mpi(self, rank: int) -> tuple[int, ...]:
        """The other members that are in no call of MPI.

        A collective that all have started moves on only while they are in a call.
        """
        if self._outside is None:
            self._outside = tuple(
                [one for one in self._members if _is_outside_mpi(self._ranks.get(one))]
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


def _reached(member: RankFields | None, group: str) -> float:
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

    Then it is not known where the rank is, which is no reason to blame it.
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
"""What a thread waits on that is no collective.

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
    if facts.reported.activity in ("collective", "backward", "cuda_sync"):
        return True
    if facts.process.working or (
        facts.reported.place is not None and facts.reported.place.waits_on in _ELSEWHERE
    ):
        return False
    process = facts.process.report
    if process is None or process.state not in ("S", "D"):
        return True
    wchan = process.wchan or ""
    return process.syscall not in _ELSEWHERE_CALLS and not any(
        part in wchan for part in _ELSEWHERE_WCHANS
    )
