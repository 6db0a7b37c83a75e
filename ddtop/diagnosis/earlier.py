"""Finds a cause that began before another one and is therefore not explained by it.

Example: rank 2 has been asleep for a minute, and the others wait for it. Then somebody stops rank
0. A stopped rank explains the waits that follow, so it silences other rules. It cannot explain
waits that were already too long when it was stopped; these remain as a separate finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.table import RuleRow


def earlier_than(causes: Sequence[Finding], row: RuleRow, context: Context) -> list[Finding]:
    """What the rule of `row` finds that was due before the first of `causes` began."""
    before_unix_ns = min(cause.since_unix_ns for cause in causes)
    named = frozenset(rank for cause in causes for rank in cause.ranks)
    blames = tuple(
        blame
        for blame in context.snapshot.blames
        if blame.root not in named
        and blame.since_unix_ns + blame.limit_s * 1e9 < before_unix_ns
        and not _waits_for(context, blame.root)
    )
    snapshot = replace(context.snapshot, blames=blames)
    own = row.rule(replace(context, snapshot=snapshot))
    limit_ns = context.policy.still_limit_s * 1e9
    return [
        one
        for one in own
        if one.severity == CRITICAL and one.since_unix_ns + limit_ns < before_unix_ns
    ]


def _waits_for(context: Context, rank: int) -> bool:
    """Whether that rank waits itself: then another rank may be the reason."""
    return context.snapshot.rank(rank).wait is not None
