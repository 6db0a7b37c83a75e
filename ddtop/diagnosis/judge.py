"""Findings over time: one appears after two agreeing snapshots and disappears after three without
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddtop.diagnosis.diagnoses import conclude, diagnose
from ddtop.diagnosis.finding import CRITICAL, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.muting import heard_and_expected, heard_and_muted
from ddtop.diagnosis.rank_state import with_states
from ddtop.diagnosis.recurrence import Recurrence
from ddtop.diagnosis.until_then import began_to_end_unix_ns, is_over, with_what_stood
from ddtop.model.state.facts import Snapshot, State
from ddtop.policy import Policy

OF_PHASES = frozenset({Kind.INPUT_BOUND, Kind.EPOCH_NOT_SET})
"""Kinds that are seen while the job trains, and not while it validates or saves in between."""
OF_ENDS = frozenset({Kind.RANK_CRASHED, Kind.RANK_KILLED, Kind.LEFT_EARLY})
Identity = tuple[Kind, str | None, tuple[int, ...]]
STEP_NS = 500_000_000
"""Snapshots closer together than this count as one, because a viewer that draws more often does not
have more evidence.
"""


@dataclass
class _Standing:
    finding: Finding
    agreed: int
    missed: int = 0
    seen_unix_ns: int = 0


class Judge:
    """Keeps the findings that are shown. Call `observe` with the snapshots of one job in the order
    of time.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._standing: dict[Identity, _Standing] = {}
        self._recurrence = Recurrence(policy)
        self._run: tuple[str, int] | None = None
        self._observed_unix_ns: int | None = None
        self._stood: tuple[Finding, ...] = ()
        self._stood_unix_ns = self._whole_unix_ns = 0
        self.found: tuple[Finding, ...] = ()
        """The findings of the last snapshot, whether they are shown or not."""

    @property
    def wavers(self) -> bool:
        """Whether the next snapshot may let a finding appear or disappear."""
        needed = self._policy.appear_snapshots
        return any(one.agreed < needed or one.missed for one in self._standing.values())

    @property
    def snapshots_needed(self) -> int:
        """How many agreeing snapshots a finding needs."""
        return self._policy.appear_snapshots

    def _holds(
        self, known: _Standing, snapshot: Snapshot, found: Mapping[Identity, Finding]
    ) -> bool:
        """Whether a finding about the training phase stays during the other phases.

        It does not stay during a hang, nor if the same kind is found for other ranks.
        """
        kind = known.finding.kind
        if kind not in OF_PHASES or known.agreed < self._policy.appear_snapshots:
            return False
        if any(one.severity == CRITICAL or one.kind == kind for one in found.values()):
            return False
        return snapshot.time_unix_ns - known.seen_unix_ns < self._policy.clear_rates_s * 1e9

    def _follow_groups(self, found: Mapping[Identity, Finding]) -> None:
        """A finding about the end of a rank stays the same finding, even if the group in which
        others wait changes or becomes known later.
        """
        for identity in [one for one in found if one not in self._standing and one[0] in OF_ENDS]:
            kind, _, ranks = identity
            for other in list(self._standing):
                if other not in found and (other[0], other[2]) == (kind, ranks):
                    self._standing[identity] = self._standing.pop(other)
                    break

    def look(self, snapshot: Snapshot) -> tuple[Snapshot, Verdict]:
        """The verdict after this snapshot, and the snapshot with the states that the verdict gives
        to the ranks.
        """
        verdict = self.observe(snapshot)
        return with_states(snapshot, verdict.findings), verdict

    def observe(self, snapshot: Snapshot) -> Verdict:
        """The verdict after this snapshot."""
        if (snapshot.run, snapshot.attempt) != self._run:
            # Findings of the last attempt ended with it.
            self._run, self._observed_unix_ns = (snapshot.run, snapshot.attempt), None
            self._standing.clear()
            self._stood = ()
            self._recurrence = Recurrence(self._policy)
        self.found = diagnose(snapshot, self._policy)
        found = {finding.identity: finding for finding in self.found}
        fresh = (
            self._observed_unix_ns is None
            or snapshot.time_unix_ns - self._observed_unix_ns >= STEP_NS
        )
        if fresh:
            self._observed_unix_ns = snapshot.time_unix_ns
        self._follow_groups(found)
        for identity, finding in found.items():
            known = self._standing.get(identity)
            if known is None:
                self._standing[identity] = _Standing(finding, 1, seen_unix_ns=snapshot.time_unix_ns)
                continue
            known.seen_unix_ns = snapshot.time_unix_ns
            # `since` is the time at which the fact began: a later estimate does not change it.
            since = min(finding.since_unix_ns, known.finding.since_unix_ns)
            known.finding, known.missed = replace(finding, since_unix_ns=since), 0
            known.agreed += fresh
        unheard = {
            rank.rank
            for rank in snapshot.ranks
            if rank.agent.unheard and rank.state is not State.LOST
        }
        for identity in [identity for identity in self._standing if identity not in found]:
            known = self._standing[identity]
            if unheard and not unheard.isdisjoint(known.finding.ranks or known.finding.victims):
                # Nothing new is known about these ranks: their findings stay until the ranks report
                # again, or are lost.
                continue
            if self._holds(known, snapshot, found):
                continue
            known.missed += fresh
            if (
                known.missed >= self._policy.clear_snapshots
                or known.agreed < self._policy.appear_snapshots
            ):
                del self._standing[identity]
        # A job that has ended sends nothing more, so its last state needs no second snapshot.
        needed = 1 if snapshot.ended is not None else self._policy.appear_snapshots
        shown = [one.finding for one in self._standing.values() if one.agreed >= needed]
        if snapshot.ended is not None:
            shown = [finding for finding in shown if finding.identity in found]
        shown = self._recurrence.judged(shown, snapshot.time_unix_ns)
        order = {"critical": 0, "warning": 1, "info": 2}
        shown, expected = heard_and_expected(shown, snapshot)
        shown = self._told(shown, found, snapshot)
        shown.sort(key=lambda finding: (order[finding.severity], finding.since_unix_ns))
        heard, muted = heard_and_muted(shown, snapshot.mutes)
        muted = (*muted, *expected)
        verdict = conclude(heard, snapshot, self._policy)
        return replace(verdict, muted=muted) if muted else verdict

    def _told(
        self, shown: list[Finding], found: Mapping[Identity, Finding], snapshot: Snapshot
    ) -> list[Finding]:
        """The findings of a job that has ended, with those from before its end. Before the end, it
        remembers the current findings for this.
        """
        end_unix_ns = began_to_end_unix_ns(shown, snapshot)
        if end_unix_ns is None:
            self._whole_unix_ns = snapshot.time_unix_ns
            if any(one.severity == CRITICAL for one in shown):
                self._stood, self._stood_unix_ns = tuple(shown), snapshot.time_unix_ns
            return shown
        just_before = end_unix_ns - self._policy.cancelled_because_s * 1e9
        if not is_over(snapshot) or self._stood_unix_ns <= just_before:
            return shown
        cancelled = any(one.kind == Kind.CANCELLED for one in shown)
        if not cancelled and self._stood_unix_ns != self._whole_unix_ns:
            # A finding that ended before the first rank did. A person who cancels a job may need
            # some time.
            return shown
        now = [one for one in shown if one.identity in found]
        return list(with_what_stood(now, self._stood, snapshot, self._policy))
