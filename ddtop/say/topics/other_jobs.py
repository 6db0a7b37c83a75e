"""What is said of ranks that wait for a rank of another job."""

from __future__ import annotations

from ddtop.diagnosis.rules.waits_for_job import Absent, Crossed, Ends
from ddtop.diagnosis.standstill import COMMUNICATES
from ddtop.diagnosis.waiters import first_wait
from ddtop.model.facts import Snapshot
from ddtop.say.places import where_text
from ddtop.say.said import Around, Context, Finding, Said, lasting
from ddtop.say.waiters import waits_clause
from ddtop.wire.records import FarEnd
from ddtop.words.sentences import (
    WAITS,
    collective_text,
    file_line,
    function_text,
    names_of_groups,
    quoted,
    ranks_text,
    verb,
)


def crossed(finding: Finding, seen: Crossed, at: Context, inner: Said) -> Said:
    """Which rank of which job they wait for, and what that one does."""
    evidence = (*_connections(at.snapshot, seen.ends, finding.ranks), *inner.evidence)
    advice = f"look at that job: ddtop diagnose {quoted(seen.end.where.job)}"
    return Said(_summary(finding, seen, at.snapshot), evidence, advice)


def absent(finding: Finding, seen: Absent, at: Context, inner: Said) -> Said:
    """Which call of the shared group they have not come to."""
    snapshot, ranks = at.snapshot, finding.ranks
    name = names_of_groups(snapshot.groups)[finding.group or ""]
    call = collective_text(finding.op, finding.seq, name)
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} not come to {call}, and"
        f" {_name(seen.end)}, waits: {verb(ranks, 'it is', 'they are')}"
        f" {where_text(snapshot.rank(ranks[0]))}",
        (*_connections(snapshot, seen.ends, tuple(seen.ends)), *inner.evidence),
        "find out why it left out this call: all members make the same calls",
    )


def _connections(snapshot: Snapshot, ends: Ends, ranks: tuple[int, ...]) -> list[str]:
    return [
        *[
            f"rank {rank} is connected to {end.address}: {_name(end)} (pid {end.pid})"
            for rank in ranks
            for end in ends[rank]
        ],
        *[
            f"group {group.description} meets at the store {group.foreign}"
            for group in snapshot.groups
            if group.foreign
        ],
    ]


def _summary(finding: Finding, seen: Crossed, snapshot: Snapshot) -> str:
    ranks, victims = finding.ranks, finding.victims
    place, does = seen.end.where.place, "asleep"
    if place is not None:
        if place.waits_on in COMMUNICATES:
            does = f"in {place.callee or 'a collective'}"
        elif (known := WAITS.get(place.waits_on or "")) is not None:
            does = known.phrase
        does += f" ({file_line(place)} {function_text(place)})"
    text = (
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} for {_name(seen.end)}, which has been"
        f" {does}{lasting(seen.still_s)}"
    )
    first = first_wait(snapshot, [snapshot.rank(rank) for rank in victims], ranks)
    return f"{text}; {waits_clause(snapshot, first, ranks, victims)}" if victims and first else text


def _name(end: FarEnd) -> str:
    number = end.where.rank
    return f"job {end.where.job}" + (f", rank {number}" if number is not None else "")


AROUND: dict[type, Around] = {Crossed: crossed, Absent: absent}
