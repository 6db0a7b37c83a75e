"""What is said of a job that makes no progress, where no other rule knows why."""

from __future__ import annotations

from ddtop.diagnosis.rules.no_progress import (
    AtOnePlace,
    ForOutside,
    NoSteps,
    Stands,
    one_sided,
)
from ddtop.diagnosis.standstill import COMMUNICATES, STILL, Standstill, word_of
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.say.chain import chain_lines, chain_step
from ddtop.say.evidence import (
    SAME_CALLS,
    call_lines,
    place_line,
    process_line,
    stack_lines,
    whom_to_ask,
)
from ddtop.say.places import where_text
from ddtop.say.said import (
    Context,
    Finding,
    Said,
    Writer,
    lasting,
    lasts_text,
    stacks,
    that_hold,
)
from ddtop.say.waiters import OPPOSITE_ORDERS, foreign_text
from ddtop.words.sentences import quoted, ranks_text, verb
from ddtop.words.units import plural

CLASSES_MAX = 3


def for_outside(_: Finding, seen: ForOutside, at: Context) -> Said:
    """For which processes outside of the job they wait."""
    still, ranks, victims = seen.still, seen.ranks, seen.victims
    summary = (
        f"no progress{lasts_text(at, still.since_unix_ns)}: {foreign_text(at.snapshot, seen.waits)}"
    )
    if victims:
        summary += (
            f"; {ranks_text(victims)} {verb(victims, 'waits', 'wait')} for"
            f" {verb(ranks, 'it', 'them')}"
        )
    return Said(
        summary,
        _evidence(at.snapshot, seen.classes, still),
        "check the job on the other side of that store: ddtop jobs, ddtop diagnose",
    )


def stands(finding: Finding, seen: Stands, at: Context) -> Said:
    """Where the ranks are, those at fault first."""
    still, classes, idle = seen
    snapshot = at.snapshot
    lead = snapshot.rank(classes[0].ranks[0])
    shown = [
        f"{ranks_text(place.ranks)} {verb(place.ranks, 'is', 'are')} {_place_text(place, at)}"
        for place in classes[:CLASSES_MAX]
    ]
    more = sum(len(place.ranks) for place in classes[CLASSES_MAX:])
    shown += [f"{plural(more, 'more rank')} elsewhere"] if more else []
    if (single := one_sided(still)) is not None:
        shown.append(f"no rank {'sends' if single[0] == 'receive' else 'receives'}")
    gone = [rank.rank for rank in snapshot.ranks if rank.gone]
    shown += [f"{ranks_text(gone)} {verb(gone, 'has', 'have')} ended"] if gone else []
    unseen = still.unseen
    shown += [f"{ranks_text(unseen)} {verb(unseen, 'was', 'were')} not seen"] if unseen else []
    lead_in = "idle" if idle else "no progress"
    return Said(
        f"{lead_in}{lasts_text(at, still.since_unix_ns)}: {'; '.join(shown)}",
        _evidence(snapshot, classes, still),
        _advice(lead, still, idle, stacks(finding, at), len(classes) > 1),
    )


def no_steps(_: Finding, seen: NoSteps, __: Context) -> Said:
    """That they go on, and where they are."""
    lead = seen.ranks[0]
    lines = [process_line(lead), place_line(lead), *stack_lines(lead)]
    numbers = [rank.rank for rank in seen.ranks]
    last = max(rank.progress.iteration or 0 for rank in seen.ranks)
    return Said(
        f"no step{lasting(seen.quiet_s)}, but the ranks go on: {ranks_text(numbers)}"
        f" {verb(numbers, 'makes', 'make')} collectives or other calls, and"
        f" {verb(numbers, 'is', 'are')} not seen in the model, the optimizer or a DataLoader",
        (
            *(line for line in lines if line is not None),
            f"the last step was iteration {last:,}, a step took {seen.step_ms:.0f} ms",
        ),
        "check whether the loop over the data still has data: a generator or an iterator gives its"
        " items once, so make it anew for each epoch",
    )


def _place_text(place: AtOnePlace, at: Context) -> str:
    text = where_text(at.snapshot.rank(place.ranks[0]))
    return f"{text}, called by {place.callers}" if place.callers else text


def _evidence(snapshot: Snapshot, classes: list[AtOnePlace], still: Standstill) -> tuple[str, ...]:
    lines: list[str | None] = []
    for one in classes[:CLASSES_MAX]:
        rank = snapshot.rank(one.ranks[0])
        lines += [
            process_line(rank),
            place_line(rank),
            *chain_lines(rank),
            *stack_lines(rank),
        ]
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


def _advice(lead: RankFacts, still: Standstill, idle: bool, shown: str, apart: bool) -> str:
    """`apart`: the ranks are at different places."""
    place, calls = lead.reported.place, all(word_of(rank) in COMMUNICATES for rank in still.alive)
    lock = place.waits_for if place is not None else None
    single, ask = one_sided(still), whom_to_ask(lead)
    about = f"; give the wait of rank {lead.rank} a timeout, and see {ask}" if ask else ""
    return that_hold(
        (
            still.unseen,
            f"{ranks_text(still.unseen)} may be on other hosts (look there too: --ssh HOST,HOST)"
            " or may have ended",
        ),
        (idle, "nothing to fix: it continues with the next request, order or input"),
        (
            lock is not None,
            "find out which process holds the lock; if no process is building there, the lock is"
            f" stale: rm {quoted(lock or '')}",
        ),
        (single is not None, _ONE_SIDED.get(single[0] if single is not None else "", "")),
        (calls and apart, SAME_CALLS),
        (
            calls,
            "all ranks must make the same calls in the same order: compare their lines,"
            f" {shown} shows them side by side",
        ),
        (
            not still.any_is(STILL),
            f"let it finish, or check whether its loop ends: {shown}",
        ),
        (True, chain_step(lead) or f"see what each rank waits for: {shown}{about}"),
    )[0]


_ONE_SIDED = {
    "send": f"let a rank receive what they send; if all send first, {OPPOSITE_ORDERS}",
    "receive": (
        "look for the send that a rank has left out (a branch that only some ranks take); if all"
        f" receive first, {OPPOSITE_ORDERS}"
    ),
}
"""By what the ranks do that are in a call for single ranks."""
WRITERS: dict[type, Writer] = {Stands: stands, ForOutside: for_outside, NoSteps: no_steps}
