"""Ranks run other software than the others, or not what was asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.gpus import size
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import Snapshot
from ddtop.policy import Limits, Policy
from ddtop.wire.records import CudaState, Hello
from ddtop.words.sentences import by_value, ranks_text, verb

# -- `version-skew`: ranks run another Python, torch or script than the others


def version_skew(context: Context) -> list[Finding]:
    """One finding for all ranks that differ. Values that a rank has not reported yet are not
    compared."""
    snapshot = context.snapshot
    hellos = {rank.rank: rank.hello for rank in snapshot.ranks if rank.hello is not None}
    if (
        len(
            {
                (hello.torch, hello.python, hello.script, hello.script_digest)
                for hello in hellos.values()
            }
        )
        < 2
    ):
        return []
    odd: set[int] = set()
    lines, parts = [], []
    for name, values in (
        ("torch", {rank: hello.torch for rank, hello in hellos.items() if hello.torch}),
        ("Python", {rank: hello.python for rank, hello in hellos.items() if hello.python}),
        ("script", _scripts(hellos)),
    ):
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        differing = {rank for rank, value in values.items() if value != usual or most == second}
        odd |= differing
        versions = [f"{ranks_text(ranks)}: {value}" for value, ranks in by_value(values).items()]
        lines.append(f"{name}: " + "; ".join(versions[:6]))
        parts.append(f"{name} ({', '.join(versions[:3])})")
    if not parts:
        return []
    ranks = tuple(sorted(odd))
    same = "different versions" if len(odd) == len(hellos) else "different versions from the rest"
    return [
        Finding(
            kind=Kind.VERSION_SKEW,
            severity=WARNING,
            ranks=ranks,
            victims=(),
            since_unix_ns=max(hellos[rank].started_unix_ns for rank in ranks),
            summary=f"{ranks_text(ranks)} {verb(ranks, 'runs', 'run')} {same}: {', '.join(parts)}",
            evidence=(*lines, *(_versions_line(rank, hellos[rank]) for rank in ranks[:4])),
            advice=(
                "start all ranks from one environment and one copy of the script: all ranks must"
                " make the same calls"
            ),
        )
    ]


def _scripts(hellos: dict[int, Hello]) -> dict[int, str]:
    """Digests of scripts with one name. Programs with different names differ on purpose."""
    if len({hello.script for hello in hellos.values()}) > 1:
        return {}
    return {
        rank: f"{hello.script} {hello.script_digest}"
        for rank, hello in hellos.items()
        if hello.script_digest
    }


def _versions_line(rank: int, hello: Hello) -> str:
    return (
        f"rank {rank} on {hello.host}: Python {hello.python or '?'}, torch {hello.torch or '?'},"
        f" {' '.join(hello.argv[:3])}"
    )


# -- `wrong-backend`: the backend does not fit the devices


_NCCL_WITHOUT = re.compile(
    r"doesn't have NCCL built in|NCCL is only supported with GPUs|no GPUs? found", re.IGNORECASE
)


@dataclass(frozen=True)
class WrongBackend(Limits, of=Kind.WRONG_BACKEND, was=""):
    """`wrong-backend`."""

    gloo_bytes: int = 4 << 20
    """Gradients that go through gloo. Fewer cost less than the milliseconds of a step."""


def backend(context: Context) -> list[Finding]:
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
        and (rank.gpu.cuda.gloo_bytes or 0) >= policy.of(WrongBackend).gloo_bytes
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
                " gloo in each step, although this torch has NCCL"
            ),
            evidence=(
                (
                    "the group in which DistributedDataParallel averages gradients uses gloo for"
                    " CUDA tensors: each gradient is copied to the host, sent over the network and"
                    " copied back"
                ),
            ),
            advice=(
                'call init_process_group("nccl"), or pass no backend to use both: CPU tensors over'
                " gloo, CUDA tensors over NCCL"
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
                f"{ranks_text(ranks)} {verb(ranks, 'asks', 'ask')} for NCCL, but torch finds no"
                " GPU or no NCCL there"
            ),
            evidence=(f"rank {first.rank}: {exception.type}: {exception.text}",),
            advice=(
                'on CPUs call init_process_group("gloo"); with GPUs check nvidia-smi,'
                " CUDA_VISIBLE_DEVICES, and that torch is built with CUDA"
            ),
        )
    ]
