"""The events of a job as text and JSON: those of `ddtop watch`, and the list on the screen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ddtop.diagnosis.finding import SEVERITIES, Finding, Verdict
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

# -- Actions that people requested on ranks, as a sentence for the events, `watch` and the report


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


# -- What changed between looks at a job: the events of `ddtop watch`
#
# `Judge` decides which findings are shown; these are only the differences. After a relay was silent
# for a while, its ranks report again one by one: a finding that is missing meanwhile is not over.


APPEARED, CLEARED, JOINED, LOST, ENDED, ORDERED = (
    "appeared",
    "cleared",
    "joined",
    "lost",
    "ended",
    "ordered",
)
_Key = tuple[int, str, tuple[int, ...], str | None]


@dataclass(frozen=True, slots=True)
class Event:
    """One event, at `time_unix_ns` of the relay's clock, which is that of rank 0's host.

    `finding`: of `appeared` and `cleared`. `ranks`: the new ranks of `joined`; empty if the relay
    reports again. `order`: of `ordered`, what a person requested. `ended`: of `ended`. `contact`:
    of `lost`, why the facts are not live. `seconds`: how long the finding stood, or the relay was
    not heard. `progress`: how far the training was. `since_unix_ns`: it had begun before the first
    look.
    """

    event: str
    time_unix_ns: int
    attempt: int = 0
    finding: Finding | None = None
    ranks: tuple[int, ...] = ()
    world_size: int = 0
    ended: Ended | None = None
    contact: str | None = None
    seconds: float | None = None
    order: Order | None = None
    progress: TrainingProgress | None = None
    job: str = ""
    since_unix_ns: int | None = None

    @property
    def text(self) -> str:
        """The text after the name of the event, as `ddtop watch` prints it."""
        began = self.since_unix_ns
        return self._text if began is None else f"{self._text}, since {units.clock(began)}"

    @property
    def _text(self) -> str:  # noqa: PLR0911 - one answer an event
        finding = self.finding
        if self.event == APPEARED and finding is not None:
            return f"{finding.severity} {clean(finding.kind)}: {clean(finding.summary)}"
        if self.event == CLEARED and finding is not None:
            of = f" of {ranks_text(finding.ranks, 6)}" if finding.ranks else ""
            return (
                f"{finding.severity} {clean(finding.kind)}{of}, after"
                f" {units.duration(self.seconds or 0.0)}"
            )
        if self.event == ENDED and self.ended is not None:
            at = self.progress and progress_text(only_steps(self.progress))
            return clean(self.ended.reason) + (f", at {clean(at)}" if at else "")
        if self.event == ORDERED and self.order is not None:
            return order_text(self.order)
        if self.event == JOINED and not self.ranks:
            return (
                f"again: the relay reports after {units.duration(self.seconds or 0.0)} of silence"
            )
        if self.event == JOINED:
            attempt = f" (attempt {self.attempt})" if self.attempt else ""
            return f"{ranks_text(self.ranks, 6)} of {self.world_size}{attempt}"
        return f"contact: {clean(self.contact or '')}"


class Changes:
    """What changed from look to look. A finding that gets worse appears again; one that gets milder
    does not."""

    def __init__(self, policy: Policy, job: str = "") -> None:
        self._policy, self._job = policy, job
        self._standing: dict[_Key, Finding] = {}
        self._joined: set[tuple[int, int]] = set()
        self._reported: set[tuple[int, Order]] = set()
        self._lost_unix_ns: int | None = None
        self._settled_unix_ns = self._told_unix_ns = 0

    def take(self, look: Look) -> list[Event]:
        """The changes that this look shows, in the order in which they are reported."""
        snapshot = look.snapshot
        if snapshot is None:
            return []
        now = snapshot.time_unix_ns
        if look.contact is not None:
            if self._lost_unix_ns is not None:
                return []
            self._lost_unix_ns = now
            at = self._told_unix_ns = now + int((look.contact_age_s or 0.0) * units.SECOND_NS)
            return [
                Event(
                    LOST,
                    at,
                    snapshot.attempt,
                    contact=look.contact,
                    progress=snapshot.progress,
                    job=self._job,
                )
            ]
        first = not self._joined and not self._standing
        changes = self._contact_again(snapshot)
        changes += self._ranks(snapshot)
        changes += self._orders(snapshot)
        changes += self._cleared_changes(snapshot, look.verdict)
        changes += self._appeared_changes(snapshot, look.verdict)
        if first:
            changes = [self._with_beginning(change, snapshot) for change in changes]
        if snapshot.ended is not None:
            changes.append(Event(ENDED, now, snapshot.attempt, ended=snapshot.ended))
        # A reader expects the times of the lines in order. But the first look at a job brings
        # orders of the past, and the last state of a job is older than the loss of its relay.
        changes.sort(key=lambda change: change.time_unix_ns)
        least = self._told_unix_ns
        self._told_unix_ns = max([least, *(change.time_unix_ns for change in changes)])
        return [
            replace(
                change,
                time_unix_ns=max(change.time_unix_ns, least),
                progress=snapshot.progress,
                job=self._job,
            )
            for change in changes
        ]

    def _with_beginning(self, change: Event, snapshot: Snapshot) -> Event:
        """A reader would take the time of the first look for that of the fault."""
        began = change.finding.since_unix_ns if change.finding is not None else None
        began = snapshot.first_hello_unix_ns if change.event == JOINED else began
        young_ns = self._policy.still_limit_s * units.SECOND_NS
        old = began is not None and change.time_unix_ns - began >= young_ns
        return replace(change, since_unix_ns=began) if old else change

    def _contact_again(self, snapshot: Snapshot) -> list[Event]:
        lost, self._lost_unix_ns = self._lost_unix_ns, None
        # The last state of a job that ended meanwhile does not count as contact.
        if lost is None or snapshot.ended is not None:
            return []
        now = snapshot.time_unix_ns
        self._settled_unix_ns = now + int(self._policy.contact_settles_s * units.SECOND_NS)
        silent_s = max(now - lost, 0) / units.SECOND_NS
        return [
            Event(JOINED, now, snapshot.attempt, world_size=snapshot.world_size, seconds=silent_s)
        ]

    def _ranks(self, snapshot: Snapshot) -> list[Event]:
        attempt = snapshot.attempt
        came = tuple(
            rank.rank
            for rank in snapshot.ranks
            if rank.hello is not None and not rank.gone and (attempt, rank.rank) not in self._joined
        )
        if not came:
            return []
        self._joined.update((attempt, rank) for rank in came)
        return [
            Event(
                JOINED, snapshot.time_unix_ns, attempt, ranks=came, world_size=snapshot.world_size
            )
        ]

    def _orders(self, snapshot: Snapshot) -> list[Event]:
        new = [order for order in snapshot.orders if order not in self._reported]
        self._reported = set(snapshot.orders)
        return [Event(ORDERED, at, snapshot.attempt, order=order) for at, order in new]

    def _cleared_changes(self, snapshot: Snapshot, verdict: Verdict) -> list[Event]:
        attempt, now = snapshot.attempt, snapshot.time_unix_ns
        shown = {_key(attempt, finding) for finding in verdict.findings}
        # All findings end with the job, which does not mean that they were solved.
        if snapshot.ended is not None or now < self._settled_unix_ns:
            return []
        over = [self._standing.pop(key) for key in list(self._standing) if key not in shown]
        return [
            Event(
                CLEARED,
                now,
                attempt,
                finding=finding,
                seconds=max(now - finding.since_unix_ns, 0) / units.SECOND_NS,
            )
            for finding in over
        ]

    def _appeared_changes(self, snapshot: Snapshot, verdict: Verdict) -> list[Event]:
        changes, attempt, now = [], snapshot.attempt, snapshot.time_unix_ns
        for finding in verdict.findings:
            key = _key(attempt, finding)
            known = self._standing.get(key)
            worse = known is None or SEVERITIES.index(finding.severity) < SEVERITIES.index(
                known.severity
            )
            if worse:
                changes.append(Event(APPEARED, now, attempt, finding=finding))
            # The current sentence, with the worst severity so far.
            severity = finding.severity if worse or known is None else known.severity
            self._standing[key] = replace(finding, severity=severity)
        return changes


def _key(attempt: int, finding: Finding) -> _Key:
    """The key by which a finding is the same for a person.

    A crash is one crash, whether its peers still wait in a group or have ended too. Only findings
    without a rank at fault are distinguished by their group.
    """
    return (attempt, finding.kind, finding.ranks, None if finding.ranks else finding.group)


# -- The events of `ddtop watch`, each as a line of text or a JSON object (`ddtop.event/1`)


EVENT_SCHEMA = "ddtop.event/1"


def event_line(change: Event) -> str:
    """`12:03:41 appeared critical not-in-collective: rank 2 has been ...`, with the local time."""
    return f"{units.clock(change.time_unix_ns)} {change.event} {change.text}"


def event_json(change: Event, job: str, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """One event with every key; null (or no rank) if it does not apply to the event.

    `snapshot`: for the purpose of a finding's group. `ranks` of `joined` are the new ranks; empty
    if contact was lost and is back.
    """
    return {
        "schema": EVENT_SCHEMA,
        "time_unix_ns": change.time_unix_ns,
        "event": change.event,
        "job": job,
        "attempt": change.attempt,
        "text": change.text,
        "finding": (finding_json(change.finding, snapshot) if change.finding is not None else None),
        "ranks": list(change.ranks),
        "ended": ended_json(change.ended),
        "progress": progress_json(change.progress),
    }


# -- What relays refused, could not read or had to drop, as events: one entry as long as it
#    continues


APART_NS = 60_000_000_000
"""After a minute without losses, the next loss is a new entry. A viewer with a wrong key tries
every two seconds."""
REFUSED, GARBLED, DROPPED, UNSENT = "refused", "garbled", "dropped", "unsent"


@dataclass(frozen=True, slots=True)
class _Count:
    host: str
    base: int
    now: int
    since_unix_ns: int
    last_unix_ns: int


class Losses:
    """The last known counts of all hosts. Costs a few µs per host and look."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Count] = {}
        self._first: dict[tuple[str, str], _Count] = {}
        self._began_unix_ns: int | None = None

    def take(self, snapshot: Snapshot) -> Iterator[Entry]:
        """The losses since the last look; at the first look, all that were ever counted."""
        now = snapshot.time_unix_ns
        self._began_unix_ns = self._began_unix_ns or now
        for number, host in enumerate(snapshot.hosts):
            if not _counts_anything(host):
                continue
            name = snapshot.seen[number].sender if number < len(snapshot.seen) else host.host
            for kind, count in _counts(host):
                known = self._seen.get((name, kind))
                if count <= 0 or (known is not None and count == known.now):
                    continue
                # A new relay counts from zero again.
                if known is None or count < known.now:
                    known = _Count(clean(host.host), 0, count, now, now)
                elif now - known.last_unix_ns > APART_NS:
                    known = replace(
                        known, base=known.now, now=count, since_unix_ns=now, last_unix_ns=now
                    )
                else:
                    known = replace(known, now=count, last_unix_ns=now)
                self._seen[name, kind] = known
                if known.since_unix_ns == self._began_unix_ns:
                    self._first[name, kind] = known
                yield _loss((name, kind), known)

    def follow(self, earlier: Losses) -> Iterator[Entry]:
        """The sums of the first look without those in an earlier entry; no `words` if nothing
        remains."""
        for of, count in self._first.items():
            before = earlier._seen.get(of)
            if before is None or before.now > count.now:
                continue
            rest = replace(count, base=before.now)
            if self._seen[of] == count:
                self._seen[of] = rest
            yield _loss(of, rest)


