"""Whether a rank for which others wait is at fault, of which kind that is, and for how long they
may wait before it is critical, and why.

One table. Each row that holds gives a time, and the longest counts: no reason to wait takes back
another one. The timeout of the group caps it. A special case is a row of `ROWS`; its `because` is
what a user reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.finding import Patience
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.shortage import timeout_s
from ddtop.diagnosis.standstill import (
    OUTSIDE,
    REQUESTS,
    Idle,
    counts_steps,
    pauses,
    sleep_left_s,
)
from ddtop.diagnosis.waiters import makes_by_hand
from ddtop.model.account import NOTHING, SHORT_SLEEPS, does, wakes_often
from ddtop.model.chain import awaited_rank, chain_of
from ddtop.model.facts import Blame, RankFacts, Snapshot
from ddtop.model.peer_waits import ANSWERS, ASKED, RPC_CALL
from ddtop.model.wait_graph import GONE, LOST, STILL, STOPPED, UNKNOWN, WORKING, waiters_of
from ddtop.policy import Limits, Policy, Waits
from ddtop.wire.names import FINALIZE
from ddtop.wire.records import (
    CHANGES,
    CHECKPOINT,
    CHILD,
    COMPILE,
    ENDLESS,
    LOOP,
    RETRY,
    SANITY_CHECK,
    TEST,
    TIMED,
    VALIDATE,
    Link,
    TrainingProgress,
)
from ddtop.words.sentences import COLLECTIVE


@dataclass(frozen=True)
class NotInCollective(Waits, of=Kind.NOT_IN_COLLECTIVE):
    """`not-in-collective`. A rank is blamed after its own limit, so `wait_s` can only be longer."""

    working_critical_factor: float = 5.0
    """A rank that works while others wait is a warning until `working_critical_s`, or this many
    times the longest healthy wait, whichever is later."""
    transfer_critical_s: float = 300.0
    """... or this, while it transfers data or lacks CPU time. A minute is short then."""
    still_habit_factor: float = 1.5
    """A rank without progress is a warning up to this many times the second longest healthy wait.
    If each round waits for rollouts or for a server, the next such wait is normal. A single long
    wait, at the start or because of a broken network, is not a pattern."""
    dry_before_progress_s: float = 2.0
    """A rank whose loader was exhausted longer than this before its last progress stopped later."""
    new_place_s: float = 15.0
    """A rank that polls is a warning until then where it has never stood before, if all others
    wait. A healthy rank that lets them wait has stood there before: at each epoch, in each
    round."""
    new_place_calls: int = 16
    """... once it has made this many collectives, or counts steps. Before that each place is
    new."""
    moved_s: float = 3.0
    """A rank that reached its line less than this long ago is a warning."""
    child_pause_s: float = 10.0
    """So is a rank whose child has read or written something within this time."""
    last_report_s: float = 2.0
    """A rank on its way out is not judged before its last report, which says what it did last."""


@dataclass(frozen=True)
class PhaseLimits(Limits, of="phase"):
    """How long a checkpoint, a validation or a compilation may last."""

    overdue_factor: float = 3.0
    """A rank that saves a checkpoint, validates or compiles and works is a warning up to this many
    times the longest such phase so far. A checkpoint of twice the usual length is a busy server."""
    still_limit_s: float = 20.0
    """A rank in such a phase that uses no CPU and does no I/O is a warning until then. An upload
    to an object store waits for its answer this long."""
    usual_factor: float = 1.2
    """... or this many times the longest such phase so far, whichever is later: it may have been
    waiting for the store each time."""


_ENDLESS = float("inf")


class Habits(NamedTuple):
    """Of those that wait: their longest waits that ended well, and the timeout of their call; s."""

    usual_s: float
    healthy_s: float
    timeout_s: float | None


class Case(NamedTuple):
    """A rank for which others wait. `kind`: that of the finding about it. `all_wait`: all other
    ranks wait, or are at fault too."""

    snapshot: Snapshot
    blame: Blame
    kind: Kind
    habits: Habits
    policy: Policy
    all_wait: bool = False

    @property
    def rank(self) -> RankFacts:
        """The rank."""
        return self.snapshot.rank(self.blame.root)

    @property
    def limits(self) -> NotInCollective:
        """The limits of this table."""
        return self.policy.of(NotInCollective)

    @property
    def polls(self) -> bool:
        """Whether it may work a little between its sleeps."""
        return self.kind == Kind.NOT_IN_COLLECTIVE and polls_or_works(self.rank)

    @property
    def new_place(self) -> bool:
        """Whether it has come to a loop in which it has never stood while others waited, and all
        wait. Where no loop is known, or one that goes on, it may make one request after the other.
        """
        if not any(_stands(link) for link in chain_of(self.rank)[-1:]):
            return False
        progress = self.rank.progress
        calls = sum(group.enqueued for group in self.rank.comm.groups)
        begun = progress.iteration is not None or calls >= self.limits.new_place_calls
        new = progress.stayed_s is None or any(map(_has_failed, chain_of(self.rank)[-1:]))
        return self.all_wait and begun and new and not self.rank.from_outside

    def goes_on(self) -> bool:
        """Whether the rank is not at rest."""
        return any(row.holds(self) for row in GOES_ON)


def _working_s(case: Case) -> float:
    longest_s = case.limits.working_critical_factor * case.habits.healthy_s
    return max(case.policy.working_critical_s, longest_s)


def _finishes(case: Case) -> bool:
    """Whether the others have finished and only this rank still has work, such as a child process
    that packs the results."""
    last = case.blame.peer_wait is not None and case.blame.peer_wait.call == FINALIZE
    return last and does(case.rank).word in ("child", "sleep")


def _asks_others(case: Case) -> bool:
    """Whether others wait for its answer, and it waits for another process. Such a wait has no
    usual length, if there is that process."""
    nobody = any(link.nobody for link in chain_of(case.rank)[-1:])
    return _answers(case.blame) and does(case.rank).word in OUTSIDE and not nobody


def _may_serve(case: Case) -> bool:
    """Whether another thread of it may serve those that wait: its main thread may only wait for
    the end."""
    asked = case.blame.peer_wait is not None and case.blame.peer_wait.call == ASKED
    return asked and does(case.rank).word in ("lock", "queue")


def _answers(blame: Blame) -> bool:
    """Whether others wait for its answer to something that is no call of a group."""
    calls = (RPC_CALL, *ANSWERS.values())
    return blame.peer_wait is not None and blame.peer_wait.call in calls


def _sleep_ends(case: Case) -> bool:
    """Whether it is in a sleep that ends soon. The next one may be a step of its work."""
    return 0 < (sleep_left_s(case.rank) or 0.0) <= case.policy.working_critical_s


def _goes_on(case: Case) -> bool:
    """Whether a value has changed for which its loop asks, or another thread has the lock now, or
    the child for which it waits has read or written something."""
    report = case.rank.process.report
    moved = report.child_moved_unix_ns if report is not None else None
    recent = moved is not None and _ago_s(case, moved) <= case.limits.child_pause_s
    return recent or any(link.does.endswith(CHANGES) for link in chain_of(case.rank))


def _has_moved(case: Case) -> bool:
    """Whether it reached its line a moment ago, in the program's own code."""
    place = case.rank.reported.place
    since = place.line_since_unix_ns if place is not None and not place.waits_on else None
    return since is not None and _ago_s(case, since) <= case.limits.moved_s


