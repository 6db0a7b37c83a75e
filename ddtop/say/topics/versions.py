"""What is said of ranks that run other software than the others, or not what was asked for."""

from __future__ import annotations

from ddtop.diagnosis.rules.versions import Backend, Skew
from ddtop.say.said import Context, Finding, Said, Writer, size
from ddtop.words.sentences import by_value, ranks_text, verb

VALUES_MOST, NAMED_MOST, RANKS_MOST = 6, 3, 4


def skew(finding: Finding, seen: Skew, at: Context) -> Said:
    """Which versions differ, and between which ranks."""
    ranks, lines, parts = finding.ranks, [], []
    for name, values in seen.values.items():
        versions = [f"{ranks_text(ranks)}: {value}" for value, ranks in by_value(values).items()]
        lines.append(f"{name}: " + "; ".join(versions[:VALUES_MOST]))
        parts.append(f"{name} ({', '.join(versions[:NAMED_MOST])})")
    for number in ranks[:RANKS_MOST]:
        if (hello := at.snapshot.rank(number).hello) is not None:
            lines.append(
                f"rank {number} on {hello.host}: Python {hello.python or '?'}, torch"
                f" {hello.torch or '?'}, {' '.join(hello.argv[:3])}"
            )
    every = len(ranks) == sum(rank.hello is not None for rank in at.snapshot.ranks)
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'runs', 'run')} different versions"
        f"{'' if every else ' from the rest'}: {', '.join(parts)}",
        tuple(lines),
        "start all ranks from one environment and one copy of the script: all ranks must make the"
        " same calls",
    )


def backend(finding: Finding, seen: Backend, at: Context) -> Said:
    """Which backend does not fit the devices."""
    ranks = finding.ranks
    if seen.gloo_bytes:
        return Said(
            f"{ranks_text(ranks)} {verb(ranks, 'moves', 'move')} gradients of"
            f" {size(seen.gloo_bytes)} from GPU to GPU through gloo in each step, although this"
            " torch has NCCL",
            (
                "the group in which DistributedDataParallel averages gradients uses gloo for CUDA"
                " tensors: each gradient is copied to the host, sent over the network and copied"
                " back",
            ),
            'call init_process_group("nccl"), or pass no backend to use both: CPU tensors over'
            " gloo, CUDA tensors over NCCL",
        )
    exception = at.snapshot.rank(ranks[0]).reported.exception
    assert exception is not None
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'asks', 'ask')} for NCCL, but torch finds no GPU or no"
        " NCCL there",
        (f"rank {ranks[0]}: {exception.type}: {exception.text}",),
        'on CPUs call init_process_group("gloo"); with GPUs check nvidia-smi,'
        " CUDA_VISIBLE_DEVICES, and that torch is built with CUDA",
    )


WRITERS: dict[type, Writer] = {Backend: backend, Skew: skew}