def _loss(of: tuple[str, str], count: _Count) -> Entry:
    """`of`: the host's identity, or its name if that is not known, with the kind of loss."""
    at, lost = count.since_unix_ns, count.now - count.base
    words = ((at, f"{count.host}: {_words(of[1], lost)}"),) if lost > 0 else ()
    return Entry((LOSS, of, at), at, LOSS, words)


def _counts_anything(host: HostState) -> bool:
    """False for most hosts. It is called for 1,250 hosts at each look."""
    if host.refused or host.garbled or host.dropped:
        return True
    return host.hub is not None and bool(host.hub.dropped)


def _counts(host: HostState) -> tuple[tuple[str, int], ...]:
    unsent = host.hub.dropped if host.hub is not None else 0
    return (
        (REFUSED, host.refused),
        (GARBLED, host.garbled),
        (DROPPED, host.dropped),
        (UNSENT, unsent),
    )


def _words(kind: str, count: int) -> str:
    if kind == REFUSED:
        return f"{units.plural(count, 'connection')} refused: wrong key, no key, or not ddtop"
    frames = units.plural(count, "record")
    return {
        GARBLED: f"{frames} could not be read",
        DROPPED: f"{frames} dropped: a receiver was too slow",
        UNSENT: f"{frames} did not reach the hub",
    }[kind]


