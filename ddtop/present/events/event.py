"""One thing that happened to a job, and its texts: for `ddtop watch`, the screen and the report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ddtop.diagnosis.finding import Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import Ended, Snapshot
from ddtop.present.documents import ended_json, finding_json, progress_json
from ddtop.present.text import clean
from ddtop.say.said import LASTS, without
from ddtop.wire.records import Order, TrainingProgress
from ddtop.words import units
from ddtop.words.sentences import only_steps, progress_text, ranks_text

FINDING, JOIN, END, RAISED, RESTARTED = "finding", "joined", "ended", "exception", "restart"
STACKS, CONTACT, JOB, LOSS, ORDER = "stacks", "contact", "job", "dropped", "order"
"""What an event is about, as a row of the list says it."""

APPEARED, CLEARED, JOINED, LOST, ENDED, ORDERED = (
    "appeared",
    "cleared",
    "joined",
    "lost",
    "ended",
    "ordered",
)
"""What is new in an event, as `ddtop watch` says it."""
_LEADS = {LOST: "contact: ", JOINED: "again: "}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job, as the log knew it after one look.

    An event that goes on, such as a finding or a loss, has one version for each look that changed
    it, all with the same `key`; the log keeps the newest. Times are of the relay's clock, which is
    that of rank 0's host.

    `what`: one of FINDING, JOIN, ...; `event`: what this version adds for `ddtop watch` (APPEARED,
    CLEARED, ...), empty if nothing. `began_unix_ns`: when the fact began. `noticed_unix_ns`: when
    this version was made; the lines of `watch` have this time, and it never goes back from one to
    the next. `sentences`: with the marks of `ddtop.say.said`, and their times (unix ns), which are
    never changed; other events than findings have only one.

    `finding`: the most complete version of it. `over_unix_ns`: when it cleared, None until then.
    `closed`: it ended with the job. `ranks`, `world_size`: of ranks that joined, ended or were
    asked for stacks. `ended`: how the job ended. `attempt`, `progress`: of the training when it was
    noticed. `since_unix_ns`: when it began, if that was before the first look.
    """

    what: str
    key: Hashable
    began_unix_ns: int
    noticed_unix_ns: int
    sentences: tuple[tuple[int, str], ...]
    event: str = ""
    ranks: tuple[int, ...] = ()
    world_size: int = 0
    finding: Finding | None = None
    over_unix_ns: int | None = None
    closed: bool = False
    ended: Ended | None = None
    job: str = ""
    attempt: int = 0
    progress: TrainingProgress | None = None
    since_unix_ns: int | None = None

    @property
    def time_unix_ns(self) -> int:
        """`noticed_unix_ns`, by the name that it has in JSON."""
        return self.noticed_unix_ns

    @property
    def sentence(self) -> str:
        """The newest sentence, without its duration."""
        return without_age(self.sentences[-1][1])

    @property
    def stands(self) -> bool:
        """It is a finding that has not cleared."""
        return self.what == FINDING and self.over_unix_ns is None

    @property
    def text(self) -> str:
        """The text after the name of the event, as `ddtop watch` prints it."""
        began = self.since_unix_ns
        return self._text if began is None else f"{self._text}, since {units.clock(began)}"

    @property
    def _text(self) -> str:
        if self.finding is not None:
            return self._of_finding(self.finding)
        if self.ended is not None:
            at = self.progress and progress_text(only_steps(self.progress))
            return clean(self.ended.reason) + (f", at {clean(at)}" if at else "")
        if self.what == JOIN:
            attempt = f" (attempt {self.attempt})" if self.attempt else ""
            return f"{ranks_text(self.ranks, 6)} of {self.world_size}{attempt}"
        return _LEADS.get(self.event, "") + self.sentence

    def _of_finding(self, finding: Finding) -> str:
        kind = f"{finding.severity} {clean(finding.kind)}"
        if self.over_unix_ns is None:
            return f"{kind}: {clean(finding.summary)}"
        stood_s = (self.over_unix_ns - self.began_unix_ns) / units.SECOND_NS
        return f"{kind}{of_ranks(finding)}, after {units.duration(max(stood_s, 0.0))}"


Fact = tuple[Kind, tuple[int, ...], str | None]


