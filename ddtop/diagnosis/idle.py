"""Which ranks wait for work from outside: a prompt, a request loop, a master without orders, and
the ranks that wait for it.

Such waits have no normal length, so they are not a fault, however long they last. A rank that
counts training steps is never idle: its next step is its work.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.diagnosis.activity import classify
from ddtop.model.stacks.frames import Owner, owner_of
from ddtop.model.state.facts import Blame, PeerWait, RankFacts, Snapshot, Wait
from ddtop.model.waits.wait_graph import waiters_of
from ddtop.policy import Policy
from ddtop.wire.calls import RECEIVES, is_from_root
from ddtop.wire.stacks import StackFrame

RHYTHM = "collectives"
"""`RankFacts.iteration_source` if a repeated pattern of MPI calls was counted. The orders in a task
farm are such a pattern too.
"""
REQUESTS = frozenset({"stdin", "socket", "queue"})
"""Words of `doing` for waits in which the next request may come."""
PROMPTS = frozenset({"stdin", "socket"})
"""Words of `doing` for an interpreter at its prompt; the event loop of a notebook kernel reads a
socket.
"""
OUTSIDE = REQUESTS | {"pipe", "rpc"}
_POLLING = frozenset({"sleep", "lock", "python", "unknown"})
"""Words of `doing` for a loop that polls. If a sample finds its thread awake, the word says
nothing.
"""


def counts_steps(rank: RankFacts) -> bool:
    """Whether the program counts steps on this rank: an optimizer's, batches of a DataLoader, or
    `ddtop.step`.
    """
    return rank.progress.iteration is not None and rank.progress.iteration_source != RHYTHM


def polls(rank: RankFacts, policy: Policy) -> bool:
    """Whether it sleeps and wakes up again and again, or soon, like a loop that polls for work."""
    wakes = rank.process.wakes_per_s or 0.0
    until, heard = rank.progress.sleeps_until_unix_ns, rank.agent.heard_unix_ns or 0
    soon = until is not None and until - heard <= policy.poll_sleep_s * 1e9
    return (
        rank.process.working is False
        and (wakes >= policy.poll_wakes_per_s or soon)
        and classify(rank, policy).word in _POLLING
    )


class Idle:
    """Finds the idle ranks of one snapshot. Facts that thousands of ranks share are computed
    once."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._single = {rank for wait in snapshot.peer_waits for rank in wait.behind}
        self._others = {wait.rank for wait in snapshot.waits if not self._takes(wait)}
        self._others |= {wait.rank for wait in snapshot.peer_waits if not _is_for_orders(wait)}
        self._taken: dict[int, bool] = {}

    def gives_orders(self, blame: Blame) -> bool:
        """Whether workers wait for orders, and the blamed rank waits for the input from which it
        makes orders.

        Then no rank is at fault. All ranks that wait for it, or for one of those, must wait for
        orders: in a recv, or in a broadcast in which they take. A rank that sends, or that waits in
        an all_reduce of its training, has work, and the blamed rank does not come to it.
        """
        root = self._snapshot.rank(blame.root)
        if counts_steps(root) or not self._all_take(blame):
            return False
        word, asks = classify(root, self._policy).word, polls(root, self._policy)
        if word not in REQUESTS and not asks:
            return False
        process = root.process.report
        asks = asks or word == "queue" or (process is not None and process.remote is not None)
        regular = asks or root.progress.iteration is not None
        return not regular or blame.root in self._single or self._is_normal_wait(blame)

    def _all_take(self, blame: Blame) -> bool:
        """Whether every rank that waits takes what another rank gives."""
        # Blames share the tuple of their waiters, which may have 10,000 ranks.
        key = id(blame.waiters)
        if key not in self._taken:
            self._taken[key] = self._others.isdisjoint(blame.waiters)
        return self._taken[key]

    def _takes(self, wait: Wait) -> bool:
        """Whether this is a broadcast in which its rank is not the one that gives."""
        if not is_from_root(wait.op or ""):
            return False
        mine = self._snapshot.rank(wait.rank).comm.open_collectives
        return all(one.root != wait.rank for one in mine if one.group == wait.group)

    def _is_normal_wait(self, blame: Blame) -> bool:
        """Whether workers wait so for orders: they have waited long before, at least twice, or that
        rank has stood there for long before, or they have hardly begun.

        A training in which each step begins with a broadcast looks the same at the moment when what
        its first rank asks for does not come. But it has made many such steps, all without a wait.
        """
        waiters = [self._snapshot.rank(rank).comm for rank in blame.waiters]
        usual_ms = max((comm.usual_wait_ms or 0.0 for comm in waiters), default=0.0)
        made = max((one.enqueued for comm in waiters for one in comm.groups), default=0)
        stayed_s = self._snapshot.rank(blame.root).progress.stayed_s or 0.0
        waited_s = (self._snapshot.time_unix_ns - blame.since_unix_ns) / 1e9
        again = stayed_s >= self._policy.idle_habit_s
        return (
            usual_ms >= 1000 * self._policy.idle_habit_s
            or (again and waited_s < self._policy.idle_stay_factor * stayed_s)
            or made <= self._policy.idle_first_collectives
        )

    def ranks(self, alive: Iterable[RankFacts]) -> set[int]:
        """Those of `alive` that are idle themselves, or wait only for an idle rank."""
        found = {rank.rank for rank in alive if self._by_itself(rank)}
        blames = self._snapshot.blames
        if all(self.gives_orders(blame) for blame in blames):
            found |= {blame.root for blame in blames} | waiters_of(blames)
        return found

    def _by_itself(self, rank: RankFacts) -> bool:
        word = classify(rank, self._policy).word
        if word == "debugger":
            return True
        if rank.reported.phase == "leaving" or (
            rank.reported.place is not None and rank.reported.place.waits_for is not None
        ):
            return False
        if word in PROMPTS and not runs_own_code(rank):
            # An interpreter at its prompt, or a kernel between two cells. Earlier training does not
            # matter.
            return True
        if counts_steps(rank):
            return False
        anybody = any(call.name in RECEIVES and call.peer is None for call in rank.comm.open_calls)
        return anybody or word in OUTSIDE or polls(rank, self._policy)


def _is_for_orders(wait: PeerWait) -> bool:
    """Whether this wait may be a wait for orders of a master."""
    return wait.call in RECEIVES or (wait.by_stack and is_from_root(wait.call))


def runs_own_code(rank: RankFacts) -> bool:
    """Whether its main thread's stack has a frame of the program."""
    place = rank.reported.place
    return (
        place is not None
        and owner_of(StackFrame(place.function, place.file, place.line)) is Owner.USER
    )
