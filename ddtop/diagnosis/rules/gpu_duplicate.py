"""`gpu-shared` if NCCL refuses it: two ranks are on one GPU, and a rank crashes."""

from __future__ import annotations

import re
from dataclasses import replace

from ddtop.diagnosis.advice import ONE_GPU_EACH
from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.gpus import ranks_on
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.facts import Snapshot
from ddtop.words.ranks import ranks_text

# Older versions of NCCL name two ranks, 2.30 names none. Source: the texts in libnccl.so.
_UNNAMED = "multiple ranks are using the same gpu"
_DUPLICATE = re.compile(
    r"duplicate GPU detected ?: ?rank (\d{1,7}) and rank (\d{1,7})", re.IGNORECASE
)


def rule(context: Context) -> list[Finding]:
    """At most one finding: the crash that names the two ranks."""
    for crash in context.found:
        if crash.kind != Kind.RANK_CRASHED or not crash.ranks:
            continue
        ranks = _ranks_named(context.snapshot, crash.ranks[0])
        if not ranks:
            continue
        victims = tuple(rank for rank in crash.victims if rank not in ranks)
        what = f"{ranks_text(ranks)} are on the same GPU"
        if len(ranks) == 1:
            what = f"{ranks_text(ranks)} is on the GPU of another rank"
        summary = f"{what}, and NCCL refuses that"
        changed = replace(
            crash, kind=Kind.GPU_SHARED, severity=CRITICAL, ranks=ranks, victims=victims
        )
        return [replace(changed, summary=summary, advice=ONE_GPU_EACH)]
    return []


def _ranks_named(snapshot: Snapshot, crashed: int) -> tuple[int, ...]:
    """The ranks on one GPU, from the exception of the rank that crashed; empty if it is another
    exception.
    """
    exception = snapshot.rank(crashed).reported.exception
    text = exception.text if exception is not None else ""
    if match := _DUPLICATE.search(text):
        return tuple(sorted({int(match[1]), int(match[2])}))
    if _UNNAMED not in text.lower():
        return ()
    shared = [ranks_on(device, snapshot) for device in snapshot.devices if crashed in device.ranks]
    return max(shared, key=len, default=()) or (crashed,)


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings, without the crash, which is reported with its cause. There is at most one
    crash."""
    crashes = {one.identity for one in context.found if own and one.kind == Kind.RANK_CRASHED}
    return [own[0] if one.identity in crashes else one for one in context.found]
