"""`io-stall` and `loader-stuck` become critical once the whole job makes no progress because of
them.

While nobody waits for the rank, they are only warnings.
"""

from __future__ import annotations

from dataclasses import replace

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.standstill import STILL, severity_of, standstill_of

ALONE = frozenset({Kind.IO_STALL, Kind.LOADER_STUCK})
"""Kinds that are a warning while nobody waits for the rank."""


def rule(context: Context) -> list[Finding]:
    """These warnings as critical findings; nothing while some rank makes progress."""
    snapshot, policy = context.snapshot, context.policy
    warnings = [one for one in context.found if one.kind in ALONE and one.severity == WARNING]
    still = standstill_of(snapshot, policy) if warnings else None
    if (
        still is None
        or not still.all_are(STILL)
        or severity_of(snapshot, still, policy) != CRITICAL
    ):
        return []
    return [replace(one, severity=CRITICAL) for one in warnings]


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings; each such warning is replaced by the critical finding."""
    raised = {one.identity: one for one in own}
    return [raised.get(one.identity, one) for one in context.found]
