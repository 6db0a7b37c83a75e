"""`loss-not-finite`: the loss that the program reports is nan or infinite over several steps."""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import Began, RankFacts
from ddtop.policy import Limits
from ddtop.wire.records import TrainingProgress
from ddtop.words.sentences import ranks_text, verb


@dataclass(frozen=True)
class LossNotFinite(Limits, of=Kind.LOSS_NOT_FINITE):
    """`loss-not-finite`."""

    steps: int = 10
    """Steps with such a loss. Mixed precision loses a step or two while its scale is too large."""


EVIDENCE_MOST = 8


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
    others = [rank.rank for rank, _, since in reporting if since is None]
    first = min(lost.values(), key=_began)
    whose = f"the loss of {ranks_text(tuple(lost))}" if others else "the loss"
    summary = f"{whose} has been nan or infinite since about step {first.step:,}"
    if others:
        summary += f"; {ranks_text(others)} {verb(others, 'reports', 'report')} a number"
    return [
        Finding(
            kind=Kind.LOSS_NOT_FINITE,
            severity=WARNING,
            ranks=tuple(lost) if others else (),
            victims=(),
            since_unix_ns=first.since_unix_ns,
            summary=summary,
            evidence=tuple(
                f"rank {rank.rank} reports the loss {training.loss:g} at step"
                f" {_steps(training, rank):,}"
                for rank, training, _ in reporting[:EVIDENCE_MOST]
            ),
            advice=_ADVICE,
        )
    ]


_ADVICE = (
    "stop and go back to a checkpoint from well before that step; look at its batch, the learning"
    " rate and the scale of the gradients (torch.autograd.set_detect_anomaly names the operation)"
)


def _steps(training: TrainingProgress, rank: RankFacts) -> int:
    return training.step if training.step is not None else rank.progress.iteration or 0


def _began(since: Began) -> int:
    return since.since_unix_ns
