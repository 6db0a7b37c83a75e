"""What is said of the training itself: its parameters and its loss."""

from __future__ import annotations

from ddtop.diagnosis.finding import Context, Finding
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.say.said import Said
from ddtop.words.sentences import ranks_text, verb

EVIDENCE_MOST = 4


def diverged(_: Finding, seen: Apart, __: Context) -> Said:
    """Which parameter differs most, and where."""
    first, last, names, values, odd, others = seen
    name, own, usual = max(
        zip(names, values[odd[0]], values[others[0]], strict=False),
        key=lambda one: abs(one[1] - one[2]),
        default=("", 0.0, 0.0),
    )
    shown = odd
    if len(odd) < len(others):
        whose = f"{ranks_text(odd)} differ from those of {ranks_text(others)}"
        how = f"{own:.6g} instead of {usual:.6g}"
    else:
        whose = f"{ranks_text(tuple(values))} differ from each other"
        how = f"{usual:.6g} on rank {others[0]}, {own:.6g} on rank {odd[0]}"
        shown = tuple(values)
    return Said(
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
                for rank in dict.fromkeys((*shown[:EVIDENCE_MOST], others[0]))
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


def not_finite(_: Finding, seen: NotFinite, __: Context) -> Said:
    """Whose loss, and what each rank reports."""
    whose = f"the loss of {ranks_text(seen.ranks)}" if seen.numbers else "the loss"
    summary = f"{whose} has been nan or infinite since about step {seen.first:,}"
    if seen.numbers:
        reports = verb(seen.numbers, "reports", "report")
        summary += f"; {ranks_text(seen.numbers)} {reports} a number"
    return Said(
        summary,
        tuple(
            f"rank {rank} reports the loss {loss:g} at step {step:,}"
            for rank, loss, step in seen.losses
        ),
        "stop and go back to a checkpoint from well before that step; look at its batch, the"
        " learning rate and the scale of the gradients (torch.autograd.set_detect_anomaly names the"
        " operation)",
    )