def _ago_s(case: Case, unix_ns: int) -> float:
    return (case.snapshot.time_unix_ns - unix_ns) / 1e9


def _stands(link: Link) -> bool:
    """Whether this is a wait in which nothing goes on. Of a loop that needs the values of its
    condition, or a file for which it asks, or that nothing ends it. What is tried again may work
    the next time."""
    if link.resource == RETRY or link.does.endswith((TIMED, CHANGES)):
        return False
    asks = bool(link.does) or "exists(" in link.named or link.named == ENDLESS
    return link.resource != LOOP or asks


def _has_failed(link: Link) -> bool:
    """Whether this is a child that an error or a signal has ended."""
    return link.resource == CHILD and bool(link.does) and link.does != "exit code 0"


def _has_limit(case: Case) -> bool:
    """Whether the await at which its event loop stands, or the loop in which it polls, ends by
    itself."""
    return any(link.does.endswith(TIMED) for link in chain_of(case.rank)[-1:])


class Row(NamedTuple):
    """A reason to wait. `holds`: whether there is this reason. `seconds`: how long the wait may
    last, s."""

    because: str
    holds: Callable[[Case], bool]
    seconds: Callable[[Case], float]


UNSURE = (
    Row(
        "another rank may be meant",
        lambda case: case.blame.peer_wait is not None and case.blame.peer_wait.likely,
        lambda _: _ENDLESS,
    ),
    Row(
        "nobody would have seen an exception",
        lambda case: may_have_raised(case.rank),
        lambda _: _ENDLESS,
    ),
    Row(
        "nobody knows which member of that group is missing",
        lambda case: makes_by_hand(case.rank),
        lambda _: _ENDLESS,
    ),
)
"""It stays a warning, whatever else holds."""
GOES_ON = (
    Row("its sleep ends", lambda case: _sleep_ends(case) and not case.new_place, _working_s),
    Row("what it waits for goes on", _goes_on, _working_s),
    Row("it reached this line a moment ago", _has_moved, _working_s),
    Row(
        "it polls, or works in short steps",
        lambda case: case.polls and not case.new_place,
        _working_s,
    ),
    Row(
        "it polls where it has never stood before",
        lambda case: (case.polls or _sleep_ends(case)) and case.new_place,
        lambda case: case.limits.new_place_s,
    ),
    Row("its wait has a time limit", _has_limit, _working_s),
    Row("its child may work", _finishes, _working_s),
    Row("it waits for another process in turn", _asks_others, _working_s),
    Row("another of its threads may answer", _may_serve, _working_s),
    Row("it may work", lambda case: case.blame.condition == UNKNOWN, _working_s),
    Row("it works", lambda case: case.blame.condition == WORKING, _working_s),
)
ROWS = (
    Row(
        "such a wait is usual",
        lambda _: True,
        lambda case: case.limits.still_habit_factor * case.habits.usual_s,
    ),
    *GOES_ON,
    Row(
        "it transfers data",
        lambda case: case.rank.process.transfers and case.goes_on(),
        lambda case: case.limits.transfer_critical_s,
    ),
    Row(
        "it lacks CPU time",
        lambda case: case.rank.process.lacks_cpu and case.goes_on(),
        lambda case: case.limits.transfer_critical_s,
    ),
    Row(
        "of its phase",
        lambda case: phase_of(case.rank) is not None,
        lambda case: phase_patience_s(case.rank, case.goes_on(), case.policy),
    ),
)
NO_REASON = "nothing explains a longer wait"
OF_TIMEOUT, HAS_LEFT = "of the timeout of that call", "it has left"


