"""Whether the whole job makes no progress, since when, and with what severity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Patience
from ddtop.model.account import does
from ddtop.model.chain import chain_of, closes_circle
from ddtop.model.facts import Blame, PeerWait, RankFacts, Snapshot, State, Wait
from ddtop.model.stacks import is_own
from ddtop.model.wait_graph import tells_nothing, waiters_of
from ddtop.policy import Limits, Policy
from ddtop.wire.names import ORDERS, RECEIVES, RESULTS, WAITING_CALLS, is_from_root
from ddtop.wire.records import ACTIVITIES, FILE_LOCK, KEY, LOCK, RETRY
from ddtop.words.sentences import COMPUTES


@dataclass(frozen=True)
class StandstillLimits(Limits, of="standstill"):
    """From when a job without progress has a problem, and which ranks are only idle."""

    no_progress_step_factor: float = 10.0
    """A job without progress has a problem after this many of the longest usual steps, at least
    after `no_progress_s`."""
    no_progress_habit_factor: float = 1.5
    """... or this many times the second longest pause that has ended. What has happened twice is
    usual, such as a validation. Critical at the earliest at this many times the warning's limit."""
    no_progress_critical_s: float = 60.0
    """... and critical from here on where no rank makes progress."""
    poll_sleep_s: float = 60.0
    """A thread polls whose sleep ends within this time, or that wakes so often
    (`poll_wakes_per_s`). A master looks for work at least
    once a minute; a thread that looks for nothing sleeps for an hour, or for ever."""
    idle_habit_s: float = 2.0
    """Workers that have twice waited this long for orders are a task farm. The broadcast of a
    simulation, or of a training that gets its samples from a server, takes milliseconds."""
    idle_stay_factor: float = 5.0
    """... or workers of a rank that asks for work, up to this many times its longest stay at the
    same line so far, if that was as long. Work comes when it comes."""
    idle_first_collectives: int = 16
    """... or workers that have made no more collectives: the first order may take long to come. A
    training has made more after a few steps."""
    turns_ratio: float = 0.8
    """Ranks that count steps may be in an endless loop if they were in one function of the program,
    and in no library, for this share of the last half minute. That is a warning after
    `no_progress_critical_s`."""
    same_line_quiet_ratio: float = 0.8
    """A main thread spins that is at one line for this share of the time without progress, at least
    for `same_line_s`."""


# -- Which ranks wait for work from outside: a prompt, a request loop, a master without orders, and
#    the ranks that wait for it
#
# Such waits have no normal length, so they are not a fault, however long they last. A rank that
# counts training steps is never idle: its next step is its work.


RHYTHM = "collectives"
"""`RankFacts.iteration_source` if a repeated pattern of MPI calls was counted. The orders in a task
farm are such a pattern too.
"""
REQUESTS = frozenset({"stdin", "socket", "queue"})
"""Words of `activity_text` for waits in which the next request may come."""
PROMPTS = frozenset({"stdin", "socket"})
"""Words of `activity_text` for an interpreter at its prompt; the event loop of a notebook kernel
reads a socket.
"""
OUTSIDE = REQUESTS | {"pipe", "rpc"}
_OF_PROGRAM = frozenset({KEY, LOCK, FILE_LOCK, RETRY})
"""What another rank, thread or process of the program has to give, or to repair: no request comes
there."""
_POLLING = frozenset({"sleep", "lock", "python", "unknown"})
"""Words of `activity_text` for a loop that polls. If a sample finds its thread awake, the word says
nothing.
"""


def counts_steps(rank: RankFacts) -> bool:
    """Whether the program counts steps on this rank: an optimizer's, batches of a DataLoader, or
    `ddtop.step`.
    """
    return rank.progress.iteration is not None and rank.progress.iteration_source != RHYTHM


def sleep_left_s(rank: RankFacts) -> float | None:
    """How long its sleep still lasted at its last report; None if it is in no sleep, or if the end
    is not known.
    """
    until = rank.progress.sleeps_until_unix_ns
    return None if until is None else (until - (rank.agent.heard_unix_ns or 0)) / 1e9


def polls(rank: RankFacts, policy: Policy) -> bool:
    """Whether it sleeps and wakes up again and again, or soon, like a loop that polls for work."""
    wakes, left_s = rank.process.wakes_per_s or 0.0, sleep_left_s(rank)
    soon = left_s is not None and left_s <= policy.of(StandstillLimits).poll_sleep_s
    return (
        rank.process.working is False
        and (wakes >= policy.poll_wakes_per_s or soon)
        and does(rank).word in _POLLING
    )


