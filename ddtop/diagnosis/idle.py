"""Which ranks wait for work from outside: a prompt, a request loop, a master without orders, and
the ranks that wait for it.

Such waits have no normal length, so they are not a fault, however long they last. A rank that
counts training steps is never idle: its next step is its work.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.diagnosis.activity import classify
from ddtop.model.stacks.frames import Owner, owner_of
from ddtop.model.state.facts import Blame, PeerWait, RankFacts, Snapshot
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
    """Whether it sleeps and wakes up again and again, like a loop that polls for work."""
    wakes = rank.process.wakes_per_s or 0.0
    return (
        rank.process.working is False
        and wakes >= policy.poll_wakes_per_s
        and classify(rank, policy).word in _POLLING
    )


class Idle:
    """Finds the idle ranks of one snapshot. Facts that thousands of ranks share are computed
    once."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._single: dict[int, list[bool]] = {}
        for wait in snapshot.peer_waits:
            for rank in wait.behind:
                self._single.setdefault(rank, []).append(_is_for_orders(wait))

    def gives_orders(self, blame: Blame) -> bool:
        """Whether workers wait for orders, and the blamed rank waits for the input from which it
        makes orders.

        Then no rank is at fault. All waits for that rank must be waits for orders: a recv, or a
        broadcast. A rank that sends to it has work for it.
        """
        root = self._snapshot.rank(blame.root)
        if counts_steps(root):
            return False
        single = self._single.get(blame.root)
        orders = (
            all(single) if single else (blame.op or "").lower().startswith(("broadcast", "bcast"))
        )
        if not orders or (
            root.progress.iteration is not None and not self._is_normal_wait(blame, bool(single))
        ):
            return False
        return classify(root, self._policy).word in REQUESTS or polls(root, self._policy)

    def _is_normal_wait(self, blame: Blame, single: bool) -> bool:
        """Whether such waits are normal. The steps of a simulation may contain a broadcast too, but
        no such recv. A task farm has waited this long before, at least twice.
        """
        usual_ms = max(
            (self._snapshot.rank(rank).comm.usual_wait_ms or 0.0 for rank in blame.waiters),
            default=0.0,
        )
        return single or usual_ms >= 1000 * self._policy.idle_habit_s

    def ranks(self, alive: Iterable[RankFacts]) -> set[int]:
        """Those of `alive` that are idle themselves, or wait only for an idle rank."""
        found = {rank.rank for rank in alive if self._by_itself(rank)}
        roots = [blame for blame in self._snapshot.blames if self.gives_orders(blame)]
        blamed = {blame.root for blame in self._snapshot.blames}
        if blamed <= {blame.root for blame in roots} | found:
            found.update(blame.root for blame in roots)
            found.update(rank for blame in self._snapshot.blames for rank in blame.waiters)
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
