"""`loss-not-finite`: the loss that the program reports is nan or infinite over several steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rule import RUNS, WARNING, Context, Explanation, Finding, Kind, Limits, RuleRow
from ddtop.model.facts import RankFacts
from ddtop.wire.records import TrainingProgress


@dataclass(frozen=True)
class LossNotFinite(Limits, of=Kind.LOSS_NOT_FINITE):
    """`loss-not-finite`."""

    steps: int = 10
    """Steps with such a loss. Mixed precision loses a step or two while its scale is too large."""


LOSSES_MOST = 8
"""Ranks whose loss is shown."""


class LossAtStep(NamedTuple):
    """What a rank reports."""

    rank: int
    loss: float
    step: int


class NotFinite(NamedTuple):
    """The loss of `ranks` has not been finite since about step `first`; `numbers`: the ranks that
    report a number."""

    ranks: tuple[int, ...]
    numbers: tuple[int, ...]
    first: int
    losses: tuple[LossAtStep, ...]


def rule(context: Context) -> list[Finding]:
    """One finding. It names ranks only while the loss of others is a number."""
    least = context.policy.of(LossNotFinite).steps
    reporting = [
        (rank, training, rank.progress.not_finite)
        for rank in context.snapshot.ranks
        if (training := rank.progress.training) is not None
        and training.loss is not None
        and not rank.gone
    ]
    lost = {
        rank.rank: since
        for rank, training, since in reporting
        if since is not None and _steps(training, rank) - since.step >= least
    }
    if not lost:
        return []
    numbers = tuple(rank.rank for rank, _, since in reporting if since is None)
    first = min(lost.values(), key=lambda began: began.since_unix_ns)
    losses = tuple(
        LossAtStep(rank.rank, training.loss or 0.0, _steps(training, rank))
        for rank, training, _ in reporting[:LOSSES_MOST]
    )
    seen = NotFinite(tuple(lost), numbers, first.step, losses)
    ranks = seen.ranks if numbers else ()
    return [Finding(Kind.LOSS_NOT_FINITE, WARNING, ranks, (), first.since_unix_ns, seen=seen)]


def _steps(training: TrainingProgress, rank: RankFacts) -> int:
    return training.step if training.step is not None else rank.progress.iteration or 0


ROWS = (
    RuleRow(
        rule,
        (Kind.LOSS_NOT_FINITE,),
        "the loss that a framework or ddtop.progress reports",
        unless=RUNS,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.LOSS_NOT_FINITE,
        severity="warning",
        brief="the loss is nan or infinite, and the job trains on",
        meaning=(
            "The program reports a loss that is not a number, step after step. The parameters are"
            " most often lost by then: every further step costs time and gives nothing."
        ),
        found=(
            (
                "The loss is the one that a framework logs or ddtop.progress(loss=...) reports. It"
                " was nan or infinite in every report over {loss-not-finite.steps} steps. ddtop"
                " computes nothing itself and reads no GPU."
            ),
            (
                "Ranks are named only while other ranks report a number. Mixed precision that skips"
                " a step or two is not reported."
            ),
        ),
        steps=(
            (
                "Go back to a checkpoint from well before the step in the sentence: reports are a"
                " second apart."
            ),
            "Which operation made it?\ntorch.autograd.set_detect_anomaly(True)",
            (
                "Only some ranks: look at their batches. DDP gives the nan to all ranks in the next"
                " step."
            ),
        ),
        before=("loss.backward()", "optimizer.step()          # nan once, nan for ever"),
        after=(
            "if not torch.isfinite(loss):",
            "    raise RuntimeError('loss is not finite')",
        ),
        no_demo="it needs a program that reports its loss; the demo's reports a real one",
    ),
)