# -- The events of a job, one line each: findings that appeared and cleared, ranks that joined and
#    ended, restarts, dumps of stacks


FINDING, JOIN, END, RAISED, RESTARTED = "finding", "joined", "ended", "exception", "restart"
STACKS, CONTACT, JOB, LOSS, ORDER = "stacks", "contact", "job", "dropped", "order"
"""What an entry is about, as a row of the list says it."""
WORDS_MOST = 24
"""Sentences kept of one finding: the first, and the newest."""
SAME_NS = 2_000_000_000
"""A new relay reports the beginning of a fact only to the second."""
TOGETHER_NS = 10_000_000_000
"""Ranks that join within this time have joined together."""
FOLD_FROM = 4
"""From this many ranks on that end in the same way at the same look, there is one entry for all."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened at `unix_ns`.

    `unix_ns`: when the fact began. `words`: the sentences with the marks of `ddtop.say.said`, and
    their times (unix ns), which are never changed; other entries than findings have only one.
    `finding`: the most complete version of it. `over_unix_ns`: when it cleared, None until then.
    `closed`: it ended with the job or the attempt.
    """

    key: Hashable
    unix_ns: int
    what: str
    words: tuple[tuple[int, str], ...]
    ranks: tuple[int, ...] = ()
    finding: Finding | None = None
    over_unix_ns: int | None = None
    closed: bool = False

    @property
    def text(self) -> str:
        """The newest sentence, without its duration."""
        return without_age(self.words[-1][1])


