"""Findings over time: one appears after two agreeing snapshots and disappears after three without
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ddtop.diagnosis.diagnoses import conclude, diagnose
from ddtop.diagnosis.finding import (
    CRITICAL,
    INFO,
    WARNING,
    Cancelled,
    Finding,
    Muted,
    Overdue,
    Until,
    Verdict,
)
from ddtop.diagnosis.kinds import Is, Kind
from ddtop.diagnosis.rank_state import with_states
from ddtop.model.ending import fatal_exception, has_failed, went_unix_ns
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Expectation, Mute
from ddtop.words.sentences import rank_list, rank_ranges


@dataclass(frozen=True)
class Judging(Limits, of="judge"):
    """When a finding goes, comes again, or is told after the end."""

    clear_rates_s: float = 30.0
    """A finding about a share of the time, or about one phase of an epoch, disappears only after
    this time without it. A validation, a checkpoint or a new epoch hides it and does not fix it."""
    input_bound_again_factor: float = 1.5
    """`input-bound` is an info for this many times its longest time so far, once a job has
    recovered from it,"""
    input_bound_again_most_s: float = 120.0
    """... but no longer than this: the start of an epoch is shorter."""
    cancelled_because_s: float = 10.0
    """A finding that was critical this shortly before a job was cancelled is reported as present
    until then. Ranks that clean up on SIGTERM end a few seconds after it."""
    cancelled_before_s: float = 1.0
    """An event that began less than this time before the end of a job belongs to the end."""


@dataclass(frozen=True)
class Brief(Limits, of="brief"):
    """What is over soon: a slow start, or a moment in which CPUs are short (`Is.BRIEF`)."""

    stood_s: float = 10.0
    """A warning about it is shown once it has stood for this time. A viewer shows at once what it
    finds when it comes: nobody knows since when that stands."""


# -- Findings that come again after the job has recovered by itself
#
# The first epoch fills a cache, and each shard of the data may begin slowly: such a job is input-
# bound again and again, and each time it recovers. The first time is a warning. Later times are an
# info, until one lasts clearly longer than those before.


@dataclass
class Recurrence:
    """Remembers how long `input-bound` stood and for which ranks. One for each run of a job."""

    policy: Policy
    _began_unix_ns: int | None = None
    _last_unix_ns: int = 0
    _longest_ns: int = 0
    _ranks: set[int] = field(default_factory=set)
    """Of the times that are over."""
    _ranks_now: set[int] = field(default_factory=set)

    def judge(self, shown: list[Finding], now_unix_ns: int) -> list[Finding]:
        """The same findings; what is usual for this job is an info."""
        ranks = {
            rank for finding in shown if finding.kind == Kind.INPUT_BOUND for rank in finding.ranks
        }
        if not ranks:
            self._end()
            return shown
        if self._began_unix_ns is None:
            self._began_unix_ns = now_unix_ns
        self._last_unix_ns = now_unix_ns
        self._ranks_now |= ranks
        if not self._is_usual(now_unix_ns):
            return shown
        return [
            replace(finding, severity=INFO)
            if finding.kind == Kind.INPUT_BOUND
            and finding.severity == WARNING
            and self._ranks.issuperset(finding.ranks)
            else finding
            for finding in shown
        ]

    def _is_usual(self, now_unix_ns: int) -> bool:
        limits = self.policy.of(Judging)
        longest_ns = limits.input_bound_again_factor * self._longest_ns
        limit_ns = min(longest_ns, limits.input_bound_again_most_s * 1e9)
        return now_unix_ns - (self._began_unix_ns or 0) < limit_ns

    def _end(self) -> None:
        if self._began_unix_ns is None:
            return
        self._longest_ns = max(self._longest_ns, self._last_unix_ns - self._began_unix_ns)
        self._ranks |= self._ranks_now
        self._began_unix_ns, self._ranks_now = None, set()


# -- Decides which findings are muted, by a person or by the program itself
#
# A mute affects findings, not facts: a muted finding is still found, shown as muted, and counted.
# `ddtop mute` makes one for a person, `ddtop.expected` for a program.


NO_EXCUSE = frozenset({State.STOPPED, State.EXITED, State.KILLED, State.MISSING, State.LOST})
"""A rank in such a state is no longer in its region, whatever it reported last."""


def heard_and_muted(
    findings: Iterable[Finding], mutes: tuple[Mute, ...]
) -> tuple[tuple[Finding, ...], tuple[Muted, ...]]:
    """(the findings that are reported, those that are muted)."""
    heard: list[Finding] = []
    muted: list[Muted] = []
    for finding in findings:
        by = next((mute for mute in mutes if _mutes(mute, finding)), None)
        if by is None:
            heard.append(finding)
        else:
            muted.append(Muted(finding, by))
    return tuple(heard), tuple(muted)


def _mutes(mute: Mute, finding: Finding) -> bool:
    if mute.kind and mute.kind != finding.kind:
        return False
    if not mute.ranks:
        return bool(mute.kind)
    ranges = rank_ranges(mute.ranks) or ()
    # A finding that also blames another rank is reported.
    return bool(finding.ranks) and all(
        any(rank in part for part in ranges) for rank in finding.ranks
    )


def heard_and_expected(
    findings: Iterable[Finding], snapshot: Snapshot
) -> tuple[list[Finding], tuple[Muted, ...]]:
    """(the findings that are reported, those of ranks in an expected region).

    Once a region has taken longer than expected, its finding is reported as a warning that names
    the region.
    """
    now = snapshot.time_unix_ns
    heard: list[Finding] = []
    muted: list[Muted] = []
    for finding in findings:
        regions = _regions_of(finding, snapshot)
        late = {rank: region for rank, region in regions.items() if region.until_unix_ns <= now}
        if late:
            heard.append(_as_late(finding, late, now))
        elif regions:
            muted.append(Muted(finding, _as_mute(finding, regions)))
        else:
            heard.append(finding)
    return heard, tuple(muted)


def _regions_of(finding: Finding, snapshot: Snapshot) -> dict[int, Expectation]:
    """The regions that explain the finding, by rank; empty if it blames a rank that is in none."""
    if not finding.kind.is_any(Is.TIME):
        return {}
    # Such a finding names all ranks because it can blame none, so a region of one rank is enough.
    of_all = finding.kind == Kind.NO_PROGRESS and not finding.victims
    found: dict[int, Expectation] = {}
    for number in finding.ranks:
        region = _region_of(snapshot.rank(number))
        if region is not None:
            found[number] = region
        elif not of_all:
            return {}
    return found


def _region_of(rank: RankFacts) -> Expectation | None:
    """The region that the rank is in; None if it is stopped, has ended, or raised."""
    raised = rank.reported.exception is not None and not rank.reported.went_on
    return None if rank.gone or rank.state in NO_EXCUSE or raised else rank.progress.expected


def _as_late(finding: Finding, late: dict[int, Expectation], now_unix_ns: int) -> Finding:
    if finding.severity == INFO:
        return finding
    first = min(late.values(), key=lambda region: region.since_unix_ns)
    same = [
        rank
        for rank, region in late.items()
        if (region.name, region.up_to_s) == (first.name, first.up_to_s)
    ]
    return replace(
        finding, severity=WARNING, seen=Overdue(finding, tuple(same), first, now_unix_ns)
    )


def _as_mute(finding: Finding, regions: dict[int, Expectation]) -> Mute:
    """These regions as a mute, until the first of them takes longer than expected."""
    first = min(regions.values(), key=lambda region: region.until_unix_ns)
    return Mute(
        finding.kind,
        rank_list(regions),
        first.until_unix_ns,
        f"in '{first.name}'",
        "ddtop.expected",
    )


# -- The findings just before a job ended, which are often the reason why somebody ended it
#
# Problem: a job hangs for an hour. Then its time limit or a person ends it, or kills one of its
# ranks, and the launcher ends the others. In the morning a person reads "cancelled, nothing to
# fix", or "rank 1 was killed by SIGKILL". What we do: a cancellation also reports the critical
# findings until then, with their evidence and advice. For any other end, an earlier hang is listed
# as a separate finding, because it is the earlier cause.


def is_over(snapshot: Snapshot) -> bool:
    """Whether all ranks have ended, even if it is not known how."""
    if snapshot.ended is not None:
        return True
    return bool(snapshot.ranks) and all(rank.gone for rank in snapshot.ranks)


def began_to_end_unix_ns(findings: Iterable[Finding], snapshot: Snapshot) -> int | None:
    """When the first rank failed, or the process whose failure ended the ranks (unix ns).

    None while no rank has failed.
    """
    times = [went_unix_ns(rank) for rank in snapshot.ranks if has_failed(rank)]
    if times:
        times += [
            finding.since_unix_ns for finding in findings if finding.kind == Kind.HELPER_CRASHED
        ]
    return min(times, default=None)


def with_what_stood(
    findings: Collection[Finding], stood: Collection[Finding], snapshot: Snapshot, policy: Policy
) -> tuple[Finding, ...]:
    """The findings of a job that has ended, with those that were critical until it began to end.
    If it was cancelled, warnings about ranks for which others waited are included too.

    `stood`: all findings of an earlier moment. Findings that began with the end itself, such as the
    end of the first rank, are not reasons for it. Findings that already include the reason stay
    unchanged.
    """
    end_unix_ns = began_to_end_unix_ns(findings, snapshot)
    if end_unix_ns is None:
        return tuple(findings)
    before_unix_ns = end_unix_ns - policy.of(Judging).cancelled_before_s * 1e9
    cancelled = any(finding.kind == Kind.CANCELLED for finding in findings)
    reasons = [
        finding
        for finding in stood
        if finding.since_unix_ns < before_unix_ns
        and (finding.severity == CRITICAL or (cancelled and _says_who_waits(finding)))
    ]
    if cancelled:
        return tuple(
            _cancelled_because(finding, reasons) if finding.kind == Kind.CANCELLED else finding
            for finding in findings
        )
    ended = {rank for finding in findings if finding.kind.is_any(Is.END) for rank in finding.ranks}
    hangs = [
        replace(finding, seen=Until(finding, tuple(sorted(ended))))
        for finding in reasons
        if not finding.kind.is_any(Is.MOVES) and not _is_included(finding, findings, snapshot)
    ]
    return (*hangs, *findings)


def _says_who_waits(finding: Finding) -> bool:
    return (
        finding.severity == WARNING and bool(finding.victims) and not finding.kind.is_any(Is.MOVES)
    )


def _cancelled_because(finding: Finding, reasons: list[Finding]) -> Finding:
    """A cancellation, with the findings until then. It is a warning if the first was critical."""
    if not reasons or finding.until_then:
        return finding
    return replace(
        finding,
        severity=WARNING if reasons[0].severity == CRITICAL else finding.severity,
        seen=Cancelled(finding, tuple(reasons)),
        until_then=True,
    )


def _is_included(hang: Finding, findings: Iterable[Finding], snapshot: Snapshot) -> bool:
    """Whether the findings about the end already include it: the same finding, or the end of the
    rank for which the others waited, if that says what the rank did.

    An exception of that rank names the line, and `comm-error` says where the ranks are that had
    not joined.
    """
    own = set(hang.ranks)
    for finding in findings:
        if finding.kind == hang.kind and (finding.ranks == hang.ranks or own & set(finding.ranks)):
            return True
        if not own or not own <= set(finding.ranks):
            continue
        if finding.kind == Kind.COMM_ERROR:
            return True
        if finding.kind == Kind.RANK_CRASHED and all(
            fatal_exception(snapshot.rank(rank)) for rank in own
        ):
            return True
    return False


# -- The judge: which findings are shown, and since when


Identity = tuple[Kind, str | None, tuple[int, ...]]
STEP_NS = 500_000_000
"""Snapshots closer together than this count as one, because a viewer that draws more often does not
have more evidence.
"""


_HOLDING_UP = frozenset(
    {Kind.NOT_IN_COLLECTIVE, Kind.WAIT_CYCLE, Kind.INTERPRETER_FROZEN, Kind.IO_STALL}
    | {Kind.LOADER_STUCK, Kind.NO_PROGRESS}
)
"""Kinds of which one takes the place of another one as more becomes known of the same ranks."""


@dataclass
class _Standing:
    finding: Finding
    agreed: int
    first_unix_ns: int
    missed: int = 0
    seen_unix_ns: int = 0


class Judge:
    """Keeps the findings that are shown. Call `observe` with the snapshots of one job in the order
    of time.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
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
        needed = self.policy.appear_snapshots
        return any(
            standing.agreed < needed or standing.missed for standing in self._standing.values()
        )

    @property
    def snapshots_needed(self) -> int:
        """How many agreeing snapshots a finding needs."""
        return self.policy.appear_snapshots

    def _holds(
        self, standing: _Standing, snapshot: Snapshot, found: Mapping[Identity, Finding]
    ) -> bool:
        """Whether a finding about the training phase stays during the other phases.

        It does not stay during a hang, nor if the same kind is found for other ranks.
        """
        kind = standing.finding.kind
        if not kind.is_any(Is.PHASE) or standing.agreed < self.policy.appear_snapshots:
            return False
        if any(finding.severity == CRITICAL or finding.kind == kind for finding in found.values()):
            return False
        return (
            snapshot.time_unix_ns - standing.seen_unix_ns
            < self.policy.of(Judging).clear_rates_s * 1e9
        )

    def _is_brief(self, standing: _Standing, snapshot: Snapshot) -> bool:
        """Whether it is a warning that may be over soon, and has not stood for long."""
        finding, stood_ns = standing.finding, snapshot.time_unix_ns - standing.first_unix_ns
        brief = finding.severity == WARNING and finding.kind.is_any(Is.BRIEF)
        return brief and stood_ns < self.policy.of(Brief).stood_s * 1e9

    def _follow(self, found: Mapping[Identity, Finding]) -> None:
        """A finding about the end of a rank stays the same finding, even if the group in which
        others wait changes or becomes known later. What is known better of ranks that hold up the
        job, such as a circle, takes the place of what was said of them before.
        """
        gone = [one for one in self._standing if one not in found]
        for identity in [one for one in found if one not in self._standing]:
            kind, _, ranks = identity
            for other in gone:
                same = other[0] == kind and kind.is_any(Is.END)
                better = _HOLDING_UP.issuperset((kind, other[0])) and kind != other[0]
                if other[2] == ranks and (same or better):
                    known = self._standing[identity] = self._standing.pop(other)
                    known.finding = known.finding if same else found[identity]
                    gone.remove(other)
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
            self._recurrence = Recurrence(self.policy)
        self.found = diagnose(snapshot, self.policy)
        found = {finding.identity: finding for finding in self.found}
        first = snapshot.time_unix_ns if self._observed_unix_ns is not None else 0
        fresh = (
            self._observed_unix_ns is None
            or snapshot.time_unix_ns - self._observed_unix_ns >= STEP_NS
        )
        if fresh:
            self._observed_unix_ns = snapshot.time_unix_ns
        self._follow(found)
        for identity, finding in found.items():
            known = self._standing.get(identity)
            if known is None:
                self._standing[identity] = _Standing(
                    finding, 1, first, seen_unix_ns=snapshot.time_unix_ns
                )
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
                known.missed >= self.policy.clear_snapshots
                or known.agreed < self.policy.appear_snapshots
            ):
                del self._standing[identity]
        # A job that has ended sends nothing more, so its last state needs no second snapshot.
        needed = 1 if snapshot.ended is not None else self.policy.appear_snapshots
        shown = [
            standing.finding
            for standing in self._standing.values()
            if standing.agreed >= needed and not self._is_brief(standing, snapshot)
        ]
        if snapshot.ended is not None:
            shown = [finding for finding in shown if finding.identity in found]
        shown = self._recurrence.judge(shown, snapshot.time_unix_ns)
        order = {"critical": 0, "warning": 1, "info": 2}
        shown, expected = heard_and_expected(shown, snapshot)
        shown = self._findings_at_end(shown, found, snapshot)
        shown.sort(key=lambda finding: (order[finding.severity], finding.since_unix_ns))
        heard, muted = heard_and_muted(shown, snapshot.mutes)
        muted = (*muted, *expected)
        verdict = conclude(heard, snapshot)
        return replace(verdict, muted=muted) if muted else verdict

    def _findings_at_end(
        self, shown: list[Finding], found: Mapping[Identity, Finding], snapshot: Snapshot
    ) -> list[Finding]:
        """The findings of a job that has ended, with those from before its end. Before the end, it
        remembers the current findings for this.
        """
        end_unix_ns = began_to_end_unix_ns(shown, snapshot)
        if end_unix_ns is None:
            self._whole_unix_ns = snapshot.time_unix_ns
            if any(one.severity == CRITICAL or _says_who_waits(one) for one in shown):
                self._stood, self._stood_unix_ns = tuple(shown), snapshot.time_unix_ns
            return shown
        just_before = end_unix_ns - self.policy.of(Judging).cancelled_because_s * 1e9
        if not is_over(snapshot) or self._stood_unix_ns <= just_before:
            return shown
        cancelled = any(finding.kind == Kind.CANCELLED for finding in shown)
        if not cancelled and self._stood_unix_ns != self._whole_unix_ns:
            # A finding that ended before the first rank did. A person who cancels a job may need
            # some time.
            return shown
        now = [finding for finding in shown if finding.identity in found]
        return list(with_what_stood(now, self._stood, snapshot, self.policy))