def pauses(rank: RankFacts, blame: Blame, policy: Policy) -> bool:
    """Whether it is in one sleep that ends soon. Ranks that load one after the other do that, and
    those that try again after an error.
    """
    soon = 0 < (sleep_left_s(rank) or 0.0) <= policy.working_critical_s
    # The next sleep of a loop that polls ends soon too.
    slept_ns = (rank.progress.sleeps_since_unix_ns or 0) - blame.since_unix_ns
    return soon and slept_ns <= policy.still_limit_s * 1e9


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
        makes orders. Then no rank is at fault.

        All ranks that wait for it, or for one of those ranks, must wait for orders: in a recv, or
        in a broadcast in which they receive. A rank that sends, or that waits in an all_reduce of
        its training, has work, and the blamed rank has not come to it.
        """
        root = self._snapshot.rank(blame.root)
        if counts_steps(root) or _is_of_program(root) or not self._all_take(blame):
            return False
        word, asks = does(root).word, polls(root, self._policy)
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
        collectives = self._snapshot.rank(wait.rank).comm.open_collectives
        return all(
            collective.root != wait.rank
            for collective in collectives
            if collective.group == wait.group
        )

    def _is_normal_wait(self, blame: Blame) -> bool:
        """Whether workers wait so for orders: they have waited long before, at least twice, or that
        rank has stood there for long before, or they have hardly begun.

        A training in which each step begins with a broadcast looks the same at the moment when what
        its first rank asks for does not come. But it has made many such steps, all without a wait.
        """
        waiters = [self._snapshot.rank(rank).comm for rank in blame.waiters]
        usual_ms = max((comm.usual_wait_ms or 0.0 for comm in waiters), default=0.0)
        enqueued_most = max(
            (group.enqueued for comm in waiters for group in comm.groups), default=0
        )
        stayed_s = self._snapshot.rank(blame.root).progress.stayed_s or 0.0
        waited_s = (self._snapshot.time_unix_ns - blame.since_unix_ns) / 1e9
        limits = self._policy.of(StandstillLimits)
        again = stayed_s >= limits.idle_habit_s
        return (
            usual_ms >= 1000 * limits.idle_habit_s
            or (again and waited_s < limits.idle_stay_factor * stayed_s)
            or enqueued_most <= limits.idle_first_collectives
        )

    def ranks(self, alive: Iterable[RankFacts]) -> set[int]:
        """Those of `alive` that are idle themselves, or wait only for an idle rank."""
        found = {rank.rank for rank in alive if self._by_itself(rank)}
        blames = self._snapshot.blames
        if all(self.gives_orders(blame) for blame in blames):
            found |= {blame.root for blame in blames} | waiters_of(blames)
        return found

    def _by_itself(self, rank: RankFacts) -> bool:
        word = does(rank).word
        if word == "debugger":
            return True
        if _is_of_program(rank):
            return False
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


def _is_of_program(rank: RankFacts) -> bool:
    """Whether it waits for something that the program itself has to give."""
    return any(link.resource in _OF_PROGRAM for link in chain_of(rank)[:1])


def _is_for_orders(wait: PeerWait) -> bool:
    """Whether this wait may be a wait for orders of a master."""
    return wait.call in RECEIVES or (wait.by_stack and is_from_root(wait.call))


def runs_own_code(rank: RankFacts) -> bool:
    """Whether its main thread's stack has a frame of the program."""
    return is_own(rank.reported.place)


# -- Whether the whole job makes no progress, and since when


_PHASES = frozenset({"compile", "checkpoint-save", "checkpoint-load", "import", "gc"})
COMMUNICATES = frozenset({"collective", "p2p"})
WORKS, SPINS, STILL = "works", "spins", "still"


@dataclass(frozen=True, slots=True)
class Standstill:
    """A job without progress.

    `alive`: the ranks whose processes live. `active`: those that have not finished, or all.
    `stances`: works, spins or still, for each active rank. `since_unix_ns`: the last progress.
    `unseen`: the ranks without a process on the hosts that are read from outside.
    """

    alive: tuple[RankFacts, ...]
    active: tuple[RankFacts, ...]
    stances: dict[int, str]
    since_unix_ns: int
    quiet_s: float
    unseen: tuple[int, ...] = ()

    def all_are(self, stance: str) -> bool:
        return all(value == stance for value in self.stances.values())

    def any_is(self, stance: str) -> bool:
        return stance in self.stances.values()