class Timeline:
    """The entries from many looks at a job; at most `most`, the oldest are dropped first.

    `fold`: many ranks that end in the same way make one entry. `forgotten`: how many entries were
    dropped.
    """

    def __init__(self, most: int = 2000, fold: bool = True) -> None:
        self.forgotten = 0
        self.began_unix_ns: int | None = None
        self._most, self._fold = most, fold
        self._entries: dict[Hashable, Entry] = {}
        self._standing: dict[Hashable, Hashable] = {}
        self._latest: dict[Hashable, Hashable] = {}
        self._seen: set[Hashable] = set()
        self._attempt: int | None = None
        self._joined_for: tuple[object, ...] = ()
        self._last_joined: tuple[str, int, tuple[int, ...]] = (JOIN, 0, ())
        self._lost_unix_ns: int | None = None
        self._last: Snapshot | None = None
        self._losses = Losses()
        self._sorted: tuple[Entry, ...] | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """In the order of time, the newest last."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._entries.values(), key=lambda entry: entry.unix_ns))
        return self._sorted

    def find(self, key: Hashable) -> Entry | None:
        """The entry of that key."""
        return self._entries.get(key)

    def of(self, finding: Finding) -> Entry | None:
        """The entry of a current finding."""
        return self._entries.get(self._standing.get(finding.identity))

    def take(self, snapshot: Snapshot, verdict: Verdict) -> None:
        """Add one look. It costs a few ms at 10,000 ranks, and nothing for a look that was added
        before."""
        if snapshot is self._last:
            return
        if self.began_unix_ns is None:
            self.began_unix_ns = snapshot.time_unix_ns
        self._restart(snapshot)
        self._findings(snapshot, verdict)
        self._ranks(snapshot)
        for at, order in snapshot.orders:
            self._add(Entry((ORDER, at, order), at, ORDER, ((at, order_text(order)),)))
        for entry in self._losses.take(snapshot):
            self._put(entry) if entry.key in self._entries else self._add(entry)
        if snapshot.ended is not None:
            at = snapshot.ended.time_unix_ns
            self._add(
                Entry(
                    ("job", at), at, JOB, ((at, f"the job ended: {clean(snapshot.ended.reason)}"),)
                )
            )
        self._last = snapshot

    def contact(self, lost: str | None, now_unix_ns: int) -> None:
        """Note that the facts are live, or why they are not (`lost`), at this time of the job's
        clock."""
        if lost is not None and self._lost_unix_ns is None:
            self._lost_unix_ns = now_unix_ns
            self._add(
                Entry(("lost", now_unix_ns), now_unix_ns, CONTACT, ((now_unix_ns, clean(lost)),))
            )
        elif lost is None and self._lost_unix_ns is not None:
            silent = units.duration(max(now_unix_ns - self._lost_unix_ns, 0) / units.SECOND_NS)
            self._lost_unix_ns = None
            words = ((now_unix_ns, f"the relay reports again, after {silent} of silence"),)
            self._add(Entry(("heard", now_unix_ns), now_unix_ns, CONTACT, words))

    def absorb(self, earlier: Timeline) -> None:
        """Add the entries of an earlier timeline. A finding that is in both becomes one entry."""
        if self.began_unix_ns is None:
            self.__dict__.update(earlier.__dict__)
            return
        begin = self.began_unix_ns
        parts = self._absorb_joined(earlier, begin)
        self._absorb_losses(earlier)
        for key, entry in earlier._entries.items():
            if key in parts:
                continue
            known = self._entries.get(key)
            if known is None and (identity := entry.finding and entry.finding.identity) is not None:
                known = (
                    self._entries.get(self._standing.get(identity))
                    if entry.over_unix_ns is None
                    else None
                )
            if known is None:
                still = entry.what == FINDING and entry.over_unix_ns is None
                self._add(replace(entry, over_unix_ns=begin) if still else entry)
            elif entry.what == FINDING and entry.unix_ns <= known.unix_ns:
                words = entry.words
                for at, text in known.words:
                    words = _with_words(words, max(at, begin), text)
                self._put(replace(known, unix_ns=entry.unix_ns, words=words))

    def _absorb_joined(self, earlier: Timeline, begin: int) -> set[Hashable]:
        """Now it is known when the ranks of the first look joined. Returns the keys of the earlier
        entries that are part of one here: these ranks joined together with the others."""
        before = [entry for entry in earlier._entries.values() if entry.what == JOIN]
        dated = {rank for entry in before for rank in entry.ranks}
        found: set[Hashable] = set()
        for key, entry in list(self._entries.items()):
            if entry.what != JOIN or entry.unix_ns > begin:
                continue
            if dated.issuperset(entry.ranks):
                del self._entries[key]
                self._sorted = None
                continue
            parts = [
                joined
                for joined in before
                if set(joined.ranks) < set(entry.ranks)
                and _attempt_of(joined) == _attempt_of(entry)
            ]
            first = min((part.unix_ns for part in parts), default=entry.unix_ns)
            if parts and entry.unix_ns - first <= TOGETHER_NS:
                found.update(part.key for part in parts)
                self._put(replace(entry, unix_ns=min(first, entry.unix_ns)))
        return found

    def _absorb_losses(self, earlier: Timeline) -> None:
        """Remove from the sums of the first look the losses that are now known to be earlier."""
        for entry in self._losses.follow(earlier._losses):
            self._sorted = None
            if self._entries.pop(entry.key, None) is not None and entry.words:
                self._entries[entry.key] = entry

    def _add(self, entry: Entry) -> None:
        if entry.key in self._entries:
            return
        self._put(entry)
        if len(self._entries) > self._most:
            oldest = min(self._entries.values(), key=lambda one: one.unix_ns)
            del self._entries[oldest.key]
            self.forgotten += 1

    def _put(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        self._sorted = None

    def _restart(self, snapshot: Snapshot) -> None:
        attempt = snapshot.attempt
        if self._attempt is not None and attempt > self._attempt:
            at = snapshot.time_unix_ns
            self._add(
                Entry(("restart", attempt), at, RESTARTED, ((at, f"restarted: attempt {attempt}"),))
            )
        self._attempt = attempt

    def _findings(self, snapshot: Snapshot, verdict: Verdict) -> None:
        now = snapshot.time_unix_ns
        shown = {finding.identity: finding for finding in verdict.findings}
        for identity, finding in shown.items():
            known = self._entries.get(self._standing.get(identity))
            if known is None:
                again = self._again(identity, finding.since_unix_ns)
                key = again.key if again is not None else (FINDING, identity, finding.since_unix_ns)
                self._standing[identity] = self._latest[identity] = key
                if again is not None:
                    # The same fact, which was out of sight for a while.
                    self._put(replace(again, finding=finding, over_unix_ns=None, closed=False))
                    continue
                sentence = (max(now, finding.since_unix_ns), finding.sentence)
                since = finding.since_unix_ns
                self._add(Entry(key, since, FINDING, (sentence,), finding.ranks, finding))
            elif known.finding != finding:
                fuller = _fuller(known.finding, finding)
                words = known.words
                if known.finding is None or _is_news(known.finding, finding):
                    words = _with_words(words, now, finding.sentence)
                self._put(replace(known, finding=fuller, words=words))
        for gone in [identity for identity in self._standing if identity not in shown]:
            entry = self._entries.get(self._standing.pop(gone))
            if entry is not None:
                # The end of the job is the end of all that stood.
                self._put(replace(entry, over_unix_ns=now, closed=snapshot.ended is not None))

    def _again(self, identity: Hashable, since_unix_ns: int) -> Entry | None:
        """The earlier entry of a finding, if it is about the same fact."""
        entry = self._entries.get(self._latest.get(identity))
        return (
            entry if entry is not None and abs(entry.unix_ns - since_unix_ns) <= SAME_NS else None
        )

    def _ranks(self, snapshot: Snapshot) -> None:
        self._joined(snapshot)
        gone: dict[str, list[RankFacts]] = {}
        dumps: dict[str, list[RankFacts]] = {}
        for rank in snapshot.ranks:
            if (
                rank.process.exit is None
                and rank.reported.exception is None
                and rank.dump.stacks is None
            ):
                continue
            if (
                rank.process.exit is not None
                and rank.process.exit_unix_ns
                and self._first((END, rank.rank, rank.process.exit.pid))
            ):
                gone.setdefault(end_text(rank.process.exit), []).append(rank)
            exception = rank.reported.exception
            if exception is not None and self._first((RAISED, rank.rank, exception.unix_ns)):
                text = clean(f"rank {rank.rank} raised {exception.type}: {exception.text}")
                at = exception.unix_ns
                self._add(Entry((RAISED, rank.rank, at), at, RAISED, ((at, text),), (rank.rank,)))
            if rank.dump.stacks is not None and rank.dump.stacks.request != OF_LOOKS:
                dumps.setdefault(rank.dump.stacks.request, []).append(rank)
        for text, ranks in gone.items():
            self._ended(text, ranks)
        for request, ranks in dumps.items():
            self._dumped(request, ranks)

    def _first(self, key: Hashable) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _joined(self, snapshot: Snapshot) -> None:
        """Add ranks that are new since the last look. It searches only if the counts have
        changed."""
        subject = (snapshot.run, snapshot.attempt, snapshot.world_size, snapshot.reporting)
        if subject == self._joined_for:
            return
        self._joined_for = subject
        joined = [
            (rank.rank, rank.hello.started_unix_ns)
            for rank in snapshot.ranks
            if rank.hello is not None
            and self._first((JOIN, rank.rank, rank.hello.pid, snapshot.attempt))
        ]
        if joined:
            ranks = tuple(rank for rank, _ in joined)
            started = max(started for _, started in joined) or snapshot.time_unix_ns
            # A rank of the first look joined when its process started. A later one joined after the
            # last look without it.
            last = self._last
            there = last is None or (
                last.attempt == snapshot.attempt and started <= (self.began_unix_ns or 0)
            )
            at = started if last is None or there else max(started, last.time_unix_ns)
            self._put_joined(snapshot, at, ranks)

    def _put_joined(self, snapshot: Snapshot, at: int, ranks: tuple[int, ...]) -> None:
        key = self._last_joined
        before = self._entries.get(key)
        joins = (
            before is not None
            and at - before.unix_ns <= TOGETHER_NS
            and not set(before.ranks) & set(ranks)
        )
        if before is not None and joins and key[1] == snapshot.attempt:
            at, ranks = before.unix_ns, tuple(sorted((*before.ranks, *ranks)))
            del self._entries[key]
        else:
            key = (JOIN, snapshot.attempt, ranks)
        self._last_joined = key
        text = f"{ranks_text(ranks, 6)} of {snapshot.world_size:,} joined"
        self._add(Entry(key, at, JOIN, ((at, text),), ranks))

    def _ended(self, how: str, ranks: list[RankFacts]) -> None:
        if self._fold and len(ranks) > FOLD_FROM:
            at = min(rank.process.exit_unix_ns or 0 for rank in ranks)
            numbers = tuple(rank.rank for rank in ranks)
            text = f"{ranks_text(numbers, 6)} ended: {how}"
            self._add(Entry((END, numbers, at), at, END, ((at, text),), numbers))
            return
        for rank in ranks:
            at, pid = (
                rank.process.exit_unix_ns or 0,
                rank.process.exit.pid if rank.process.exit is not None else 0,
            )
            text = f"rank {rank.rank} (pid {pid}) ended: {how}"
            self._add(Entry((END, rank.rank, pid), at, END, ((at, text),), (rank.rank,)))

    def _dumped(self, request: str, ranks: list[RankFacts]) -> None:
        entry = self._entries.get((STACKS, request))
        if entry is not None and len(entry.ranks) >= len(ranks):
            return
        answers = [rank.dump.stacks for rank in ranks if rank.dump.stacks is not None]
        at = min(answer.taken_unix_ns for answer in answers)
        why = (
            ", because ranks made no progress"
            if any(answer.automatic for answer in answers)
            else ""
        )
        numbers = tuple(rank.rank for rank in ranks)
        text = f"stacks were taken{why}: {ranks_text(numbers, 6)}"
        self._put(Entry((STACKS, request), at, STACKS, ((at, text),), numbers))


def _with_words(
    words: tuple[tuple[int, str], ...], now: int, text: str
) -> tuple[tuple[int, str], ...]:
    """A sentence in which only a measured number has changed counts as the same and is not added. A
    sentence that knows less than the previous one is left out."""
    if _gist(text) == _gist(words[-1][1]):
        return words
    if any(NOT_MEASURED in text and NOT_MEASURED not in earlier for _, earlier in words):
        return words
    words = (*words, (now, text))
    return words if len(words) <= WORDS_MOST else (words[0], *words[-WORDS_MOST + 1 :])


def _is_news(known: Finding, finding: Finding) -> bool:
    """Whether its sentence may say something new. That of a plugin's rule may have another number
    at each look: nobody knows which part that is."""
    return finding.said is not None or (
        (known.severity, known.victims) != (finding.severity, finding.victims)
    )


def _gist(text: str) -> str:
    return without(text, LASTS, TIME, NUMBER)


def _fuller(known: Finding | None, finding: Finding) -> Finding:
    """The more complete one: a finding that is about to clear loses victims and causes."""
    if known is None:
        return finding
    if known.severity != finding.severity:
        return min(known, finding, key=lambda each: SEVERITIES.index(each.severity))
    if len(finding.victims) < len(known.victims):
        return known
    fewer = NOT_MEASURED in finding.summary and NOT_MEASURED not in known.summary
    return known if fewer else finding


def without_age(text: str) -> str:
    """A finding's sentence without its duration. Next to the time of its beginning, a duration from
    another moment would be contradictory."""
    return clean(without(text, LASTS))


ListedEvent = tuple[int, str]
"""When something happened (unix ns), and what, as a line."""


def events(looks: Iterable[tuple[Snapshot, Verdict]]) -> tuple[ListedEvent, ...]:
    """The events of a job that was looked at several times, in order of time.

    A finding begins when its fact began, and ends at the first look without it.
    """
    timeline = Timeline(most=100_000, fold=False)
    for snapshot, verdict in looks:
        timeline.take(snapshot, verdict)
    found: set[ListedEvent] = set()
    for entry in timeline.entries:
        if entry.finding is None:
            found.add((entry.unix_ns, entry.text))
            continue
        kind = f"{entry.finding.severity}: {clean(entry.finding.kind)}"
        found.add((entry.unix_ns, f"{kind}: {without_age(entry.words[0][1])}"))
        if entry.over_unix_ns is not None and not entry.closed:
            found.add((entry.over_unix_ns, over_text(entry.finding)))
    return tuple(sorted(found))


def over_text(finding: Finding) -> str:
    """`over: rank-stopped of rank 1`."""
    of = f" of {ranks_text(finding.ranks, 6)}" if finding.ranks else ""
    return f"over: {clean(finding.kind)}{of}"


def timeline_lines(happened: Iterable[ListedEvent]) -> list[str]:
    """One line per event, with the local time."""
    return [f"{units.clock(at)}  {text}" for at, text in happened]


def _attempt_of(joined: Entry) -> object:
    """The attempt of an entry about ranks that joined: the second part of its key."""
    return joined.key[1] if isinstance(joined.key, tuple) else None
