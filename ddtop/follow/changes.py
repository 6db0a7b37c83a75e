"""Finds the changes between looks at a job: the events of `ddtop watch`.

`Judge` decides which findings are shown; this module only reports the differences. After a relay
was silent for a while, its ranks report again one by one: a finding that is missing meanwhile is
not over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.diagnosis.finding import SEVERITIES, Finding
from ddtop.follow.look import Look
from ddtop.model.facts import Ended, Snapshot
from ddtop.policy import Policy
from ddtop.wire.records import Order, TrainingProgress

APPEARED, CLEARED, JOINED, LOST, ENDED, ORDERED = (
    "appeared",
    "cleared",
    "joined",
    "lost",
    "ended",
    "ordered",
)
SECOND_NS = 1_000_000_000
_Key = tuple[int, str, tuple[int, ...], str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """One event, at `unix_ns` of the relay's clock.

    `finding`: of `appeared` and `cleared`. `ranks`: the new ranks of `joined`; empty if the relay
    reports again. `order`: of `ordered`, what a person requested. `ended`: of `ended`. `contact`:
    of `lost`, why the facts are not live. `seconds`: how long the finding stood, or the relay was
    not heard. `progress`: how far the training was.
    """

    event: str
    unix_ns: int
    attempt: int = 0
    finding: Finding | None = None
    ranks: tuple[int, ...] = ()
    world_size: int = 0
    ended: Ended | None = None
    contact: str | None = None
    seconds: float | None = None
    order: Order | None = None
    progress: TrainingProgress | None = None


class Changes:
    """What changed from look to look. A finding that gets worse appears again; one that gets milder
    does not."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._standing: dict[_Key, Finding] = {}
        self._joined: set[tuple[int, int]] = set()
        self._reported: set[tuple[int, Order]] = set()
        self._lost_unix_ns: int | None = None
        self._settled_unix_ns = self._told_unix_ns = 0

    def take(self, look: Look) -> list[Change]:
        """The changes that this look shows, in the order in which they are reported."""
        snapshot = look.snapshot
        if snapshot is None:
            return []
        now = snapshot.time_unix_ns
        if look.contact is not None:
            if self._lost_unix_ns is not None:
                return []
            self._lost_unix_ns = now
            at = self._told_unix_ns = now + int((look.contact_age_s or 0.0) * SECOND_NS)
            return [
                Change(LOST, at, snapshot.attempt, contact=look.contact, progress=snapshot.progress)
            ]
        changes = self._contact_again(snapshot)
        changes += self._ranks(snapshot)
        changes += self._orders(snapshot)
        changes += self._cleared_changes(look, now)
        changes += self._appeared_changes(look, now)
        if snapshot.ended is not None:
            changes.append(Change(ENDED, now, snapshot.attempt, ended=snapshot.ended))
        # A reader expects the times of the lines in order. But the first look at a job brings
        # orders of the past, and the last state of a job is older than the loss of its relay.
        changes.sort(key=lambda change: change.unix_ns)
        least = self._told_unix_ns
        self._told_unix_ns = max([least, *(change.unix_ns for change in changes)])
        return [
            replace(change, unix_ns=max(change.unix_ns, least), progress=snapshot.progress)
            for change in changes
        ]

    def _contact_again(self, snapshot: Snapshot) -> list[Change]:
        lost, self._lost_unix_ns = self._lost_unix_ns, None
        # The last state of a job that ended meanwhile does not count as contact.
        if lost is None or snapshot.ended is not None:
            return []
        now = snapshot.time_unix_ns
        self._settled_unix_ns = now + int(self._policy.contact_settles_s * SECOND_NS)
        silent_s = max(now - lost, 0) / SECOND_NS
        return [
            Change(JOINED, now, snapshot.attempt, world_size=snapshot.world_size, seconds=silent_s)
        ]

    def _ranks(self, snapshot: Snapshot) -> list[Change]:
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
            Change(
                JOINED, snapshot.time_unix_ns, attempt, ranks=came, world_size=snapshot.world_size
            )
        ]

    def _orders(self, snapshot: Snapshot) -> list[Change]:
        new = [order for order in snapshot.orders if order not in self._reported]
        self._reported = set(snapshot.orders)
        return [Change(ORDERED, at, snapshot.attempt, order=order) for at, order in new]

    def _cleared_changes(self, look: Look, now: int) -> list[Change]:
        assert look.snapshot is not None
        attempt = look.snapshot.attempt
        shown = {_key(attempt, finding) for finding in look.verdict.findings}
        # All findings end with the job, which does not mean that they were solved.
        if look.snapshot.ended is not None or now < self._settled_unix_ns:
            return []
        over = [self._standing.pop(key) for key in list(self._standing) if key not in shown]
        return [
            Change(
                CLEARED,
                now,
                attempt,
                finding=finding,
                seconds=max(now - finding.since_unix_ns, 0) / SECOND_NS,
            )
            for finding in over
        ]

    def _appeared_changes(self, look: Look, now: int) -> list[Change]:
        assert look.snapshot is not None
        changes, attempt = [], look.snapshot.attempt
        for finding in look.verdict.findings:
            key = _key(attempt, finding)
            known = self._standing.get(key)
            worse = known is None or SEVERITIES.index(finding.severity) < SEVERITIES.index(
                known.severity
            )
            if worse:
                changes.append(Change(APPEARED, now, attempt, finding=finding))
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