def fact_of(finding: Finding) -> Fact:
    """The key by which a finding is the same for a person.

    A crash is one crash, whether its peers still wait in a group or have ended too. Only findings
    without a rank at fault are distinguished by their group.
    """
    return (finding.kind, finding.ranks, None if finding.ranks else finding.group)


def appeared(finding: Finding, now_unix_ns: int, attempt: int = 0) -> Event:
    """A finding that is seen for the first time."""
    since = finding.since_unix_ns
    return Event(
        FINDING,
        (FINDING, attempt, fact_of(finding), since),
        since,
        now_unix_ns,
        ((max(now_unix_ns, since), finding.sentence),),
        APPEARED,
        finding=finding,
        attempt=attempt,
    )


def at_once(
    what: str, key: Hashable, unix_ns: int, text: str, ranks: tuple[int, ...] = (), event: str = ""
) -> Event:
    """An event that begins, and is over, at one moment."""
    return Event(what, key, unix_ns, unix_ns, ((unix_ns, text),), event, ranks)


def without_age(text: str) -> str:
    """A finding's sentence without its duration. Next to the time of its beginning, a duration from
    another moment would be contradictory."""
    return clean(without(text, LASTS))


def over_text(finding: Finding) -> str:
    """`over: rank-stopped of rank 1`."""
    return f"over: {clean(finding.kind)}{of_ranks(finding)}"


def of_ranks(finding: Finding) -> str:
    """` of rank 1`; empty if no rank is at fault."""
    return f" of {ranks_text(finding.ranks, 6)}" if finding.ranks else ""


# -- The events as rows


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the events: the beginning or the end of one."""

    event: Event
    over: bool = False

    @property
    def unix_ns(self) -> int:
        """The time of the beginning or the end."""
        return (self.event.over_unix_ns or 0) if self.over else self.event.began_unix_ns


def rows_of(events: Sequence[Event]) -> list[EventRow]:
    """All beginnings and ends, in the order of time."""
    rows = [EventRow(event) for event in events]
    rows += [
        EventRow(event, True)
        for event in events
        if event.over_unix_ns is not None and not event.closed
    ]
    rows.sort(key=lambda row: row.unix_ns)
    return rows


# -- Actions that people requested on ranks


BY_MOST = 4
"""Requesters that are named."""


def order_text(order: Order) -> str:
    """`ada@node0 pid 4711 (controller, from 127.0.0.1) had SIGTERM sent to rank 3: ...`."""
    by = ", ".join(clean(requester) for requester in order.by[:BY_MOST]) or "somebody"
    if len(order.by) > BY_MOST:
        by += f" and {len(order.by) - BY_MOST} more"
    ranks = clean(f"ranks {order.ranks}" if order.ranks else "all ranks")
    what = {
        "stacks": "asked for stacks of",
        "native": "asked for native stacks of",
        "stacks-by-signal": "asked for stacks by signal of",
        "signal": "asked for a signal to",
        "mute": "muted",
    }
    ending = f": {'' if order.ok else 'refused, '}{clean(order.text)}" if order.text else ""
    return f"{by} {what.get(order.what, 'gave an order to')} {ranks}{ending}"


# -- The events of `ddtop watch`, each as a line of text or a JSON object (`ddtop.event/1`)


EVENT_SCHEMA = "ddtop.event/1"


def event_line(event: Event) -> str:
    """`12:03:41 appeared critical not-in-collective: rank 2 has been ...`, with the local time."""
    return f"{units.clock(event.noticed_unix_ns)} {event.event} {event.text}"


def event_json(event: Event, job: str, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """One event with every key; null (or no rank) if it does not apply to the event.

    `snapshot`: for the purpose of a finding's group. `ranks` of `joined` are the new ranks; empty
    if contact was lost and is back.
    """
    return {
        "schema": EVENT_SCHEMA,
        "time_unix_ns": event.noticed_unix_ns,
        "event": event.event,
        "job": job,
        "attempt": event.attempt,
        "text": event.text,
        "finding": finding_json(event.finding, snapshot) if event.finding is not None else None,
        "ranks": list(event.ranks),
        "ended": ended_json(event.ended),
        "progress": progress_json(event.progress),
    }
