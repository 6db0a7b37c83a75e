"""What happened, a line an event: findings that appeared and cleared, ranks that came and went, restarts, dumps of stacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.model.facts import Snapshot

from . import units
from .text import clean, rank_words
from .words import exit_text


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """Something that happened at `unix_ns`."""

    unix_ns: int
    text: str


def events(looks: Iterable[tuple[Snapshot, Verdict]]) -> tuple[Event, ...]:
    """The events of a job that was looked at several times, in order of time.

    A finding begins when its fact began, and is over at the first look that does not have it any more.
    """
    found: set[Event] = set()
    standing: dict[tuple[str, str | None, tuple[int, ...]], Finding] = {}
    last: Snapshot | None = None
    for snapshot, verdict in looks:
        if last is not None and snapshot.attempt > last.attempt:
            found.add(Event(snapshot.time_unix_ns, f"restarted: attempt {snapshot.attempt}"))
        shown = {finding.identity: finding for finding in verdict.findings}
        for identity, finding in shown.items():
            if identity not in standing:
                text = f"{finding.severity}: {clean(finding.kind)}: {clean(finding.summary)}"
                found.add(Event(finding.since_unix_ns, text))
        for identity, finding in standing.items():
            # The end of the job is the end of all that stood.
            if identity not in shown and snapshot.ended is None:
                of = f" of {rank_words(finding.ranks, 6)}" if finding.ranks else ""
                found.add(Event(snapshot.time_unix_ns, f"over: {clean(finding.kind)}{of}"))
        standing, last = shown, snapshot
        found.update(_facts(snapshot))
    return tuple(sorted(found))


def _facts(snapshot: Snapshot) -> Iterable[Event]:
    dumps: dict[str, tuple[int, bool, list[int]]] = {}
    for rank in snapshot.ranks:
        if rank.exit is not None and rank.exit_unix_ns:
            yield Event(rank.exit_unix_ns, f"rank {rank.rank} (pid {rank.exit.pid}) ended: {exit_text(rank.exit)}")
        if rank.exception is not None:
            text = clean(f"{rank.exception.type}: {rank.exception.text}")
            yield Event(rank.exception.unix_ns, f"rank {rank.rank} raised {text}")
        if rank.stacks is not None:
            at, automatic, ranks = dumps.setdefault(rank.stacks.request, (rank.stacks.taken_unix_ns, False, []))
            dumps[rank.stacks.request] = (min(at, rank.stacks.taken_unix_ns), automatic or rank.stacks.automatic, ranks)
            ranks.append(rank.rank)
    for at, automatic, _ in dumps.values():
        yield Event(at, "stacks were taken" + (", because something stood still" if automatic else ""))
    if snapshot.ended is not None:
        yield Event(snapshot.ended.time_unix_ns, f"the job ended: {clean(snapshot.ended.reason)}")


def timeline_lines(happened: Iterable[Event]) -> list[str]:
    """One line an event, with the local time."""
    return [f"{units.clock(event.unix_ns)}  {event.text}" for event in happened]
