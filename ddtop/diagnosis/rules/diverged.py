"""`diverged`: parameters that DistributedDataParallel keeps equal differ between ranks."""

from __future__ import annotations

from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.words.sentences import ranks_text

EVIDENCE_MOST = 4


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
    name, own, usual = max(
        zip(names, values[odd[0]], values[others[0]], strict=False),
        key=lambda one: abs(one[1] - one[2]),
        default=("", 0.0, 0.0),
    )
    if len(odd) < len(others):
        whose = f"{ranks_text(odd)} differ from those of {ranks_text(others)}"
        how = f"{own:.6g} instead of {usual:.6g}"
    else:
        whose = f"{ranks_text(tuple(values))} differ from each other"
        how = f"{usual:.6g} on rank {others[0]}, {own:.6g} on rank {odd[0]}"
        odd = list(values)
    return Finding(
        kind=Kind.DIVERGED,
        severity=WARNING,
        ranks=tuple(odd),
        victims=(),
        since_unix_ns=since_unix_ns,
        summary=(
            f"the parameters of {whose} since optimizer step {first:,} or before: {name} ({how});"
            " DistributedDataParallel averages their gradients, so they should be equal"
        ),
        evidence=(
            *(
                f"rank {rank}, after step {last:,}: "
                + ", ".join(
                    f"{name} {value:.6g}" for name, value in zip(names, values[rank], strict=False)
                )
                for rank in dict.fromkeys((*odd[:EVIDENCE_MOST], others[0]))
            ),
            "one element of each parameter; steps count since the model was wrapped",
        ),
        advice=(
            "look for what only some ranks do after the gradients are averaged: another learning"
            " rate or clipping, an optimizer.step that is skipped, parameters that are not in"
            " the optimizer, drawn with another seed, loaded, clamped or overwritten in memory. The"
            " ranks train different models now: broadcast the parameters of one rank, or go back to"
            " a checkpoint from before that step"
        ),
    )
