"""`gpu-shared` where NCCL refuses it: two ranks are on one GPU, and a rank crashes."""

from __future__ import annotations

import re
from dataclasses import replace

from ddtop.diagnosis.advice import ONE_GPU_EACH
from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.words.ranks import ranks_text

_DUPLICATE = re.compile(
    r"duplicate GPU detected ?: ?rank (\d{1,7}) and rank (\d{1,7})", re.IGNORECASE
)


def rule(context: Context) -> list[Finding]:
    """At most one finding: the crash that names the two ranks."""
    for crash in context.found:
        exception = context.snapshot.rank(crash.ranks[0]).exception if crash.ranks else None
        match = _DUPLICATE.search(exception.text) if exception is not None else None
        if crash.kind != Kind.RANK_CRASHED or match is None:
            continue
        ranks = tuple(sorted({int(match[1]), int(match[2])}))
        victims = tuple(rank for rank in crash.victims if rank not in ranks)
        summary = f"{ranks_text(ranks)} are on the same GPU, and NCCL refuses that"
        changed = replace(
            crash, kind=Kind.GPU_SHARED, severity=CRITICAL, ranks=ranks, victims=victims
        )
        return [replace(changed, summary=summary, advice=ONE_GPU_EACH)]
    return []


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """The crash is reported with its cause, and not a second time. There is at most one crash."""
    crashes = {one.identity for one in context.found if own and one.kind == Kind.RANK_CRASHED}
    return [own[0] if one.identity in crashes else one for one in context.found]
