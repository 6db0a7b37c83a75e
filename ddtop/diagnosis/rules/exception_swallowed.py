"""`exception-swallowed`: some ranks catch an exception again and again that the others never catch.

It needs DDTOP_EXCEPTIONS=1. An exception that all ranks catch is normal for the program. If a
critical finding blames such a rank, the exception is a line of that finding's evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    CRITICAL,
    INFO,
    RUNS,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
)
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.wire.records import Caught


@dataclass(frozen=True)
class CaughtLimits(Limits, of=Kind.EXCEPTION_SWALLOWED):
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
Catching = tuple[tuple[RankFacts, Caught], ...]
"""Ranks, and what each catches again and again."""


class Swallowed(NamedTuple):
    """Each place at which the ranks catch an exception, as the first of them tells it."""

    places: Catching


class AlsoCatches(NamedTuple):
    """A finding, and what its ranks catch."""

    finding: Finding
    places: Catching


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
    now = snapshot.time_unix_ns
    return [
        Finding(Kind.EXCEPTION_SWALLOWED, INFO, ranks, (), now, seen=Swallowed(tuple(places)))
        for ranks, places in by_ranks.items()
    ]


def fold(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings. If a critical finding blames a rank, the exceptions that the rank catches
    become evidence of that finding.
    """
    snapshot, policy = context.snapshot, context.policy
    explained: list[Finding] = []
    named: set[int] = set()
    for finding in context.found:
        if finding.severity == CRITICAL:
            places = tuple(
                (rank, caught)
                for rank in map(snapshot.rank, finding.ranks[:PLACES_MAX])
                for caught in _caught(snapshot, rank, finding.victims, policy)
            )
            if places:
                finding = replace(finding, seen=AlsoCatches(finding, places))
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


def _caught(
    snapshot: Snapshot, rank: RankFacts, victims: tuple[int, ...], policy: Policy
) -> list[Caught]:
    """The first exception that this rank caught more than once in the last samples, and the ranks
    that wait for it did not.
    """
    if rank.reported.catching is None or rank.gone:
        return []
    others = [snapshot.rank(victim).reported.catching for victim in victims]
    alike = {_place(caught) for other in others if other is not None for caught in other.caught}
    least = policy.of(CaughtLimits).recent_windows
    return [
        caught
        for caught in rank.reported.catching.caught
        if caught.count > 1 and caught.ago <= least and _place(caught) not in alike
    ][:1]


ROWS = (
    RuleRow(
        rule,
        (Kind.EXCEPTION_SWALLOWED,),
        "exceptions that each rank has caught (DDTOP_EXCEPTIONS=1)",
        unless=RUNS,
        fold=fold,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.EXCEPTION_SWALLOWED,
        severity="info; if a critical finding blames the rank, a line in that finding's evidence",
        brief="some ranks catch an exception that the others never see",
        meaning=(
            "The same line of the program's own code catches the same exception again and again, on"
            " these ranks only. If one rank skips a batch, the others wait for it in a collective."
            " The handler may also hide the real error."
        ),
        found=(
            (
                "This works only with DDTOP_EXCEPTIONS=1 (Python 3.12 and later). For short"
                " periods, ddtop records which exceptions the main thread catches"
                " (sys.monitoring)."
            ),
            (
                "The exception was caught in each of {exception-swallowed.windows} such periods, on"
                " at most half of the ranks, and never on the others."
            ),
            (
                "Exceptions that libraries catch or that are raised again do not count; neither do"
                " StopIteration, timeouts and empty queues."
            ),
        ),
        steps=(
            "Log the exception in the handler, with its traceback: logging.exception(...)",
            (
                "Let all ranks decide together: all_reduce a flag, so that either all ranks skip"
                " the step or none does."
            ),
        ),
        before=(
            "try:",
            "    loss = model(batch)",
            "except ValueError:",
            "    continue                   # the others are in backward",
        ),
        after=(
            "ok = torch.tensor(int(usable(batch)))",
            "dist.all_reduce(ok, op=dist.ReduceOp.MIN)",
            "if not ok:",
            "    continue",
        ),
        no_demo="ddtop looks for it only with DDTOP_EXCEPTIONS=1, on Python 3.12 and later",
    ),
)
