"""What happened to a job: one log, which `ddtop watch`, the screen and the report read.

`Judge` decides which findings are shown; the events are only the differences between looks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddtop.diagnosis.finding import SEVERITIES, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.follow.look import Look
from ddtop.model.facts import Ended, RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.present.documents import ended_json, finding_json, progress_json
from ddtop.present.now import end_text
from ddtop.present.text import clean
from ddtop.say.said import LASTS, NUMBER, TIME, without
from ddtop.say.topics.stragglers import NOT_MEASURED
from ddtop.wire.records import OF_LOOKS, HostState, Order, TrainingProgress
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


# -- Which ranks joined, and when


TOGETHER_NS = 10_000_000_000
"""Ranks that join within this time have joined together."""
_Joined = dict[tuple[int, int, int], int]
"""(attempt, rank, pid) -> when it joined (unix ns)."""


class Joins:
    """The processes that have joined as a rank."""

    def __init__(self) -> None:
        self._joined: _Joined = {}
        self._world_sizes: dict[int, int] = {}
        self._searched_for: tuple[object, ...] = ()
        self._last: Snapshot | None = None
        self._together: tuple[Event, ...] | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """One event for ranks that joined together."""
        if self._together is None:
            self._together = tuple(self._events())
        return self._together

    def take(self, snapshot: Snapshot, first_unix_ns: int) -> Iterator[Event]:
        """The ranks that are new since the last look, as one event. `first_unix_ns`: the time of
        the first look. It searches only if the counts have changed: there may be 10,000."""
        subject = (snapshot.run, snapshot.attempt, snapshot.world_size, snapshot.reporting)
        new = self._search(snapshot, first_unix_ns) if subject != self._searched_for else {}
        self._searched_for, self._last = subject, snapshot
        if new:
            self._world_sizes[snapshot.attempt] = snapshot.world_size
            self._joined.update(new)
            self._together = None
            ranks = (rank for _, rank, _ in new)
            event = self._event(snapshot.attempt, min(new.values()), ranks)
            yield replace(event, noticed_unix_ns=snapshot.time_unix_ns)

    def absorb(self, earlier: Joins) -> None:
        """Take over what an earlier log knows. It has seen when these ranks joined."""
        self._joined.update(earlier._joined)
        self._world_sizes = earlier._world_sizes | self._world_sizes
        self._together = None

    def _search(self, snapshot: Snapshot, first_unix_ns: int) -> _Joined:
        attempt, new = snapshot.attempt, {}
        for rank in snapshot.ranks:
            if rank.hello is None or (attempt, rank.rank, rank.hello.pid) in self._joined:
                continue
            started_unix_ns = rank.hello.started_unix_ns or snapshot.time_unix_ns
            at = self._when(attempt, started_unix_ns, first_unix_ns)
            new[attempt, rank.rank, rank.hello.pid] = at
        return new

    def _when(self, attempt: int, started_unix_ns: int, first_unix_ns: int) -> int:
        """A process that was there at the first look joined when it started, however late it is
        heard. A later one joined after the last look without it."""
        last = self._last
        if last is None or (last.attempt == attempt and started_unix_ns <= first_unix_ns):
            return started_unix_ns
        return max(started_unix_ns, last.time_unix_ns)

    def _events(self) -> Iterator[Event]:
        together: list[tuple[int, int, set[int]]] = []
        in_order = sorted((attempt, at, rank) for (attempt, rank, _), at in self._joined.items())
        for attempt, at, rank in in_order:
            last = together[-1] if together else None
            # A rank that is there already: another process has taken its place.
            if last is None or attempt != last[0] or at - last[1] > TOGETHER_NS or rank in last[2]:
                together.append((attempt, at, set()))
            together[-1][2].add(rank)
        return (self._event(*one) for one in together)

    def _event(self, attempt: int, unix_ns: int, joined: Iterable[int]) -> Event:
        ranks, world_size = tuple(sorted(joined)), self._world_sizes[attempt]
        return Event(
            JOIN,
            (JOIN, attempt, unix_ns),
            unix_ns,
            unix_ns,
            ((unix_ns, f"{ranks_text(ranks, 6)} of {world_size:,} joined"),),
            JOINED,
            ranks,
            world_size,
            attempt=attempt,
        )


# -- What relays refused, could not read or had to drop: one event as long as it continues


APART_NS = 60_000_000_000
"""After a minute without losses, the next loss is a new event. A viewer with a wrong key tries
every two seconds."""
SPANS_MOST = 100
"""Events kept of one kind of loss on one host, the newest."""
REFUSED, GARBLED, DROPPED, UNSENT = "refused", "garbled", "dropped", "unsent"
_TEXTS = {
    REFUSED: ("connection", "refused: wrong key, no key, or not ddtop"),
    GARBLED: ("record", "could not be read"),
    DROPPED: ("record", "dropped: a receiver was too slow"),
    UNSENT: ("record", "did not reach the hub"),
}
_Of = tuple[str, str]
"""The host's identity, or its name if that is not known, and the kind of loss."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Losses without a minute's pause between them. `base`: the relay's count before, `now`: the
    count at `last_unix_ns`."""

    host: str
    base: int
    now: int
    since_unix_ns: int
    last_unix_ns: int


class Losses:
    """The losses of all hosts. Costs a few µs per host and look."""

    def __init__(self) -> None:
        self._spans: dict[_Of, list[_Span]] = {}

    @property
    def events(self) -> Iterator[Event]:
        """One event for each span."""
        for of, spans in self._spans.items():
            for span in spans:
                at, lost = span.since_unix_ns, span.now - span.base
                if lost > 0:
                    noun, end = _TEXTS[of[1]]
                    text = f"{span.host}: {units.plural(lost, noun)} {end}"
                    yield at_once(LOSS, (LOSS, of, at), at, text)

    def take(self, snapshot: Snapshot) -> bool:
        """Add the losses since the last look; at the first look, all that were ever counted.
        Returns whether there are any."""
        now, found = snapshot.time_unix_ns, False
        for number, host in enumerate(snapshot.hosts):
            if not _counts_anything(host):
                continue
            name = snapshot.seen[number].sender if number < len(snapshot.seen) else host.host
            for kind, count in _counts(host):
                spans = self._spans.setdefault((name, kind), [])
                if count <= 0 or (spans and count == spans[-1].now):
                    continue
                found = True
                _add(spans, clean(host.host), count, now)
        return found

    def absorb(self, earlier: Losses, first_unix_ns: int) -> None:
        """Take over the spans of an earlier log. What it has counted is no part of the sums of the
        first look, which was at `first_unix_ns`."""
        for of, before in earlier._spans.items():
            spans = self._spans.get(of, [])
            sums_up = spans and spans[0].since_unix_ns == first_unix_ns
            if before and sums_up and before[-1].now <= spans[0].now:
                spans[0] = replace(spans[0], base=before[-1].now)
            self._spans[of] = (before + spans)[-SPANS_MOST:]


def _add(spans: list[_Span], host: str, count: int, now_unix_ns: int) -> None:
    last = spans[-1] if spans else None
    if last is None or count < last.now:
        # A new relay counts from zero.
        spans.append(_Span(host, 0, count, now_unix_ns, now_unix_ns))
    elif now_unix_ns - last.last_unix_ns > APART_NS:
        spans.append(_Span(host, last.now, count, now_unix_ns, now_unix_ns))
    else:
        spans[-1] = replace(last, now=count, last_unix_ns=now_unix_ns)
    del spans[:-SPANS_MOST]


def _counts_anything(host: HostState) -> bool:
    """False for most hosts. It is called for 1,250 hosts at each look."""
    unsent = host.hub is not None and host.hub.dropped
    return bool(host.refused or host.garbled or host.dropped or unsent)


def _counts(host: HostState) -> tuple[tuple[str, int], ...]:
    unsent = host.hub.dropped if host.hub is not None else 0
    return (
        (REFUSED, host.refused),
        (GARBLED, host.garbled),
        (DROPPED, host.dropped),
        (UNSENT, unsent),
    )


# -- The log


SENTENCES_MOST = 24
"""Sentences kept of one finding: the first, and the newest."""
SAME_NS = 2_000_000_000
"""A new relay reports the beginning of a fact only to the second."""
FOLD_FROM = 4
"""From this many ranks on that end in the same way at the same look, there is one event for all."""


class EventLog:
    """The events from many looks at a job; at most `most`, the oldest are dropped first.

    `fold`: many ranks that end in the same way make one event. `forgotten`: how many events were
    dropped. `began_unix_ns`: the time of the first look.
    """

    def __init__(self, policy: Policy, job: str = "", most: int = 2000, fold: bool = True) -> None:
        self.forgotten = 0
        self.began_unix_ns: int | None = None
        self._policy, self._job, self._most, self._fold = policy, job, most, fold
        self._kept: dict[Hashable, Event] = {}
        self._facts: dict[tuple[int, Fact], Hashable] = {}
        """(attempt, fact) -> the key of its newest event."""
        self._seen: set[Hashable] = set()
        self._joins, self._losses = Joins(), Losses()
        self._last: Snapshot | None = None
        self._lost_unix_ns: int | None = None
        self._settled_unix_ns = self._told_unix_ns = 0
        self._sorted: tuple[Event, ...] | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """The newest version of each, in the order in which they began."""
        if self._sorted is None:
            found = [*self._kept.values(), *self._joins.events, *self._losses.events]
            self._sorted = tuple(sorted(found, key=lambda event: event.began_unix_ns))
        return self._sorted

    def find(self, key: Hashable) -> Event | None:
        """The event of that key."""
        return next((event for event in self.events if event.key == key), None)

    def of(self, finding: Finding) -> Event | None:
        """The event of a current finding."""
        return self._standing(self._last.attempt, finding) if self._last is not None else None

    def _standing(self, attempt: int, finding: Finding) -> Event | None:
        known = self._kept.get(self._facts.get((attempt, fact_of(finding))))
        return known if known is not None and known.stands else None

    def take(self, look: Look) -> list[Event]:
        """Add one look. Returns the events that `ddtop watch` prints, in the order of their times.

        It costs a few ms at 10,000 ranks, and nothing for a look that was added before.
        """
        snapshot = look.snapshot
        if snapshot is None:
            return []
        first = not self._facts and not self._joins.events
        if look.contact is not None and snapshot.live:
            found = list(self._lost(look.contact, look.contact_age_s or 0.0, snapshot))
        elif snapshot is self._last:
            return []
        else:
            found = self._compared(snapshot, look.verdict)
        for event in found:
            self._put(event)
        # A reader expects the times of the lines in order. But the first look at a job brings
        # orders of the past, and the last state of a job is older than the loss of its relay.
        told = sorted((one for one in found if one.event), key=lambda one: one.noticed_unix_ns)
        return [self._told(event, snapshot, first) for event in told]

    def _told(self, event: Event, snapshot: Snapshot, first: bool) -> Event:
        self._told_unix_ns = max(self._told_unix_ns, event.noticed_unix_ns)
        young_ns = self._policy.still_limit_s * units.SECOND_NS
        # A reader would take the time of the first look for that of the fault.
        old = first and event.noticed_unix_ns - event.began_unix_ns >= young_ns
        return replace(
            event,
            noticed_unix_ns=self._told_unix_ns,
            since_unix_ns=event.began_unix_ns if old and event.ended is None else None,
            attempt=snapshot.attempt,
            progress=snapshot.progress,
            job=self._job,
        )

    # -- What one look adds

    def _compared(self, snapshot: Snapshot, verdict: Verdict) -> list[Event]:
        self.began_unix_ns = self.began_unix_ns or snapshot.time_unix_ns
        if self._losses.take(snapshot):
            self._sorted = None
        found = [
            *self._contact_again(snapshot),
            *self._restarted(snapshot),
            *self._joins.take(snapshot, self.began_unix_ns),
            *self._cleared(snapshot, verdict),
            *self._found(snapshot, verdict),
            *self._ranks(snapshot),
            *self._orders(snapshot),
            *self._job_ended(snapshot),
        ]
        self._last = snapshot
        return found

    def _lost(self, why: str, age_s: float, snapshot: Snapshot) -> Iterator[Event]:
        if self._lost_unix_ns is None:
            self._lost_unix_ns = snapshot.time_unix_ns
            at = snapshot.time_unix_ns + int(age_s * units.SECOND_NS)
            yield at_once(CONTACT, (LOST, at), at, clean(why), event=LOST)

    def _contact_again(self, snapshot: Snapshot) -> Iterator[Event]:
        lost, self._lost_unix_ns = self._lost_unix_ns, None
        # The last state of a job that ended meanwhile does not count as contact.
        if lost is None or snapshot.ended is not None:
            return
        now = snapshot.time_unix_ns
        self._settled_unix_ns = now + int(self._policy.contact_settles_s * units.SECOND_NS)
        silent = units.duration(max(now - lost, 0) / units.SECOND_NS)
        text = f"the relay reports after {silent} of silence"
        yield at_once(CONTACT, (CONTACT, now), now, text, event=JOINED)

    def _restarted(self, snapshot: Snapshot) -> Iterator[Event]:
        attempt, at = snapshot.attempt, snapshot.time_unix_ns
        if self._last is not None and attempt > self._last.attempt:
            text = f"restarted: attempt {attempt}"
            yield at_once(RESTARTED, (RESTARTED, attempt), at, text)

    def _cleared(self, snapshot: Snapshot, verdict: Verdict) -> Iterator[Event]:
        now, ended = snapshot.time_unix_ns, snapshot.ended is not None
        # After a relay was silent for a while, its ranks report again one by one: a finding that is
        # missing meanwhile is not over.
        if now < self._settled_unix_ns and not ended:
            return
        shown = {(snapshot.attempt, fact_of(finding)) for finding in verdict.findings}
        for fact in self._facts.keys() - shown:
            known = self._kept.get(self._facts[fact])
            if known is not None and known.stands:
                # All findings end with the job, which does not mean that they were solved.
                name = "" if ended else CLEARED
                yield replace(
                    known, event=name, noticed_unix_ns=now, over_unix_ns=now, closed=ended
                )

    def _found(self, snapshot: Snapshot, verdict: Verdict) -> Iterator[Event]:
        # The worst comes first, and stands for others about the same fact.
        worst: dict[Fact, Finding] = {}
        for finding in verdict.findings:
            worst.setdefault(fact_of(finding), finding)
        for finding in worst.values():
            known = self._standing(snapshot.attempt, finding)
            if known is None:
                yield self._appeared(snapshot, finding)
            elif known.finding is not None and known.finding != finding:
                yield _changed(known, known.finding, finding, snapshot.time_unix_ns)

    def _appeared(self, snapshot: Snapshot, finding: Finding) -> Event:
        now, since = snapshot.time_unix_ns, finding.since_unix_ns
        fact = snapshot.attempt, fact_of(finding)
        before = self._kept.get(self._facts.get(fact))
        if before is not None and abs(before.began_unix_ns - since) <= SAME_NS:
            # The same fact, which was out of sight for a while.
            return replace(
                before,
                event=APPEARED,
                noticed_unix_ns=now,
                finding=finding,
                over_unix_ns=None,
                closed=False,
            )
        event = appeared(finding, now, snapshot.attempt)
        self._facts[fact] = event.key
        return event

    def _ranks(self, snapshot: Snapshot) -> Iterator[Event]:
        gone: dict[str, list[RankFacts]] = {}
        dumps: dict[str, list[RankFacts]] = {}
        for rank in snapshot.ranks:
            gone_by, raised, stacks = rank.process.exit, rank.reported.exception, rank.dump.stacks
            if gone_by is None and raised is None and stacks is None:
                continue
            if (
                gone_by is not None
                and rank.process.exit_unix_ns
                and self._first((END, rank.rank, gone_by.pid))
            ):
                gone.setdefault(end_text(gone_by), []).append(rank)
            if raised is not None and self._first((RAISED, rank.rank, raised.unix_ns)):
                text = clean(f"rank {rank.rank} raised {raised.type}: {raised.text}")
                key = (RAISED, rank.rank, raised.unix_ns)
                yield at_once(RAISED, key, raised.unix_ns, text, (rank.rank,))
            if stacks is not None and stacks.request != OF_LOOKS:
                dumps.setdefault(stacks.request, []).append(rank)
        for text, ranks in gone.items():
            yield from self._ended(text, ranks)
        for request, ranks in dumps.items():
            yield from self._dumped(request, ranks)

    def _ended(self, how: str, ranks: list[RankFacts]) -> Iterator[Event]:
        if self._fold and len(ranks) > FOLD_FROM:
            at = min(rank.process.exit_unix_ns or 0 for rank in ranks)
            numbers = tuple(rank.rank for rank in ranks)
            text = f"{ranks_text(numbers, 6)} ended: {how}"
            yield at_once(END, (END, numbers, at), at, text, numbers)
            return
        for rank in ranks:
            at = rank.process.exit_unix_ns or 0
            pid = rank.process.exit.pid if rank.process.exit is not None else 0
            text = f"rank {rank.rank} (pid {pid}) ended: {how}"
            yield at_once(END, (END, rank.rank, pid), at, text, (rank.rank,))

    def _dumped(self, request: str, ranks: list[RankFacts]) -> Iterator[Event]:
        known = self._kept.get((STACKS, request))
        if known is not None and len(known.ranks) >= len(ranks):
            return
        answers = [rank.dump.stacks for rank in ranks if rank.dump.stacks is not None]
        at = min(answer.taken_unix_ns for answer in answers)
        automatic = any(answer.automatic for answer in answers)
        why = ", because ranks made no progress" if automatic else ""
        numbers = tuple(rank.rank for rank in ranks)
        text = f"stacks were taken{why}: {ranks_text(numbers, 6)}"
        yield at_once(STACKS, (STACKS, request), at, text, numbers)

    def _orders(self, snapshot: Snapshot) -> Iterator[Event]:
        for at, order in snapshot.orders:
            if self._first((ORDER, at, order)):
                yield at_once(ORDER, (ORDER, at, order), at, order_text(order), event=ORDERED)

    def _job_ended(self, snapshot: Snapshot) -> Iterator[Event]:
        ended = snapshot.ended
        if ended is not None and self._first((JOB, ended.time_unix_ns)):
            text = f"the job ended: {clean(ended.reason)}"
            event = at_once(JOB, (JOB, ended.time_unix_ns), ended.time_unix_ns, text, event=ENDED)
            yield replace(event, noticed_unix_ns=snapshot.time_unix_ns, ended=ended)

    def _first(self, key: Hashable) -> bool:
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    # -- What is kept

    def _put(self, event: Event) -> None:
        self._sorted = None
        if event.what == JOIN:
            # `Joins` keeps them: more ranks may join the same event.
            return
        self._kept[event.key] = event
        if len(self._kept) > self._most:
            oldest = min(self._kept.values(), key=lambda one: (one.stands, one.began_unix_ns))
            del self._kept[oldest.key]
            self.forgotten += 1

    def absorb(self, earlier: EventLog) -> None:
        """Add the events of an earlier log. A finding that is in both becomes one event."""
        if self.began_unix_ns is None:
            self.__dict__.update(earlier.__dict__)
            return
        self._sorted = None
        self._joins.absorb(earlier._joins)
        self._losses.absorb(earlier._losses, self.began_unix_ns)
        for event in earlier._kept.values():
            self._absorb(event, self.began_unix_ns)

    def _absorb(self, event: Event, began_unix_ns: int) -> None:
        known = self._kept.get(event.key)
        if known is None and event.finding is not None and event.stands:
            known = self._standing(event.attempt, event.finding)
        if known is None:
            self._put(replace(event, over_unix_ns=began_unix_ns) if event.stands else event)
        elif event.began_unix_ns <= known.began_unix_ns:
            sentences = event.sentences
            for at, text in known.sentences:
                sentences = _with_sentence(sentences, max(at, began_unix_ns), text)
            self._put(replace(known, began_unix_ns=event.began_unix_ns, sentences=sentences))


def _changed(known: Event, before: Finding, finding: Finding, now_unix_ns: int) -> Event:
    """The next version of a finding that stands. It appears again if it gets worse: one that works
    in bursts is now a warning, now critical, and that is one hang."""
    worse = SEVERITIES.index(finding.severity) < SEVERITIES.index(before.severity)
    sentences = known.sentences
    if _is_news(before, finding):
        sentences = _with_sentence(sentences, now_unix_ns, finding.sentence)
    return replace(
        known,
        event=APPEARED if worse else "",
        noticed_unix_ns=now_unix_ns,
        finding=_fuller(before, finding),
        sentences=sentences,
    )


def _with_sentence(
    sentences: tuple[tuple[int, str], ...], now_unix_ns: int, text: str
) -> tuple[tuple[int, str], ...]:
    """A sentence in which only a measured number has changed counts as the same and is not added. A
    sentence that knows less than the previous one is left out."""
    if _gist(text) == _gist(sentences[-1][1]):
        return sentences
    if any(NOT_MEASURED in text and NOT_MEASURED not in earlier for _, earlier in sentences):
        return sentences
    sentences = (*sentences, (now_unix_ns, text))
    if len(sentences) <= SENTENCES_MOST:
        return sentences
    return (sentences[0], *sentences[-SENTENCES_MOST + 1 :])


def _is_news(known: Finding, finding: Finding) -> bool:
    """Whether its sentence may say something new. That of a plugin's rule may have another number
    at each look: nobody knows which part that is."""
    return finding.said is not None or (
        (known.severity, known.victims) != (finding.severity, finding.victims)
    )


def _gist(text: str) -> str:
    return without(text, LASTS, TIME, NUMBER)


def _fuller(known: Finding, finding: Finding) -> Finding:
    """The more complete one: a finding that is about to clear loses victims and causes."""
    if known.severity != finding.severity:
        return min(known, finding, key=lambda each: SEVERITIES.index(each.severity))
    if len(finding.victims) < len(known.victims):
        return known
    fewer = NOT_MEASURED in finding.summary and NOT_MEASURED not in known.summary
    return known if fewer else finding


# -- The events as the report lists them


ListedEvent = tuple[int, str]
"""When something happened (unix ns), and what, as a line."""


def listed(looks: Iterable[tuple[Snapshot, Verdict]], policy: Policy) -> tuple[ListedEvent, ...]:
    """The events of a job that was looked at several times, in order of time.

    A finding begins when its fact began, and ends at the first look without it.
    """
    log = EventLog(policy, most=100_000, fold=False)
    for snapshot, verdict in looks:
        log.take(Look(snapshot, verdict))
    return tuple(sorted({(row.unix_ns, _listed_text(row)) for row in rows_of(log.events)}))


def _listed_text(row: EventRow) -> str:
    event, finding = row.event, row.event.finding
    if finding is None:
        return event.sentence
    if row.over:
        return over_text(finding)
    return f"{finding.severity}: {clean(finding.kind)}: {without_age(event.sentences[0][1])}"


def timeline_lines(happened: Iterable[ListedEvent]) -> list[str]:
    """One line per event, with the local time."""
    return [f"{units.clock(at)}  {text}" for at, text in happened]