def _patience(case: Case) -> Patience:
    for row in UNSURE:
        if row.holds(case):
            return Patience(row.seconds(case), row.because)
    if case.kind == Kind.LEFT_EARLY and not case.goes_on():
        # A rank that has left its loop does not return.
        return Patience(0.0, HAS_LEFT)
    found = [Patience(row.seconds(case), row.because) for row in ROWS if row.holds(case)]
    longest, policy = max(found, key=lambda patience: patience.seconds), case.policy
    if not longest.seconds:
        longest = Patience(0.0, NO_REASON)
    given_s = case.habits.timeout_s
    if given_s is None:
        return longest
    capped_s = max(policy.still_limit_s, policy.timeout_critical_ratio * given_s)
    return Patience(capped_s, OF_TIMEOUT) if capped_s < longest.seconds else longest


class Blamed:
    """The blamed ranks of one snapshot. Facts that many of them share are computed once: thousands
    of ranks may be blamed by the same thousands of ranks.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._idle = Idle(snapshot, policy)
        self.least_s = policy.of(NotInCollective).wait_s or 0.0
        """Others wait at least this long before `not-in-collective`."""
        alive = sum(1 for rank in snapshot.ranks if not rank.gone)
        self._roots = {blame.root for blame in snapshot.blames}
        waiting = waiters_of(snapshot.blames) | self._roots
        self._all_wait = len(waiting) >= alive
        self._by_hand = {group.name for group in snapshot.groups if group.size}
        self._habits: dict[tuple[int, str | None], Habits] = {}

    def at_fault(self, blame: Blame) -> bool:
        """Whether this rank holds up the others and should not. Ranks that have ended or stopped,
        and those of lost hosts, have rules of their own."""
        rank, policy = self._snapshot.rank(blame.root), self._policy
        still = blame.condition == STILL
        return not (
            not blame.due
            or blame.condition in (GONE, STOPPED, LOST)
            # Nothing is known about a rank that has never reported.
            or rank.hello is None
            or self._idle.gives_orders(blame)
            or _only_serves(rank, blame)
            or self._waits_for_blamed(rank, blame)
            # The wait for an answer has no usual length, and this sleep ends by itself.
            or (_answers(blame) and pauses(rank, blame, policy))
            # Waiting for a rollout has no usual length, so it is not a fault.
            or (blame.group in self._by_hand and not still)
            or _just_left(rank, policy)
            or (still and _just_joins(rank, policy))
        )

    def _waits_for_blamed(self, rank: RankFacts, blame: Blame) -> bool:
        """Whether it waits, in no call of a group, for another rank for which others wait too."""
        awaited = awaited_rank(self._snapshot, rank)
        return (
            awaited is not None
            and awaited.rank in self._roots
            and awaited.rank not in blame.waiters
        )

    def patience(self, blame: Blame, kind: Kind) -> Patience:
        """How long the wait for it may last before it is critical."""
        key = (id(blame.waiters), blame.group)
        habits = self._habits.get(key)
        if habits is None:
            habits = self._habits[key] = _habits(self._snapshot, blame)
        case = Case(self._snapshot, blame, kind, habits, self._policy, self._all_wait)
        return _patience(case)


def _only_serves(rank: RankFacts, blame: Blame) -> bool:
    """Whether it may be a server: its main thread waits for requests, or for the end while others
    of its threads answer."""
    call = blame.peer_wait.call if blame.peer_wait is not None else None
    parks = REQUESTS | {"lock"} if call == ASKED else REQUESTS
    return call in ANSWERS.values() and does(rank).word in parks and not counts_steps(rank)


def _habits(snapshot: Snapshot, blame: Blame) -> Habits:
    waiters = [snapshot.rank(rank).comm for rank in blame.waiters]
    return Habits(
        max((comm.usual_wait_ms or 0.0 for comm in waiters), default=0.0) / 1000,
        max((comm.healthy_wait_max_ms or 0.0 for comm in waiters), default=0.0) / 1000,
        timeout_s(snapshot, blame),
    )


def polls_or_works(rank: RankFacts) -> bool:
    """Whether it may work a little between its sleeps, or has just woken from one. A rank that
    handles an exception only tries again."""
    seen, process = does(rank), rank.process
    awake = process.report is not None and process.report.state == "R" and seen.source == NOTHING
    again = seen == SHORT_SLEEPS or (awake and wakes_often(rank))
    return again and rank.reported.handling is None


def may_have_raised(rank: RankFacts) -> bool:
    """Whether it is at the end of its program and nobody would have seen an exception: it has no
    agent."""
    leaves = rank.reported.phase == "leaving" and new_program(rank) is None
    return leaves and rank.from_outside


def new_program(rank: RankFacts) -> str | None:
    """The program that has replaced the rank's by exec; None if there is none."""
    return rank.process.report.became if rank.process.report is not None else None