def standstill_of(snapshot: Snapshot, policy: Policy) -> Standstill | None:
    """None while a rank makes progress, and where too little is known of some rank."""
    ranks = [rank for rank in snapshot.ranks if not rank.gone]
    alive = tuple([rank for rank in ranks if rank.hello is not None])
    unseen = tuple([rank.rank for rank in ranks if rank.hello is None])
    if snapshot.ended is not None or snapshot.moving or not alive:
        return None
    if unseen and not any(rank.comm.outside is not None for rank in alive):
        # Their agents may still come.
        return None
    if any(rank.agent.unheard or rank.state is State.STOPPED for rank in alive):
        return None
    if all(tells_nothing(rank) and not counts_steps(rank) for rank in alive):
        return None
    since = snapshot.still_since_unix_ns
    if since is None or any(rank.state in (State.STARTING, State.JOINING) for rank in alive):
        since = _since_of_start(alive)
    if since is None:
        return None
    quiet_s = (snapshot.time_unix_ns - since) / 1e9
    # A rank that has left its groups waits for those that still have work.
    active = tuple([rank for rank in alive if rank.reported.phase != "leaving"]) or alive
    stances = {rank.rank: _progress_kind(rank, quiet_s, policy) for rank in active}
    if STILL in stances.values():
        # A rank that waits for its GPU spins, and its GPU may wait for a rank without progress.
        gpu = [rank.rank for rank in active if does(rank).word == "cuda-sync"]
        stances |= {number: STILL for number in gpu if stances[number] == SPINS}
    return Standstill(alive, active, stances, since, quiet_s, unseen)


def _since_of_start(alive: tuple[RankFacts, ...]) -> int | None:
    """Since when a start hangs; None if it may only be slow.

    It hangs if all ranks are blocked in a named lock, or all in communication.
    """
    places = [
        rank.reported.place
        for rank in alive
        if rank.reported.place is not None and rank.process.working is False
    ]
    if len(places) < len(alive):
        return None
    locked = all(place.waits_for is not None for place in places)
    joined = all(rank.state not in (State.STARTING, State.JOINING) for rank in alive)
    meets = joined and all(word_of(rank) in COMMUNICATES for rank in alive)
    return max(place.since_unix_ns or 0 for place in places) or None if locked or meets else None


def word_of(rank: RankFacts) -> str:
    """The activity of the rank; communication for a call whose other side is not known."""
    if any(call.name in WAITING_CALLS for call in rank.comm.open_calls):
        return "collective"
    return "p2p" if rank.reported.waits_on == "p2p" else does(rank).word


def is_in_pool(rank: RankFacts) -> bool:
    """Whether it waits for its next task, or for the results of those that have tasks."""
    return rank.reported.waits_on in (ORDERS, RESULTS)


def _progress_kind(rank: RankFacts, quiet_s: float, policy: Policy) -> str:
    if rank.gpu.waits or is_in_pool(rank):
        return STILL
    if rank.gpu.computes:
        return WORKS
    if rank.process.working is False:
        return STILL
    # It has been at one line all the time: a long call into C, or a library that spins while it
    # waits.
    same_line = (rank.reported.line_age_s or 0.0) >= max(
        policy.same_line_s, policy.of(StandstillLimits).same_line_quiet_ratio * quiet_s
    )
    return SPINS if same_line or rank.process.working is None else WORKS


def severity_of(
    snapshot: Snapshot, still: Standstill, policy: Policy
) -> tuple[str | None, Patience]:
    """The severity, None if it is too early for a finding; and how long it stays a warning."""
    usual_s, limits = _usual_s(snapshot, still, policy), policy.of(StandstillLimits)
    warning_s = max(policy.no_progress_s, usual_s)
    critical_s = max(limits.no_progress_critical_s, limits.no_progress_habit_factor * usual_s)
    patient_s = max(policy.no_progress_patient_s, critical_s)
    busy = {still.stances[rank.rank] for rank in still.active if not is_in_pool(rank)}
    if STILL not in busy and (WORKS in busy or not still.any_is(STILL)):
        # The ranks work, or their wait looks like work.
        turns = counts_steps(still.active[0]) and all(_turns(rank, limits) for rank in still.active)
        severity = INFO if WORKS in busy and not turns else WARNING
        from_s = critical_s if turns else patient_s
        return severity if still.quiet_s >= from_s else None, Patience(inf, "it may work")
    words, because = {word_of(rank) for rank in still.active}, "such a pause may be usual"
    if not still.all_are(STILL) or words & _PHASES:
        warning_s, critical_s, because = critical_s, patient_s, "some of its ranks may work"
    elif not _needs_nobody(still, words, policy):
        critical_s, because = patient_s, "what it asks may still answer"
    if any(map(closes_circle, still.active)):
        critical_s, because = warning_s, "nobody ends a circle"
    if "loader" in words or any(rank.process.stalled_since_unix_ns for rank in still.active):
        # After that time the rules for loaders and disks apply.
        warning_s = max(warning_s, policy.stall_alone_limit_s)
    if not any(runs_own_code(rank) for rank in still.active) and not words <= COMMUNICATES:
        critical_s, because = inf, "no rank is in code of the program"
    elif still.unseen:
        critical_s, because = inf, "some ranks were not seen"
    patience = Patience(critical_s, because)
    if still.quiet_s < warning_s:
        return None, patience
    return CRITICAL if still.quiet_s >= critical_s else WARNING, patience


