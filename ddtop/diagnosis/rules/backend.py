"""`wrong-backend`: the backend does not fit the devices."""

from __future__ import annotations

import re

from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.words import ranks_text, verb
from ddtop.model.facts import Snapshot

_NCCL_WITHOUT = re.compile(r"doesn't have NCCL built in|NCCL is only supported with GPUs|no GPUs? found", re.IGNORECASE)


def rule(snapshot: Snapshot) -> list[Finding]:
    """NCCL was asked for where there is no GPU. gloo that moves CUDA tensors is seen once GPUs are."""
    ranks = tuple(
        rank.rank for rank in snapshot.ranks if rank.exception is not None and _NCCL_WITHOUT.search(rank.exception.text)
    )
    if not ranks:
        return []
    first = snapshot.rank(ranks[0])
    assert first.exception is not None
    return [
        Finding(
            kind="wrong-backend",
            severity=WARNING,
            ranks=ranks,
            victims=(),
            since_unix_ns=first.exception.unix_ns,
            summary=f"{ranks_text(ranks)} {verb(ranks, 'asks', 'ask')} for NCCL, and torch finds no GPU or no NCCL there",
            evidence=(f"rank {first.rank}: {first.exception.type}: {first.exception.text}",),
            advice='init_process_group("gloo") on CPUs; with GPUs: nvidia-smi, CUDA_VISIBLE_DEVICES, and a torch built with CUDA',
        )
    ]