def _just_joins(rank: RankFacts, policy: Policy) -> bool:
    """Whether it has just entered a collective, and may not have enqueued it yet."""
    place, at_report_s = rank.reported.place, rank.reported.line_age_s
    if place is None or place.waits_on != COLLECTIVE.word or at_report_s is None:
        return False
    # A silent rank has been there for longer than its last report says.
    return at_report_s + (rank.agent.report_age_s or 0.0) < policy.same_line_s


def _just_left(rank: RankFacts, policy: Policy) -> bool:
    """Whether it is ending and its last report has not arrived yet."""
    exiting = rank.process.report is not None and rank.process.report.exiting
    return (
        exiting
        and rank.reported.phase != "leaving"
        and (rank.agent.report_age_s or 0.0) < policy.of(NotInCollective).last_report_s
    )


def has_fewer_batches(snapshot: Snapshot, rank: RankFacts, blame: Blame, policy: Policy) -> bool:
    """Whether its DataLoader is exhausted and has delivered fewer batches than that of a waiter."""
    return ran_dry(rank, [snapshot.rank(waiter) for waiter in blame.waiters], policy)


def ran_dry(rank: RankFacts, others: Sequence[RankFacts], policy: Policy) -> bool:
    """Whether its DataLoader is exhausted and has delivered fewer batches than those of others that
    are not."""
    loader = rank.loader.report
    if loader is None or loader.exhausted_unix_ns is None or not loader.exhausted:
        return False
    before_ns = int(policy.of(NotInCollective).dry_before_progress_s * 1e9)
    if (
        rank.progress.last_unix_ns is not None
        and loader.exhausted_unix_ns < rank.progress.last_unix_ns - before_ns
    ):
        return False
    ahead = [
        facts
        for facts in others
        if facts.loader.report is not None and facts.loader.report.exhausted < loader.exhausted
    ]
    return bool(ahead) and all(
        facts.loader.report is not None
        and rank.loader.report is not None
        and facts.loader.report.batches > rank.loader.report.batches
        for facts in ahead
    )


# -- How a rank's phase changes the time limits of those who wait for it: a checkpoint, a
#    validation or a compilation takes long


LONG_PHASES = (CHECKPOINT, VALIDATE, TEST, COMPILE, SANITY_CHECK)
"""Phases in which one rank may let the others wait. Names that the program has chosen do not
count."""


def phase_of(rank: RankFacts) -> TrainingProgress | None:
    """The progress of a rank that is in such a phase; None for all other ranks."""
    training = rank.progress.training
    if training is None or training.phase not in LONG_PHASES:
        return None
    if training.since_unix_ns is None or rank.gone:
        return None
    return training


def phase_patience_s(rank: RankFacts, works: bool, policy: Policy) -> float:
    """How long (s) the others may wait for a rank in a phase before the wait is critical; 0 if it
    is in none.

    `works`: it uses CPU or does I/O. If it works, the phase may last `overdue_factor` times its
    usual length. Otherwise it has less time, but at least the length of earlier phases.
    """
    training, limits = phase_of(rank), policy.of(PhaseLimits)
    if training is None:
        return 0.0
    longest_s = training.longest_s or 0.0
    if works:
        return limits.overdue_factor * longest_s
    return max(limits.still_limit_s, limits.usual_factor * longest_s)
