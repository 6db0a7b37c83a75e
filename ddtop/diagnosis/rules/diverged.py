"""`diverged`: parameters that DistributedDataParallel keeps equal differ between ranks."""

from __future__ import annotations

from typing import NamedTuple

from ddtop.diagnosis.rule import RUNS, WARNING, Context, Explanation, Finding, Kind, RuleRow


class Apart(NamedTuple):
    """Elements of these parameters differ. `values`: by rank, after step `last`. `odd`: the ranks
    that differ from `others`."""

    first: int
    last: int
    names: tuple[str, ...]
    values: dict[int, tuple[float, ...]]
    odd: tuple[int, ...]
    others: tuple[int, ...]


def rule(context: Context) -> list[Finding]:
    """At most one finding: about the parameters that were the first to differ."""
    snapshot = context.snapshot
    apart = {
        (began.step, key, began.since_unix_ns)
        for rank in snapshot.ranks
        for key, began in rank.progress.apart.items()
    }
    for first, key, since_unix_ns in sorted(apart):
        members = {
            rank.rank: dict(replica.taken)
            for rank in snapshot.ranks
            if not rank.gone
            for replica in rank.progress.replicas
            if replica.key == key
        }
        group = snapshot.group(key[0])
        # All members must say what they have.
        if group is None or members.keys() != set(group.ranks):
            continue
        steps = set.intersection(*map(set, members.values()))
        if steps:
            last = max(steps)
            values = {rank: taken[last] for rank, taken in members.items()}
            odd = [rank for rank in values if key in snapshot.rank(rank).progress.apart]
            return [_finding(first, last, key[2], values, odd, since_unix_ns)]
    return []


def _finding(
    first: int,
    last: int,
    names: tuple[str, ...],
    values: dict[int, tuple[float, ...]],
    odd: list[int],
    since_unix_ns: int,
) -> Finding:
    """`odd`: the ranks that differ from the first of the group. `first`, `last`: steps."""
    others = [rank for rank in values if rank not in odd]
    if len(odd) > len(others) and len({values[rank] for rank in odd}) == 1:
        # They agree with each other, so the first is the one that differs.
        odd, others = others, odd
    ranks = tuple(odd if len(odd) < len(others) else values)
    seen = Apart(first, last, names, values, tuple(odd), tuple(others))
    return Finding(Kind.DIVERGED, WARNING, ranks, (), since_unix_ns, seen=seen)


ROWS = (
    RuleRow(
        rule,
        (Kind.DIVERGED,),
        "values of parameters that DistributedDataParallel keeps equal, after optimizer steps",
        needs=("groups",),
        unless=RUNS,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.DIVERGED,
        severity="warning",
        brief="parameters that should be equal on all ranks are not",
        meaning=(
            "DistributedDataParallel makes the parameters equal once, when it wraps the model. From"
            " then on it only averages gradients. A rank that makes another update stays different:"
            " nothing fails, but the ranks average gradients of different models."
        ),
        found=(
            (
                "After every 16th optimizer step each rank reads one element of a few parameters."
                " Samples of the same step differed by more than {diverged.ratio} of the value,"
                " {diverged.samples} times in a row. Steps count since the model was wrapped."
            ),
            (
                "Only float32 parameters of models in DistributedDataParallel are compared, no"
                " buffers. ddtop is silent after an optimizer step in no_sync or join, with a"
                " communication hook, and where torch.compile or a CUDA graph runs the step."
            ),
            "A rank is named only if more ranks agree with each other than differ.",
        ),
        steps=(
            "Print the learning rate on every rank: optimizer.param_groups[0]['lr']",
            "Look for a step that only some ranks skip, and for model.module(...) in the training.",
            "Load checkpoints before the model is wrapped, or on every rank from the same file.",
        ),
        before=("if torch.isfinite(loss):   # on this rank", "    optimizer.step()"),
        after=(
            "ok = torch.isfinite(loss).float()",
            "dist.all_reduce(ok, op=dist.ReduceOp.MIN)",
            "if ok:",
            "    optimizer.step()",
        ),
        no_demo="it takes a program that trains a real model for some time",
    ),
)
