"""Ranks run other software than the others, or not what was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
)
from ddtop.model.errors import Says
from ddtop.model.facts import Snapshot
from ddtop.wire.records import CudaState, Hello

# -- `version-skew`: ranks run another Python, torch or script than the others


class Skew(NamedTuple):
    """What differs between ranks, by its name: the value of each rank."""

    values: dict[str, dict[int, str]]


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
    skew: dict[str, dict[int, str]] = {}
    for name, values in (
        ("torch", {rank: hello.torch for rank, hello in hellos.items() if hello.torch}),
        ("Python", {rank: hello.python for rank, hello in hellos.items() if hello.python}),
        ("script", _scripts(hellos)),
    ):
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        odd |= {rank for rank, value in values.items() if value != usual or most == second}
        skew[name] = values
    if not skew:
        return []
    ranks = tuple(sorted(odd))
    since = max(hellos[rank].started_unix_ns for rank in ranks)
    return [Finding(Kind.VERSION_SKEW, WARNING, ranks, (), since, seen=Skew(skew))]


def _scripts(hellos: dict[int, Hello]) -> dict[int, str]:
    """Digests of scripts with one name. Programs with different names differ on purpose."""
    if len({hello.script for hello in hellos.values()}) > 1:
        return {}
    return {
        rank: " ".join((hello.script, hello.script_digest))
        for rank, hello in hellos.items()
        if hello.script_digest
    }


# -- `wrong-backend`: the backend does not fit the devices


@dataclass(frozen=True)
class WrongBackend(Limits, of=Kind.WRONG_BACKEND):
    """`wrong-backend`."""

    gloo_bytes: int = 4 << 20
    """Gradients that go through gloo. Fewer cost less than the milliseconds of a step."""


class Backend(NamedTuple):
    """The bytes of gradients that go through gloo in each step; 0 if ranks ask for NCCL, and there
    is none."""

    gloo_bytes: int


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
    seen = Backend(max(cuda.gloo_bytes or 0 for cuda in found.values()))
    now = snapshot.time_unix_ns
    return [Finding(Kind.WRONG_BACKEND, WARNING, tuple(found), (), now, seen=seen)]


def _share_gpus(found: Mapping[int, CudaState], snapshot: Snapshot) -> bool:
    """Whether two ranks may share a GPU. NCCL refuses that, so gloo is right there."""
    gpus = [(snapshot.rank(number).host, cuda.uuid or cuda.pci) for number, cuda in found.items()]
    return any(gpu is None for _, gpu in gpus) or len(set(gpus)) < len(gpus)


def _nccl_without(snapshot: Snapshot) -> list[Finding]:
    without = {
        rank.rank: exception.unix_ns
        for rank in snapshot.ranks
        if (exception := rank.reported.exception) is not None
        and Says.NO_NCCL.within(exception.text)
    }
    if not without:
        return []
    ranks, since = tuple(without), next(iter(without.values()))
    return [Finding(Kind.WRONG_BACKEND, WARNING, ranks, (), since, seen=Backend(0))]


ROWS = (
    RuleRow(
        version_skew,
        (Kind.VERSION_SKEW,),
        "versions of Python and torch, and a digest of the script",
    ),
    RuleRow(
        backend,
        (Kind.WRONG_BACKEND,),
        "exceptions about NCCL, and the size of gradients on GPUs that go through gloo",
    ),
)
PAGES = (
    Explanation(
        kind=Kind.WRONG_BACKEND,
        severity="warning",
        brief="the backend does not fit the device of the tensors",
        meaning=(
            "The program asked for NCCL, but torch finds no GPU or was built without NCCL. Then"
            " init_process_group or the first collective raises an exception, and the ranks end."
            " Or gradients on GPUs go through gloo, which copies them to the host and back in each"
            " step."
        ),
        found=(
            "A rank's exception says that NCCL or a GPU is missing.",
            (
                "Or torch has NCCL, each rank has its own GPU, and a DistributedDataParallel model"
                " with some MiB of gradients on a GPU uses gloo for CUDA tensors. A second gloo"
                " group, for barriers and objects, is fine."
            ),
        ),
        steps=(
            'To train on CPUs: init_process_group("gloo").',
            (
                "To train on GPUs: check that the job sees them and that this torch is built for "
                'them:\nnvidia-smi; python -c "import torch; print(torch.version.cuda)"'
            ),
            (
                "To use both: call init_process_group() without a backend. CPU tensors then use"
                " gloo, and CUDA tensors use NCCL."
            ),
        ),
        no_demo="its ranks end at once, and the finding then is `rank-crashed`",
    ),
    Explanation(
        kind=Kind.VERSION_SKEW,
        severity="warning",
        brief="ranks run different torch, Python or scripts",
        meaning=(
            "The ranks do not run the same code. Two versions may call different collectives, or "
            "call them in a different order. The job then hangs, at the start or later, or the "
            "results differ."
        ),
        found=(
            (
                "Each rank reports its Python, its torch once it is imported, and a digest of its"
                " script. Scripts with different names differ on purpose, so they are not"
                " compared."
            ),
        ),
        steps=(
            "The evidence shows one line per version.",
            (
                "Use one environment for all ranks: the same container, or the same folder on a"
                " shared disk."
            ),
            "Compare the copies of the script:\nsha256sum SCRIPT    (on each host)",
        ),
        no_demo="it takes ranks with two installations of torch or Python",
    ),
)
