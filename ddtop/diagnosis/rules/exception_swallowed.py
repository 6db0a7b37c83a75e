"""`exception-swallowed`: some ranks catch an exception again and again that the others never catch.

It needs DDTOP_EXCEPTIONS=1. An exception that all ranks catch is normal for the program. If a
critical finding blames such a rank, the exception is a line of that finding's evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.diagnosis.finding import CRITICAL, INFO, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Caught
from ddtop.words.sentences import ranks_text, verb


@dataclass(frozen=True)
class CaughtLimits(Limits, of=Kind.EXCEPTION_SWALLOWED, was="caught_"):
    """`exception-swallowed`."""

    windows: int = 6
    """Windows of a quarter of a second, one in five seconds, in each of which a rank caught the
    same exception. An exception that comes by chance in half of the windows is in all of one rank's
    and in none of another's once in 2,000 half minutes."""
    recent_windows: int = 3
    """The last of these windows, which shows whether the exception is still being caught. Ranks
    that wait still report exceptions that they caught before."""


PLACES_MAX = 4

_Place = tuple[str, str, str, int]


def rule(context: Context) -> list[Finding]:
    """One finding for each set of ranks."""
    snapshot, policy = context.snapshot, context.policy
    looked = [rank for rank in snapshot.ranks if rank.reported.catching is not None]
    judged = [rank for rank in looked if _is_judged(rank, policy)]
    if len(judged) < 2:
        return []
    by_place: dict[_Place, list[tuple[RankFacts, Caught]]] = {}
    for rank in judged:
        for caught in rank.reported.catching.caught if rank.reported.catching is not None else ():
            by_place.setdefault(_place(caught), []).append((rank, caught))
    by_ranks: dict[tuple[int, ...], list[tuple[RankFacts, Caught]]] = {}
    for having in by_place.values():
        if _differs(having, judged):
            by_ranks.setdefault(tuple(rank.rank for rank, _ in having), []).append(having[0])
    return [_finding(snapshot, ranks, places) for ranks, places in by_ranks.items()]


def fold(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings. If a critical finding blames a rank, the exceptions that the rank catches
    become evidence of that finding.
    """
    snapshot, policy = context.snapshot, context.policy
    explained: list[Finding] = []
    named: set[int] = set()
    for finding in context.found:
        if finding.severity == CRITICAL:
            ranks = finding.ranks[:PLACES_MAX]
            lines = [
                line for rank in ranks for line in _lines(snapshot, rank, finding.victims, policy)
            ]
            if lines:
                finding = replace(finding, evidence=(*finding.evidence, *lines))
                named.update(finding.ranks)
        explained.append(finding)
    return explained + [one for one in findings if not set(one.ranks) <= named]


def _is_judged(rank: RankFacts, policy: Policy) -> bool:
    """Whether it trains and was sampled often enough, with a complete list, so that a missing
    exception really did not occur.
    """
    catching = rank.reported.catching
    if rank.gone or rank.reported.phase != "running" or rank.state in (State.STOPPED, State.SILENT):
        return False
    return (
        catching is not None
        and catching.windows >= policy.of(CaughtLimits).windows
        and not catching.omitted
    )


def _place(caught: Caught) -> _Place:
    return caught.type, caught.file, caught.function, caught.line


def _differs(having: list[tuple[RankFacts, Caught]], judged: list[RankFacts]) -> bool:
    """Whether at most half of the ranks have it, and these in every sample. A rare exception
    appears only in some samples.
    """
    if 2 * len(having) > len(judged):
        return False
    return all(
        rank.reported.catching is not None and caught.windows == rank.reported.catching.windows
        for rank, caught in having
    )


def _per_s(rank: RankFacts, caught: Caught) -> float:
    return (
        caught.count / (rank.reported.catching.watched_ns / 1e9)
        if rank.reported.catching and rank.reported.catching.watched_ns
        else 0.0
    )


def _text(rank: RankFacts, caught: Caught) -> str:
    return (
        f"{caught.file.rpartition('/')[2]}:{caught.line} in {caught.function} (about"
        f" {_per_s(rank, caught):,.0f} a second)"
    )


def _finding(
    snapshot: Snapshot, ranks: tuple[int, ...], places: list[tuple[RankFacts, Caught]]
) -> Finding:
    lead, caught = places[0]
    evidence = [
        f"{ranks_text(ranks)}: {one.type} at {one.file}:{one.line} in {one.function}, {one.count:,}"
        f" in {rank.reported.catching.watched_ns / 1e9:.1f} s of sampling, in every sample"
        for rank, one in places[:PLACES_MAX]
        if rank.reported.catching is not None
    ]
    return Finding(
        kind=Kind.EXCEPTION_SWALLOWED,
        severity=INFO,
        ranks=ranks,
        victims=(),
        since_unix_ns=snapshot.time_unix_ns,
        summary=(
            f"{ranks_text(ranks)} {verb(ranks, 'catches', 'catch')} {caught.type} again and again"
            f" at {_text(lead, caught)}; the other ranks do not"
        ),
        evidence=tuple(evidence),
        advice=(
            "log the exception there with its traceback; a forward, a loss or a step must be"
            " skipped on all ranks or on none"
        ),
    )


def _lines(snapshot: Snapshot, number: int, victims: tuple[int, ...], policy: Policy) -> list[str]:
    """The exceptions that this rank caught more than once in the last samples, and the ranks that
    wait for it did not.
    """
    rank = snapshot.rank(number)
    if rank.reported.catching is None or rank.gone or not rank.reported.catching.caught:
        return []
    others = [snapshot.rank(victim).reported.catching for victim in victims]
    alike = {_place(caught) for other in others if other is not None for caught in other.caught}
    recent = [
        caught
        for caught in rank.reported.catching.caught
        if caught.count > 1 and caught.ago <= policy.of(CaughtLimits).recent_windows
    ]
    found = [caught for caught in recent if _place(caught) not in alike]
    return [
        f"rank {number} catches {caught.type} again and again at {_text(rank, caught)}"
        for caught in found[:1]
    ]