def _turns(rank: RankFacts, limits: StandstillLimits) -> bool:
    """Whether it was in one function of the program nearly all the last half minute, and in no
    library: a loop whose end does not come, or one that has never been so long."""
    reported, functions = rank.reported, Counter[str]()
    for spot in reported.spots:
        functions[spot.function] += spot.samples if spot.waits_on is None else 0
    most = max(functions.values(), default=0)
    other = ACTIVITIES.index("other")
    alone = reported.activity_ratios[other : other + 1] == (1.0,)
    return alone and most >= limits.turns_ratio * max(reported.spots_samples, 1)


_TRAINING = tuple(map(ACTIVITIES.index, ("loader", *COMPUTES)))


def stepless_since(snapshot: Snapshot, policy: Policy) -> int | None:
    """Since when ranks that go on have made no step, and no sample of the last seconds has found
    one in its model, its optimizer or its DataLoader; None if that is not so, or not for long."""
    limits = policy.of(StandstillLimits)
    living = [rank for rank in snapshot.ranks if not rank.gone]
    ends = [rank.progress.step_unix_ns for rank in living if counts_steps(rank)]
    known = [at for at in ends if at is not None]
    if not snapshot.moving or len(known) < len(living):
        return None
    step_s = max((rank.progress.step_ms or 0.0 for rank in living), default=0.0) / 1000
    least_s = max(limits.no_progress_critical_s, limits.no_progress_step_factor * step_s)
    long = snapshot.time_unix_ns - max(known) >= least_s * 1e9
    return max(known) if long and not any(map(_trains, living)) else None


def _trains(rank: RankFacts) -> bool:
    """Whether samples found it in training, or there were none."""
    ratios = rank.reported.activity_ratios
    return not ratios or any(ratios[at] for at in _TRAINING)


def _usual_s(snapshot: Snapshot, still: Standstill, policy: Policy) -> float:
    """The usual longest pause of this job, or ten of its steps."""
    steps_s = max((rank.progress.step_ms or 0.0 for rank in still.active), default=0.0) / 1000
    # The pause of the whole job is at most that of the rank with the shortest pauses.
    habit_s = min((rank.progress.usual_pause_s or 0.0 for rank in still.active), default=0.0)
    waits_s = (
        max(
            (snapshot.rank(wait.rank).comm.healthy_wait_max_ms or 0.0 for wait in snapshot.waits),
            default=0.0,
        )
        / 1000
    )
    return max(
        policy.of(StandstillLimits).no_progress_step_factor * steps_s,
        policy.of(StandstillLimits).no_progress_habit_factor * habit_s,
        policy.healthy_wait_factor * waits_s,
    )


def _needs_nobody(still: Standstill, words: set[str], policy: Policy) -> bool:
    """Whether the job waits for nothing outside. `words`: the activities of all ranks."""
    if all(rank.reported.phase == "leaving" for rank in still.active):
        return False
    if all(
        rank.reported.place is not None and rank.reported.place.waits_for is not None
        for rank in still.active
    ):
        return True
    elsewhere = [rank for rank in still.active if word_of(rank) not in COMMUNICATES]
    if not elsewhere:
        return True
    if not any(rank.progress.iteration is not None for rank in still.active):
        # Without steps it may be a server, whose main thread sleeps too.
        return words <= COMMUNICATES | {"file"}
    return not all(_asks_outside(rank, policy) for rank in elsewhere)


def _asks_outside(rank: RankFacts, policy: Policy) -> bool:
    """Whether it waits for an answer of a server or another process. A process that opens a named
    pipe has no peer yet.
    """
    opens = rank.process.report is not None and rank.process.report.syscall in ("open", "openat")
    return (word_of(rank) in OUTSIDE - {"stdin"} and not opens) or polls(rank, policy)
