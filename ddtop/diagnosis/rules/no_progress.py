"""`no-progress`: the job made steps, batches or collectives, makes none any more, and no other rule
knows why.

This is the last rule. It says where each rank is, and names the ranks that are not at the same
place as most. The finding of a more precise rule replaces it. If all ranks only wait for work from
outside, the job is idle, and the finding is an info.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ddtop.diagnosis.patience import phase_of
from ddtop.diagnosis.rule import (
    CRITICAL,
    INFO,
    MOVES,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Patience,
    Policy,
    RuleRow,
    standstill_is_explained,
)
from ddtop.diagnosis.standstill import (
    COMMUNICATES,
    Idle,
    Standstill,
    is_in_pool,
    severity_of,
    standstill_of,
    stepless_since,
    word_of,
)
from ddtop.diagnosis.waiters import foreign_waits, held_by
from ddtop.model.account import fresh_stacks, stack_line
from ddtop.model.facts import RankFacts, Wait
from ddtop.wire.names import RECEIVES, SENDS
from ddtop.wire.records import P2P


class AtOnePlace(NamedTuple):
    """Ranks at one place. `callers`: their own frames, where those differ from those of others at
    the place."""

    ranks: tuple[int, ...]
    callers: str = ""


class Stands(NamedTuple):
    """The job makes no progress. `classes`: where its ranks are, what is said first. `idle`: all
    wait for work from outside."""

    still: Standstill
    classes: list[AtOnePlace]
    idle: bool


class NoSteps(NamedTuple):
    """`ranks` go on, but have made no step for `quiet_s`. One took `step_ms`."""

    ranks: tuple[RankFacts, ...]
    quiet_s: float
    step_ms: float


class ForOutside(NamedTuple):
    """The job makes no progress, because `ranks` are in `waits` for processes outside of it, and
    `victims` wait for them."""

    still: Standstill
    classes: list[AtOnePlace]
    waits: tuple[Wait, ...]
    ranks: tuple[int, ...]
    victims: tuple[int, ...]


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
        return [_for_outside(still, outside, policy)] if stands else []
    if set(still.stances) <= Idle(snapshot, policy).ranks(still.active):
        return [_finding(still, INFO, idle=True)] if still.quiet_s >= policy.no_progress_s else []
    if _parted(still, policy):
        return [_finding(still, CRITICAL)]
    severity, patience = severity_of(snapshot, still, policy)
    if severity is not None and _needs_numbers(still):
        severity, patience = INFO if severity == INFO else WARNING, _UNCOUNTED
    return [_finding(still, severity, patience)] if severity is not None else []


def no_steps(context: Context) -> list[Finding]:
    """At most one finding. It is a warning, because the program may mean it."""
    snapshot, policy = context.snapshot, context.policy
    since = stepless_since(snapshot, policy)
    living = tuple([rank for rank in snapshot.ranks if not rank.gone])
    if since is None or any(phase_of(rank) for rank in living):
        return []
    step_ms = max((rank.progress.step_ms or 0.0 for rank in living), default=0.0)
    seen = NoSteps(living, (snapshot.time_unix_ns - since) / 1e9, step_ms)
    return [Finding(Kind.NO_PROGRESS, WARNING, (), (), since, seen=seen)]


_UNCOUNTED = Patience(inf, "a hang looks like slow communication where no calls are counted")


def _for_outside(still: Standstill, waits: list[Wait], policy: Policy) -> Finding:
    """All ranks wait for another job. That is its usual pause, or a fault that only a look at that
    job shows: so it is never critical here.
    """
    ranks = tuple(sorted({wait.rank for wait in waits}))
    victims = tuple(sorted(set(still.stances) - set(ranks)))
    usual = still.quiet_s < policy.no_progress_patient_s
    return Finding(
        Kind.NO_PROGRESS,
        INFO if usual else WARNING,
        () if usual else ranks,
        () if usual else victims,
        still.since_unix_ns,
        group=waits[0].group,
        op=waits[0].op,
        seq=waits[0].seq,
        seen=ForOutside(still, classes_of(still.alive), tuple(waits), ranks, victims),
    )


def _needs_numbers(still: Standstill) -> bool:
    """Whether only sequence numbers could distinguish a hang from slow communication: all ranks are
    in communication calls, and are read from outside.
    """
    outside = any(rank.comm.outside is not None for rank in still.active)
    return outside and all(word_of(rank) in COMMUNICATES for rank in still.active)


_SIDES = (("receive", RECEIVES), ("send", SENDS))


def one_sided(still: Standstill) -> tuple[str, tuple[int, ...]] | None:
    """`receive` or `send`, and the ranks that do so, if all others are in collectives: no rank
    makes the call that ends theirs. A rank of another world might."""
    looks = {one.rank: one.comm.outside for one in still.active}
    single = {rank: one.call for rank, one in looks.items() if one and one.kind == P2P}
    calls = set(single.values())
    side = next((name for name, own in _SIDES if calls and calls <= own), None)
    return (side, tuple(single)) if side is not None and _needs_numbers(still) else None


def _parted(still: Standstill, policy: Policy) -> bool:
    """Whether all ranks sleep in communication calls at different places, and run nothing at all.

    Then nothing is on its way, and no rank can come to the call of another. Between two looks from
    outside, more may happen.
    """
    looks = [rank.comm.outside for rank in still.active]
    sleep = all(look is not None and look.waits and look.quiet_since_unix_ns for look in looks)
    if not sleep or still.unseen:
        return False
    seldom = any(rank.from_outside for rank in still.active)
    limit_s = policy.no_progress_s if seldom else policy.still_limit_s
    return still.quiet_s >= limit_s and len(classes_of(still.active)) > 1


def classes_of(alive: Iterable[RankFacts]) -> list[AtOnePlace]:
    """Ranks by place, the smallest class first."""
    by_place: dict[tuple[object, ...], list[RankFacts]] = {}
    for rank in alive:
        by_place.setdefault(_place_key(rank), []).append(rank)
    places: list[AtOnePlace] = []
    for same in by_place.values():
        places += _split_by_stacks(same)
    return sorted(places, key=lambda place: (len(place.ranks), place.ranks))


def _place_key(rank: RankFacts) -> tuple[object, ...]:
    place = rank.reported.place
    if place is None:
        return (None, word_of(rank))
    # Each sample may find a polling loop at another line.
    line = place.line if (rank.reported.line_age_s or 0.0) >= 1.0 else None
    return (place.file, place.function, place.waits_on if is_in_pool(rank) else line)


def _split_by_stacks(same: list[RankFacts]) -> list[AtOnePlace]:
    """Ranks at one place, grouped by their callers, if all of them have a current dump."""
    stacks = {rank.rank: fresh_stacks(rank) for rank in same}
    lines = {
        rank: stack_line(answer, 6) if answer is not None else None
        for rank, answer in stacks.items()
    }
    if len(set(lines.values())) == 1 or None in lines.values():
        return [AtOnePlace(tuple(rank.rank for rank in same))]
    callers: dict[str, list[int]] = {}
    for rank, line in lines.items():
        callers.setdefault(line or "", []).append(rank)
    return [AtOnePlace(tuple(ranks), line) for line, ranks in callers.items()]


def _culprits(still: Standstill, classes: list[AtOnePlace]) -> tuple[int, ...]:
    """The minority. Empty where there is none."""
    every = tuple(rank.rank for rank in still.active)
    elsewhere = [
        rank.rank
        for rank in still.active
        if not is_in_pool(rank) and word_of(rank) not in COMMUNICATES
    ]
    if elsewhere and len(elsewhere) < len(every):
        # Some ranks are in a communication call, or have done what they were told. They wait for
        # all ranks that are not, however many.
        return tuple(elsewhere)
    if (single := one_sided(still)) is not None and len(single[1]) < len(every):
        return single[1]
    largest = set(classes[-1].ranks)
    return (
        tuple(rank for rank in every if rank not in largest)
        if 2 * len(largest) > len(every)
        else ()
    )


def _finding(
    still: Standstill, severity: str, patience: Patience | None = None, idle: bool = False
) -> Finding:
    classes = classes_of(still.alive)
    every = tuple(rank.rank for rank in still.alive)
    ranks = () if severity == INFO else _culprits(still, classes) or every
    victims = tuple(rank for rank in every if rank not in ranks) if ranks else ()
    classes.sort(key=lambda place: not set(place.ranks) & set(ranks))
    return Finding(
        Kind.NO_PROGRESS,
        severity,
        ranks,
        victims,
        still.since_unix_ns,
        patience=patience,
        seen=Stands(still, classes, idle),
    )


ROWS = (
    RuleRow(
        rule,
        (Kind.NO_PROGRESS,),
        "whether the whole job has stopped making progress, and where each rank is",
        unless=(standstill_is_explained,),
    ),
    RuleRow(
        no_steps,
        (Kind.NO_PROGRESS,),
        "whether the ranks go on and make no steps any more",
        unless=MOVES,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.NO_PROGRESS,
        severity="a warning, critical if it lasts; info while the job is idle",
        brief="the job makes no more steps, and no rule knows why",
        meaning=(
            "For a long time no rank has made a step, taken a batch or completed a collective, and"
            " no other kind of finding fits. If a few ranks are at a different place than the"
            " rest, they are marked. The summary says where each rank is."
        ),
        found=(
            (
                "It is a warning after {no_progress_s}, {standstill.no_progress_step_factor} usual"
                " steps, or {standstill.no_progress_habit_factor} times a pause that has happened"
                " twice. It is critical after {standstill.no_progress_critical_s}. A more precise"
                " finding replaces it."
            ),
            (
                "It is critical only after {no_progress_patient_s} if some ranks compute, save a"
                " checkpoint, compile code, or wait for a server or another process. If all ranks"
                " compute, there is no finding before that time, and only an info after it. Ranks"
                " that count steps and have been in one function of the program, in no library,"
                " for {standstill.turns_ratio} of half a minute are a warning after"
                " {standstill.no_progress_critical_s}."
            ),
            (
                "It is a warning too if the ranks go on without a step for"
                " {standstill.no_progress_critical_s}, and no sample finds one in its model, its"
                " optimizer or its DataLoader."
            ),
            (
                "A job is idle (info) if its ranks count no steps and wait for requests, or wait"
                " for orders from a rank that waits for requests. If that rank asks for work"
                " itself, the others must have waited {standstill.idle_habit_s} twice, or have"
                " hardly begun; or the wait is shorter than {standstill.idle_stay_factor} times an"
                " earlier stay at that line."
            ),
        ),
        steps=(
            "Compare where the ranks are, side by side:\nddtop stacks JOB",
            (
                "If there are several send and recv calls, all ranks must make them in an order"
                " that fits."
            ),
            (
                "If ranks wait for a lock file, find the process that made it. If that process has"
                " ended, remove the file."
            ),
            "If the program asks the user something (input, getpass), remove that.",
        ),
        before=(
            'if input("overwrite? ") == "y":   # every rank asks, and nobody answers',
            "    save(model)",
        ),
        after=(
            "if args.overwrite:                # decided before the start",
            "    save(model)",
        ),
    ),
)
