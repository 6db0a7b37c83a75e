"""What happened to a job: the log compares one look after the other, and keeps every event.

`Judge` decides which findings are shown; these are only the differences.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace

from ddtop.diagnosis.finding import SEVERITIES, Finding, Verdict
from ddtop.follow.look import Look
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.present.events.event import (
    APPEARED,
    CLEARED,
    CONTACT,
    END,
    ENDED,
    JOB,
    JOIN,
    JOINED,
    LOST,
    ORDER,
    ORDERED,
    RAISED,
    RESTARTED,
    STACKS,
    Event,
    EventRow,
    Fact,
    appeared,
    at_once,
    fact_of,
    order_text,
    over_text,
    rows_of,
    without_age,
)
from ddtop.present.events.joins import Joins
from ddtop.present.events.losses import Losses
from ddtop.present.now import end_text
from ddtop.present.text import clean
from ddtop.say.said import LASTS, NUMBER, TIME, without
from ddtop.say.topics.stragglers import NOT_MEASURED
from ddtop.wire.records import OF_LOOKS
from ddtop.words import units
from ddtop.words.sentences import ranks_text

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
        found: list[Event] = []
        lost = look.contact if snapshot.live else None
        # While a relay is silent, the facts are those of its last report.
        if snapshot is not self._last and (lost is None or self._last is None):
            found += self._compared(snapshot, look.verdict)
        if lost is not None:
            found += self._lost(lost, look.contact_age_s or 0.0, snapshot)
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
            yield at_once(RESTARTED, (RESTARTED, attempt), at, f"restarted: attempt {attempt}")

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
