"""`no-progress`: the job made steps, batches or collectives, makes none any more, and no other rule
knows why.

This is the last rule. It says where each rank is, and names the ranks that are not at the same
place as most. The finding of a more precise rule replaces it. If all ranks only wait for work from
outside, the job is idle, and the finding is an info.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddtop.diagnosis.activity import fresh_stacks, stack_line, where_text
from ddtop.diagnosis.evidence import (
    call_lines,
    place_line,
    process_line,
    stack_lines,
    whom_to_ask,
)
from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.standstill import (
    COMMUNICATES,
    STILL,
    Idle,
    Standstill,
    is_in_pool,
    severity_of,
    standstill_of,
    word_of,
)
from ddtop.diagnosis.waiters import foreign_text, foreign_waits, held_by
from ddtop.model.facts import RankFacts, Snapshot, Wait
from ddtop.policy import Policy
from ddtop.words.sentences import quoted, ranks_text, verb
from ddtop.words.units import duration, plural

CLASSES_MAX = 3


def rule(context: Context) -> list[Finding]:
    """At most one finding."""
    snapshot, policy = context.snapshot, context.policy
    still = standstill_of(snapshot, policy)
    if still is None or any(not blame.due for blame in snapshot.blames):
        # The rule for such waits still tolerates this one, because earlier waits have taken as
        # long.
        return []
    outside = foreign_waits(snapshot)
    if outside and set(still.stances) <= held_by(snapshot, outside):
        stands = still.quiet_s >= policy.no_progress_s
        return [_for_outside(snapshot, still, outside, policy)] if stands else []
    if set(still.stances) <= Idle(snapshot, policy).ranks(still.active):
        return (
            [_finding(snapshot, still, INFO, policy, idle=True)]
            if still.quiet_s >= policy.no_progress_s
            else []
        )
    if _parted(still, policy):
        return [_finding(snapshot, still, CRITICAL, policy)]
    severity = severity_of(snapshot, still, policy)
    if severity == CRITICAL and _needs_numbers(still, policy):
        severity = WARNING
    return [_finding(snapshot, still, severity, policy)] if severity is not None else []


def _for_outside(
    snapshot: Snapshot, still: Standstill, waits: list[Wait], policy: Policy
) -> Finding:
    """All ranks wait for another job. That is its usual pause, or a fault that only a look at that
    job shows: so it is never critical here.
    """
    ranks = tuple(sorted({wait.rank for wait in waits}))
    victims = tuple(sorted(set(still.stances) - set(ranks)))
    usual = still.quiet_s < policy.no_progress_patient_s
    summary = f"no progress for {duration(still.quiet_s)}: {foreign_text(snapshot, waits)}"
    if victims:
        summary += (
            f"; {ranks_text(victims)} {verb(victims, 'waits', 'wait')} for"
            f" {verb(ranks, 'it', 'them')}"
        )
    return Finding(
        kind=Kind.NO_PROGRESS,
        severity=INFO if usual else WARNING,
        ranks=() if usual else ranks,
        victims=() if usual else victims,
        since_unix_ns=still.since_unix_ns,
        summary=summary,
        evidence=_evidence(snapshot, _classes(still.alive, policy), still, policy),
        advice="check the job on the other side of that store: ddtop jobs, ddtop diagnose",
        group=waits[0].group,
        op=waits[0].op,
        seq=waits[0].seq,
    )


def _needs_numbers(still: Standstill, policy: Policy) -> bool:
    """Whether only sequence numbers could distinguish a hang from slow communication: all ranks are
    in communication calls, and are read from outside.
    """
    outside = any(rank.comm.outside is not None for rank in still.active)
    return outside and all(word_of(rank, policy) in COMMUNICATES for rank in still.active)


def _parted(still: Standstill, policy: Policy) -> bool:
    """Whether all ranks sleep in communication calls at different places, and run nothing at all.

    Then nothing is on its way, and no rank can come to the call of another.
    """
    looks = [rank.comm.outside for rank in still.active]
    sleep = all(look is not None and look.waits and look.quiet_since_unix_ns for look in looks)
    if not sleep or any(rank.from_outside for rank in still.active):
        return False
    return still.quiet_s >= policy.still_limit_s and len(_classes(still.active, policy)) > 1


@dataclass(frozen=True, slots=True)
class _Class:
    """Ranks at one place; `text` follows "is" or "are"."""

    ranks: tuple[int, ...]
    text: str


def _classes(alive: Iterable[RankFacts], policy: Policy) -> list[_Class]:
    """Ranks by place, the smallest class first."""
    by_place: dict[tuple[object, ...], list[RankFacts]] = {}
    for rank in alive:
        by_place.setdefault(_place_key(rank, policy), []).append(rank)
    places: list[_Class] = []
    for same in by_place.values():
        places += _split_by_stacks(same, policy)
    return sorted(places, key=lambda place: (len(place.ranks), place.ranks))


def _place_key(rank: RankFacts, policy: Policy) -> tuple[object, ...]:
    place = rank.reported.place
    if place is None:
        return (None, word_of(rank, policy))
    # Each sample may find a polling loop at another line.
    line = place.line if (rank.reported.line_age_s or 0.0) >= 1.0 else None
    return (place.file, place.function, place.waits_on if is_in_pool(rank) else line)


def _split_by_stacks(same: list[RankFacts], policy: Policy) -> list[_Class]:
    """Ranks at one place, grouped by their callers, if all of them have a current dump."""
    stacks = {rank.rank: fresh_stacks(rank) for rank in same}
    lines = {
        rank: stack_line(answer, 6) if answer is not None else None
        for rank, answer in stacks.items()
    }
    text = where_text(same[0], policy)
    if len(set(lines.values())) == 1 or None in lines.values():
        return [_Class(tuple(rank.rank for rank in same), text)]
    callers: dict[str, list[int]] = {}
    for rank, line in lines.items():
        callers.setdefault(line or "", []).append(rank)
    return [_Class(tuple(ranks), f"{text}, called by {line}") for line, ranks in callers.items()]


def _culprits(still: Standstill, classes: list[_Class], policy: Policy) -> tuple[int, ...]:
    """The minority. Empty where there is none."""
    every = tuple(rank.rank for rank in still.active)
    elsewhere = [rank.rank for rank in still.active if not _waits_for_others(rank, policy)]
    if elsewhere and len(elsewhere) < len(every):
        # Some ranks are in a communication call, or have done what they were told. They wait for
        # all ranks that are not, however many.
        return tuple(elsewhere)
    largest = set(classes[-1].ranks)
    return (
        tuple(rank for rank in every if rank not in largest)
        if 2 * len(largest) > len(every)
        else ()
    )


def _waits_for_others(rank: RankFacts, policy: Policy) -> bool:
    return is_in_pool(rank) or word_of(rank, policy) in COMMUNICATES


def _finding(
    snapshot: Snapshot, still: Standstill, severity: str, policy: Policy, idle: bool = False
) -> Finding:
    classes = _classes(still.alive, policy)
    every = tuple(rank.rank for rank in still.alive)
    ranks = () if severity == INFO else _culprits(still, classes, policy) or every
    victims = tuple(rank for rank in every if rank not in ranks) if ranks else ()
    classes.sort(key=lambda place: not set(place.ranks) & set(ranks))
    lead = snapshot.rank(classes[0].ranks[0])
    shown = [
        f"{ranks_text(place.ranks)} {verb(place.ranks, 'is', 'are')} {place.text}"
        for place in classes[:CLASSES_MAX]
    ]
    more = sum(len(place.ranks) for place in classes[CLASSES_MAX:])
    shown += [f"{plural(more, 'more rank')} elsewhere"] if more else []
    gone = [rank.rank for rank in snapshot.ranks if rank.gone]
    shown += [f"{ranks_text(gone)} {verb(gone, 'has', 'have')} ended"] if gone else []
    unseen = still.unseen
    shown += [f"{ranks_text(unseen)} {verb(unseen, 'was', 'were')} not seen"] if unseen else []
    lead_in = "idle" if idle else "no progress"
    return Finding(
        kind=Kind.NO_PROGRESS,
        severity=severity,
        ranks=ranks,
        victims=victims,
        since_unix_ns=still.since_unix_ns,
        summary=f"{lead_in} for {duration(still.quiet_s)}: {'; '.join(shown)}",
        evidence=_evidence(snapshot, classes, still, policy),
        advice=_advice(lead, still, idle, policy),
    )


def _evidence(
    snapshot: Snapshot, classes: list[_Class], still: Standstill, policy: Policy
) -> tuple[str, ...]:
    lines: list[str | None] = []
    for one in classes[:CLASSES_MAX]:
        rank = snapshot.rank(one.ranks[0])
        lines += [process_line(rank, policy), place_line(rank), *stack_lines(rank, policy)]
    counted = [rank for rank in still.alive if rank.progress.iteration is not None]
    if counted:
        steps = [rank.progress.step_ms for rank in counted if rank.progress.step_ms]
        usual = f", a step took {max(steps):.0f} ms" if steps else ""
        last = max(rank.progress.iteration or 0 for rank in counted)
        lines.append(f"the last step was iteration {last:,}{usual}")
    if any(rank.comm.outside is not None for rank in still.alive):
        lines += call_lines(list(still.alive))
        lines.append("judged by the stacks of the training threads, which have not moved since")
    else:
        lines.append("no rank has finished a step, batch, collective or point-to-point call since")
    return tuple(line for line in lines if line is not None)


def _advice(lead: RankFacts, still: Standstill, idle: bool, policy: Policy) -> str:
    place = lead.reported.place
    if still.unseen:
        return (
            f"{ranks_text(still.unseen)} may be on other hosts (look there too: --ssh HOST,HOST)"
            " or may have ended"
        )
    if idle:
        return "nothing to fix: it continues with the next request, order or input"
    if place is not None and place.waits_for is not None:
        return (
            "find out which process holds the lock; if no process is building there, the lock is"
            f" stale: rm {quoted(place.waits_for)}"
        )
    if all(word_of(rank, policy) in COMMUNICATES for rank in still.alive):
        return (
            "all ranks must make the same calls in the same order: compare their lines, ddtop"
            " stacks shows them side by side"
        )
    if not still.any_is(STILL):
        return "let it finish, or check whether its loop ends: ddtop stacks"
    ask = whom_to_ask(lead, policy)
    about = f"; give the wait of rank {lead.rank} a timeout, and see {ask}" if ask else ""
    return f"see what each rank waits for: ddtop stacks{about}"
