"""Whether the whole job makes no progress, since when, and with what severity."""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.diagnosis.activity import classify
from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING
from ddtop.diagnosis.idle import OUTSIDE, counts_steps, polls, runs_own_code
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.model.waits.align import tells_nothing
from ddtop.policy import Policy
from ddtop.wire.calls import WAITING_CALLS

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
        return all(one == stance for one in self.stances.values())

    def any_is(self, stance: str) -> bool:
        return stance in self.stances.values()


def standstill_of(snapshot: Snapshot, policy: Policy) -> Standstill | None:
    """None while a rank makes progress, and where too little is known of some rank."""
    there = [rank for rank in snapshot.ranks if not rank.gone]
    alive = tuple([rank for rank in there if rank.hello is not None])
    unseen = tuple([rank.rank for rank in there if rank.hello is None])
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
        since = _since_of_start(alive, policy)
    if since is None:
        return None
    quiet_s = (snapshot.time_unix_ns - since) / 1e9
    # A rank that has left its groups waits for those that still have work.
    active = tuple([rank for rank in alive if rank.reported.phase != "leaving"]) or alive
    stances = {rank.rank: _progress_kind(rank, quiet_s, policy) for rank in active}
    if STILL in stances.values():
        # A rank that waits for its GPU spins, and its GPU may wait for a rank without progress.
        gpu = [rank.rank for rank in active if classify(rank, policy).word == "cuda-sync"]
        stances |= {number: STILL for number in gpu if stances[number] == SPINS}
    return Standstill(alive, active, stances, since, quiet_s, unseen)


def _since_of_start(alive: tuple[RankFacts, ...], policy: Policy) -> int | None:
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
    meets = joined and all(word_of(rank, policy) in COMMUNICATES for rank in alive)
    return max(place.since_unix_ns or 0 for place in places) or None if locked or meets else None


def word_of(rank: RankFacts, policy: Policy) -> str:
    """The activity of the rank; communication for a call whose other side is not known."""
    if any(call.name in WAITING_CALLS for call in rank.comm.open_calls):
        return "collective"
    place = rank.reported.place
    return "p2p" if place is not None and place.waits_on == "p2p" else classify(rank, policy).word


def _progress_kind(rank: RankFacts, quiet_s: float, policy: Policy) -> str:
    if rank.gpu.waits:
        return STILL
    if rank.gpu.computes:
        return WORKS
    if rank.process.working is False:
        return STILL
    # It has been at one line all the time: a long call into C, or a library that spins while it
    # waits.
    same_line = (rank.reported.line_age_s or 0.0) >= max(
        policy.same_line_s, policy.same_line_quiet_ratio * quiet_s
    )
    return SPINS if same_line or rank.process.working is None else WORKS


def severity_of(snapshot: Snapshot, still: Standstill, policy: Policy) -> str | None:
    """None: too early for a finding."""
    usual_s = _usual_s(snapshot, still, policy)
    warning_s = max(policy.no_progress_s, usual_s)
    critical_s = max(policy.no_progress_critical_s, policy.no_progress_habit_factor * usual_s)
    patient_s = max(policy.no_progress_patient_s, critical_s)
    if not still.any_is(STILL):
        # The ranks work, or their wait looks like work.
        return None if still.quiet_s < patient_s else WARNING if still.all_are(SPINS) else INFO
    words = {word_of(rank, policy) for rank in still.active}
    if not still.all_are(STILL) or words & _PHASES:
        warning_s, critical_s = critical_s, patient_s
    elif not _needs_nobody(still, words, policy):
        critical_s = patient_s
    if "loader" in words or any(rank.process.stalled_since_unix_ns for rank in still.active):
        # After that time the rules for loaders and disks apply.
        warning_s = max(warning_s, policy.stall_alone_limit_s)
    if still.quiet_s < warning_s:
        return None
    own_code = any(runs_own_code(rank) for rank in still.active) or words <= COMMUNICATES
    certain = own_code and not still.unseen
    return CRITICAL if still.quiet_s >= critical_s and certain else WARNING


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
        policy.no_progress_step_factor * steps_s,
        policy.no_progress_habit_factor * habit_s,
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
    elsewhere = [rank for rank in still.active if word_of(rank, policy) not in COMMUNICATES]
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
    return (word_of(rank, policy) in OUTSIDE - {"stdin"} and not opens) or polls(rank, policy)
