"""`wrong-backend`: the backend does not fit the devices."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.gpus import size
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.facts import Snapshot
from ddtop.policy import Policy
from ddtop.wire.gpu import CudaState
from ddtop.words.ranks import ranks_text, verb

_NCCL_WITHOUT = re.compile(
    r"doesn't have NCCL built in|NCCL is only supported with GPUs|no GPUs? found", re.IGNORECASE
)


def rule(context: Context) -> list[Finding]:
    """The program asks for NCCL where there is no GPU, or gradients on GPUs go through gloo."""
    snapshot, policy = context.snapshot, context.policy
    return _nccl_without(snapshot) + (
        _gloo_instead(snapshot, policy) if snapshot.ended is None else []
    )


def _gloo_instead(snapshot: Snapshot, policy: Policy) -> list[Finding]:
    """Torch has NCCL, each rank has its own GPU, and DistributedDataParallel averages large
    gradients through gloo at each step.
    """
    found = {
        rank.rank: rank.gpu.cuda
        for rank in snapshot.ranks
        if rank.gpu.cuda is not None
        and (rank.gpu.cuda.gloo_bytes or 0) >= policy.gloo_bytes
        and not rank.gone
        and rank.progress.iteration
    }
    if len(found) < 2 or _share_gpus(found, snapshot):
        return []
    ranks = tuple(found)
    largest = max(cuda.gloo_bytes or 0 for cuda in found.values())
    moves = verb(ranks, "moves", "move")
    return [
        Finding(
            kind=Kind.WRONG_BACKEND,
            severity=WARNING,
            ranks=ranks,
            victims=(),
            since_unix_ns=snapshot.time_unix_ns,
            summary=(
                f"{ranks_text(ranks)} {moves} gradients of {size(largest)} from GPU to GPU through"
                " gloo at each step, though this torch has NCCL"
            ),
            evidence=(
                (
                    "the group in which DistributedDataParallel averages gradients has gloo for"
                    " CUDA: each gradient is copied to the host, sent over the network there and"
                    " copied back"
                ),
            ),
            advice=(
                'init_process_group("nccl"), or without a backend for both: CPU tensors over gloo,'
                " CUDA tensors over NCCL"
            ),
        )
    ]


def _share_gpus(found: Mapping[int, CudaState], snapshot: Snapshot) -> bool:
    """Whether two ranks may share a GPU. NCCL refuses that, so gloo is right there."""
    gpus = [(snapshot.rank(number).host, cuda.uuid or cuda.pci) for number, cuda in found.items()]
    return any(gpu is None for _, gpu in gpus) or len(set(gpus)) < len(gpus)


def _nccl_without(snapshot: Snapshot) -> list[Finding]:
    ranks = tuple(
        rank.rank
        for rank in snapshot.ranks
        if rank.reported.exception is not None
        and _NCCL_WITHOUT.search(rank.reported.exception.text)
    )
    if not ranks:
        return []
    first = snapshot.rank(ranks[0])
    exception = first.reported.exception
    assert exception is not None
    return [
        Finding(
            kind=Kind.WRONG_BACKEND,
            severity=WARNING,
            ranks=ranks,
            victims=(),
            since_unix_ns=exception.unix_ns,
            summary=(
                f"{ranks_text(ranks)} {verb(ranks, 'asks', 'ask')} for NCCL, and torch finds no GPU"
                " or no NCCL there"
            ),
            evidence=(f"rank {first.rank}: {exception.type}: {exception.text}",),
            advice=(
                'init_process_group("gloo") on CPUs; with GPUs: nvidia-smi, CUDA_VISIBLE_DEVICES,'
                " and a torch built with CUDA"
            ),
        )
    ]
