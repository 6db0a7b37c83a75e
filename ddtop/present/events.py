"""The events of `ddtop watch`, each as a line of text or a JSON object (`ddtop.event/1`)."""

from __future__ import annotations

from typing import Any

from ddtop.model.state.facts import Snapshot
from ddtop.present.as_json import ended_json, finding_json, progress_json
from ddtop.present.orders import order_text
from ddtop.present.text import clean
from ddtop.viewer.changes import APPEARED, CLEARED, ENDED, JOINED, ORDERED, Change
from ddtop.words import units
from ddtop.words.progress import only_steps, progress_text
from ddtop.words.ranks import ranks_text

EVENT_SCHEMA = "ddtop.event/1"


def event_line(change: Change) -> str:
    """`12:03:41 appeared critical not-in-collective: rank 2 has been ...`, with the local time."""
    return f"{units.clock(change.unix_ns)} {change.event} {event_text(change)}"


def event_text(change: Change) -> str:  # noqa: PLR0911 - one answer an event
    """The text after the name of the event."""
    finding = change.finding
    if change.event == APPEARED and finding is not None:
        return f"{finding.severity} {clean(finding.kind)}: {clean(finding.summary)}"
    if change.event == CLEARED and finding is not None:
        of = f" of {ranks_text(finding.ranks, 6)}" if finding.ranks else ""
        return (
            f"{finding.severity} {clean(finding.kind)}{of}, after"
            f" {units.duration(change.seconds or 0.0)}"
        )
    if change.event == ENDED and change.ended is not None:
        at = change.progress and progress_text(only_steps(change.progress))
        return clean(change.ended.reason) + (f", at {clean(at)}" if at else "")
    if change.event == ORDERED and change.order is not None:
        return order_text(change.order)
    if change.event == JOINED and not change.ranks:
        return f"again: the relay is heard after {units.duration(change.seconds or 0.0)}"
    if change.event == JOINED:
        attempt = f" (attempt {change.attempt})" if change.attempt else ""
        return f"{ranks_text(change.ranks, 6)} of {change.world_size}{attempt}"
    return f"contact: {clean(change.contact or '')}"


def event_json(change: Change, job: str, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """One event with every key; null (or no rank) if it does not apply to the event.

    `snapshot`: for the purpose of a finding's group. `ranks` of `joined` are the new ranks; empty
    if contact was lost and is back.
    """
    return {
        "schema": EVENT_SCHEMA,
        "time_unix_ns": change.unix_ns,
        "event": change.event,
        "job": job,
        "attempt": change.attempt,
        "text": event_text(change),
        "finding": (finding_json(change.finding, snapshot) if change.finding is not None else None),
        "ranks": list(change.ranks),
        "ended": ended_json(change.ended),
        "progress": progress_json(change.progress),
    }
