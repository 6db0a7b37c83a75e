"""All rules, in the order in which they run.

A rule is a module of `ddtop.diagnosis.rules`, with its rows (`ROWS`) and the pages of its kinds
(`PAGES`). They run from top to bottom, so that a rule can see whether its own finding is only a
consequence. `ddtop/diagnosis/diagnoses.py` runs the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from ddtop.diagnosis import rules
from ddtop.diagnosis.finding import CRITICAL, Context, Finding
from ddtop.diagnosis.kinds import ORDER
from ddtop.diagnosis.row import RuleRow

MODULES: tuple[ModuleType, ...] = tuple(
    import_module(f"{rules.__name__}.{module.name}") for module in iter_modules(rules.__path__)
)
_ROWS: dict[str, RuleRow] = {row.name: row for module in MODULES for row in module.ROWS}
if _ROWS.keys() != set(ORDER):
    raise ImportError(f"not both in ORDER and in a module: {sorted(_ROWS.keys() ^ set(ORDER))}")
TABLE = [_ROWS[name] for name in ORDER]


# -- Finds a cause that began before another one and is therefore not explained by it
#
# Example: rank 2 has been asleep for a minute, and the others wait for it. Then somebody stops rank
# 0. A stopped rank explains the waits that follow, so it silences other rules. It cannot explain
# waits that were already too long when it was stopped; these remain as a separate finding.


def earlier_than(causes: Sequence[Finding], row: RuleRow, context: Context) -> list[Finding]:
    """What the rule of `row` finds that was due before the first of `causes` began."""
    before_unix_ns = min(cause.since_unix_ns for cause in causes)
    named = frozenset(rank for cause in causes for rank in cause.ranks)
    blames = tuple(
        blame
        for blame in context.snapshot.blames
        if blame.root not in named
        and blame.since_unix_ns + blame.limit_s * 1e9 < before_unix_ns
        # A rank that waits itself may have another rank as its reason.
        and context.snapshot.rank(blame.root).wait is None
    )
    findings = row.rule(replace(context, snapshot=replace(context.snapshot, blames=blames)))
    limit_ns = context.policy.still_limit_s * 1e9
    return [
        finding
        for finding in findings
        if finding.severity == CRITICAL and finding.since_unix_ns + limit_ns < before_unix_ns
    ]
