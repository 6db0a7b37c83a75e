"""`no-progress`: the job made steps, batches or collectives, makes none any more, and no other rule knows why.

The rule of last resort: it says where each rank is, and marks the ranks that are not where most are. A rule that knows more
replaces it. Where all ranks only wait for work from outside, the job is idle, and that is an info.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ddtop.diagnosis.activity import classify, fresh_stacks, stack_line, where
from ddtop.diagnosis.evidence import place_line, process_line, stack_lines
from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Finding
from ddtop.diagnosis.idle import OUTSIDE, Idle, counts_steps, polls, runs_own_code
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.model.waits.align import tells_nothing
from ddtop.policy import Policy
from ddtop.wire.calls import WAITING_CALLS
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.units import duration

BESIDE = frozenset({
    "version-skew", "wrong-backend", "sampler-not-distributed", "epoch-not-set", "input-bound", "sync-bound", "straggler",
    "cpu-oversubscribed", "gpu-shared", "gpu-busy", "gpu-memory-low", "gpu-throttled", "memory-pressure", "disk-full",
    "exception-swallowed", "threads-share-group", "cancelled",
})  # fmt: skip
"""Kinds that may be true of a job that moves: as warnings they do not explain that it has stopped."""
CLASSES_MAX = 3
_ALONE = frozenset({"io-stall", "loader-stuck"})
"""Warnings about ranks that nobody waits for yet: once the whole job makes no progress they are its cause."""
_PHASES = frozenset({"compile", "checkpoint-save", "checkpoint-load", "import", "gc"})
_COMMUNICATES = frozenset({"collective", "p2p"})
_WORKS, _SPINS, _STILL = "works", "spins", "still"


@dataclass(frozen=True, slots=True)
class _Standstill:
    """`alive`: the ranks whose processes live; `active`: those that are not done, or all. `stances`: what each of these does for
    the job, by rank. `since_unix_ns`: the last progress."""

    alive: tuple[RankFacts, ...]
    active: tuple[RankFacts, ...]
    stances: dict[int, str]
    since_unix_ns: int
    quiet_s: float

    def all_are(self, stance: str) -> bool:
        return all(one == stance for one in self.stances.values())

    def any_is(self, stance: str) -> bool:
        return stance in self.stances.values()


def rule(snapshot: Snapshot, policy: Policy, found: list[Finding]) -> list[Finding]:
    """At most one finding; `found`: what all other rules say."""
    if any(_explains(one) for one in found):
        return []
    still = _standstill(snapshot, policy)
    if still is None or any(not blame.due for blame in snapshot.blames):
        # Another rule still bears the wait, for as long as it knows that such waits have taken.
        return []
    if set(still.stances) <= Idle(snapshot, policy).ranks(still.active):
        return [_finding(snapshot, still, INFO, idle=True)] if still.quiet_s >= policy.no_progress_s else []
    severity = _severity(snapshot, still, policy)
    return [_finding(snapshot, still, severity)] if severity is not None else []


def escalated(found: list[Finding], snapshot: Snapshot, policy: Policy) -> list[Finding]:
    """A rank that nobody waits for is a warning, until the whole job has made no progress for as long as any hang is borne."""
    if not any(one.kind in _ALONE and one.severity == WARNING for one in found):
        return found
    still = _standstill(snapshot, policy)
    if still is None or not still.all_are(_STILL) or _severity(snapshot, still, policy) != CRITICAL:
        return found
    return [replace(one, severity=CRITICAL) if one.kind in _ALONE else one for one in found]


def _explains(finding: Finding) -> bool:
    return finding.severity == CRITICAL or (finding.severity == WARNING and finding.kind not in BESIDE)


def _standstill(snapshot: Snapshot, policy: Policy) -> _Standstill | None:
    """None while something moves, and where too little is known of some rank."""
    alive = tuple([rank for rank in snapshot.ranks if not rank.gone])
    if snapshot.ended is not None or snapshot.moving or not alive:
        return None
    if any(rank.hello is None or rank.unheard or rank.state is State.STOPPED for rank in alive):
        return None
    if all(tells_nothing(rank) and not counts_steps(rank) for rank in alive):
        return None
    since = snapshot.still_since_unix_ns
    if since is None or any(rank.state in (State.STARTING, State.JOINING) for rank in alive):
        since = _since_of_start(alive)
    if since is None:
        return None
    quiet_s = (snapshot.time_unix_ns - since) / 1e9
    # A rank that has left its groups waits for those that have work left.
    active = tuple([rank for rank in alive if rank.phase != "leaving"]) or alive
    return _Standstill(alive, active, {rank.rank: _stance(rank, quiet_s, policy) for rank in active}, since, quiet_s)


def _since_of_start(alive: tuple[RankFacts, ...]) -> int | None:
    """Of a start that can be told from a slow one: all ranks stand in a lock that has a name, or all in communication."""
    places = [rank.place for rank in alive if rank.place is not None and rank.working is False]
    if len(places) < len(alive):
        return None
    locked = all(place.waits_for is not None for place in places)
    joined = all(rank.state not in (State.STARTING, State.JOINING) for rank in alive)
    meets = joined and all(_word(rank) in _COMMUNICATES for rank in alive)
    return max(place.since_unix_ns or 0 for place in places) or None if locked or meets else None


def _word(rank: RankFacts) -> str:
    """What it does, and of a call whose other side is not known that it communicates."""
    if any(call.name in WAITING_CALLS for call in rank.open_calls):
        return "collective"
    place = rank.place
    return "p2p" if place is not None and place.waits_on == "p2p" else classify(rank).word


def _stance(rank: RankFacts, quiet_s: float, policy: Policy) -> str:
    if rank.gpu_waits:
        return _STILL
    if rank.gpu_computes:
        return _WORKS
    if rank.working is False:
        return _STILL
    # One line for all that time: a long call into C, or a library that spins while it waits.
    same_line = (rank.line_age_s or 0.0) >= max(policy.same_line_s, 0.8 * quiet_s)
    return _SPINS if same_line or rank.working is None else _WORKS


def _severity(snapshot: Snapshot, still: _Standstill, policy: Policy) -> str | None:
    """None: not yet."""
    usual_s = _usual_s(snapshot, still, policy)
    warning_s = max(policy.no_progress_s, usual_s)
    critical_s = max(policy.no_progress_critical_s, policy.no_progress_habit_factor * usual_s)
    patient_s = max(policy.no_progress_patient_s, critical_s)
    if not still.any_is(_STILL):
        # It is work, or a wait that looks like it.
        return None if still.quiet_s < patient_s else WARNING if still.all_are(_SPINS) else INFO
    words = {_word(rank) for rank in still.active}
    if not still.all_are(_STILL) or words & _PHASES:
        warning_s, critical_s = critical_s, patient_s
    elif not _needs_nobody(still, words, policy):
        critical_s = patient_s
    if "loader" in words or any(rank.stalled_since_unix_ns for rank in still.active):
        # From then on the rules of loaders and disks speak.
        warning_s = max(warning_s, policy.stall_alone_limit_s)
    if still.quiet_s < warning_s:
        return None
    own_code = any(runs_own_code(rank) for rank in still.active) or words <= _COMMUNICATES
    return CRITICAL if still.quiet_s >= critical_s and own_code else WARNING


def _usual_s(snapshot: Snapshot, still: _Standstill, policy: Policy) -> float:
    """How long this job usually shows no progress, or ten of its steps."""
    steps_s = max((rank.step_ms or 0.0 for rank in still.active), default=0.0) / 1000
    # The pauses of the whole job are at most those of the rank that pauses least.
    habit_s = min((rank.usual_pause_s or 0.0 for rank in still.active), default=0.0)
    waits_s = max((snapshot.rank(wait.rank).healthy_wait_max_ms or 0.0 for wait in snapshot.waits), default=0.0) / 1000
    return max(
        policy.no_progress_step_factor * steps_s,
        policy.no_progress_habit_factor * habit_s,
        policy.healthy_wait_factor * waits_s,
    )


def _needs_nobody(still: _Standstill, words: set[str], policy: Policy) -> bool:
    """Nothing outside of the job can be what it waits for: `words` are those of all ranks, which stand still."""
    if all(rank.phase == "leaving" for rank in still.active):
        return False
    if all(rank.place is not None and rank.place.waits_for is not None for rank in still.active):
        return True
    elsewhere = [rank for rank in still.active if _word(rank) not in _COMMUNICATES]
    if not elsewhere:
        return True
    if not any(rank.iteration is not None for rank in still.active):
        # Nothing that has steps: a server's main thread sleeps, too.
        return words <= _COMMUNICATES | {"file"}
    return not all(_asks_outside(rank, policy) for rank in elsewhere)


def _asks_outside(rank: RankFacts, policy: Policy) -> bool:
    """It waits for an answer of a server or another process; whoever opens a named pipe has not even a peer."""
    opens = rank.process is not None and rank.process.syscall in ("open", "openat")
    return (_word(rank) in OUTSIDE - {"stdin"} and not opens) or polls(rank, policy)


@dataclass(frozen=True, slots=True)
class _Class:
    """Ranks at one place; `text` follows "is" or "are"."""

    ranks: tuple[int, ...]
    text: str


def _classes(alive: Iterable[RankFacts]) -> list[_Class]:
    """The smallest class first."""
    by_place: dict[tuple[object, ...], list[RankFacts]] = {}
    for rank in alive:
        by_place.setdefault(_place_key(rank), []).append(rank)
    found: list[_Class] = []
    for same in by_place.values():
        found += _told_by_stacks(same)
    return sorted(found, key=lambda one: (len(one.ranks), one.ranks))


def _place_key(rank: RankFacts) -> tuple[object, ...]:
    place = rank.place
    if place is None:
        return (None, _word(rank))
    # A loop that polls comes to one of several lines at each look.
    line = place.line if (rank.line_age_s or 0.0) >= 1.0 else None
    return (place.file, place.function, line)


def _told_by_stacks(same: list[RankFacts]) -> list[_Class]:
    """Ranks at one place, by who has called it, where all of them have a dump of now."""
    stacks = {rank.rank: fresh_stacks(rank) for rank in same}
    lines = {rank: stack_line(one, 6) if one is not None else None for rank, one in stacks.items()}
    text = where(same[0])
    if len(set(lines.values())) == 1 or None in lines.values():
        return [_Class(tuple(rank.rank for rank in same), text)]
    callers: dict[str, list[int]] = {}
    for rank, line in lines.items():
        callers.setdefault(line or "", []).append(rank)
    return [_Class(tuple(ranks), f"{text}, by {line}") for line, ranks in callers.items()]


def _culprits(still: _Standstill, classes: list[_Class]) -> tuple[int, ...]:
    """The minority; all, where there is none."""
    every = tuple(rank.rank for rank in still.active)
    elsewhere = [rank.rank for rank in still.active if _word(rank) not in _COMMUNICATES]
    if elsewhere and len(elsewhere) < len(every):
        # Some are in a call for others: whoever is not in one is waited for, however many they are.
        return tuple(elsewhere)
    largest = set(classes[-1].ranks)
    return tuple(rank for rank in every if rank not in largest) if 2 * len(largest) > len(every) else ()


def _finding(snapshot: Snapshot, still: _Standstill, severity: str, idle: bool = False) -> Finding:
    classes = _classes(still.alive)
    every = tuple(rank.rank for rank in still.alive)
    ranks = () if severity == INFO else _culprits(still, classes) or every
    victims = tuple(rank for rank in every if rank not in ranks) if ranks else ()
    classes.sort(key=lambda one: not set(one.ranks) & set(ranks))
    lead = snapshot.rank(classes[0].ranks[0])
    shown = [f"{ranks_text(one.ranks)} {verb(one.ranks, 'is', 'are')} {one.text}" for one in classes[:CLASSES_MAX]]
    more = sum(len(one.ranks) for one in classes[CLASSES_MAX:])
    shown += [f"{more} more ranks elsewhere"] if more else []
    gone = [rank.rank for rank in snapshot.ranks if rank.gone]
    shown += [f"{ranks_text(gone)} {verb(gone, 'has', 'have')} ended"] if gone else []
    lead_in = "idle" if idle else "no progress"
    return Finding(
        kind="no-progress",
        severity=severity,
        ranks=ranks,
        victims=victims,
        since_unix_ns=still.since_unix_ns,
        summary=f"{lead_in} for {duration(still.quiet_s)}: {'; '.join(shown)}",
        evidence=_evidence(snapshot, classes, still),
        advice=_advice(lead, still, idle),
    )


def _evidence(snapshot: Snapshot, classes: list[_Class], still: _Standstill) -> tuple[str, ...]:
    lines: list[str | None] = []
    for one in classes[:CLASSES_MAX]:
        rank = snapshot.rank(one.ranks[0])
        lines += [process_line(rank), place_line(rank), *stack_lines(rank)]
    counted = [rank for rank in still.alive if rank.iteration is not None]
    if counted:
        steps = [rank.step_ms for rank in counted if rank.step_ms]
        usual = f", a step took {max(steps):.0f} ms" if steps else ""
        lines.append(f"the last step was iteration {max(rank.iteration or 0 for rank in counted):,}{usual}")
    lines.append("no step, batch, collective or call for single ranks has ended since on any rank")
    return tuple(line for line in lines if line is not None)


def _advice(lead: RankFacts, still: _Standstill, idle: bool) -> str:
    place = lead.place
    if idle:
        return "nothing to do: the next request, order or input lets it go on"
    if place is not None and place.waits_for is not None:
        return f"see who holds the lock; if no process builds there any more, it is stale: rm {place.waits_for}"
    if all(_word(rank) in _COMMUNICATES for rank in still.alive):
        return "all ranks must make the same calls in the same order: compare their lines, ddtop stacks shows them side by side"
    if not still.any_is(_STILL):
        return "let it finish, or see whether its loop ends: ddtop stacks"
    return "see what each rank waits for: ddtop stacks"
