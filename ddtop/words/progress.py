"""How far a training is, as text: `step 1,200 of 10,000, epoch 3.2 of 10, loss 2.31`."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.wire.progress import (
    CHECKPOINT,
    COMPILE,
    IDLE,
    SANITY_CHECK,
    TEST,
    TRAIN,
    VALIDATE,
    Expectation,
    TrainingProgress,
)
from ddtop.words import units
from ddtop.words.ranks import ranks_text, verb

PHASE_WORDS = {
    TRAIN: "training",
    VALIDATE: "validating",
    TEST: "testing",
    CHECKPOINT: "saving a checkpoint",
    COMPILE: "compiling",
    SANITY_CHECK: "checking the validation loop",
    IDLE: "idle",
}


def phase_text(phase: str) -> str:
    """`saving a checkpoint`; a word of the program's own: `in phase warm-up`."""
    return PHASE_WORDS.get(phase) or f"in phase {phase}"


def expected_text(ranks: Sequence[int], region: Expectation, now_unix_ns: int) -> str:
    """`rank 0 is in 'export' for 11 min; 10 min were expected`; before that the expected end."""
    who = f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} in '{region.name}'"
    if now_unix_ns < region.until_unix_ns:
        return f"{who}, which is expected to end by {units.clock(region.until_unix_ns)}"
    lasts_s = (now_unix_ns - region.since_unix_ns) / 1e9
    limit = units.duration((region.until_unix_ns - region.since_unix_ns) / 1e9)
    were = "was" if limit == "1 s" else "were"
    return f"{who} for {units.duration(lasts_s)}; {limit} {were} expected"


def progress_text(progress: TrainingProgress) -> str:
    """All that is known, in one line."""
    return ", ".join(progress_parts(progress))


def progress_parts(progress: TrainingProgress) -> tuple[str, ...]:
    """All that is known, a piece each; numbers that nobody counts are left out."""
    parts = [
        _of("step", progress.step, progress.total_steps),
        _of("epoch", progress.epoch, progress.total_epochs),
        phase_text(progress.phase) if progress.phase is not None else "",
        f"{number(progress.samples_per_s)} samples/s" if progress.samples_per_s is not None else "",
        f"{number(progress.tokens_per_s)} tokens/s" if progress.tokens_per_s is not None else "",
        f"loss {_loss(progress.loss)}" if progress.loss is not None else "",
        f"lr {progress.lr:.3g}" if progress.lr is not None else "",
        f"{units.duration(progress.eta_s)} left" if progress.eta_s is not None else "",
    ]
    return tuple(part for part in parts if part)


def only_steps(progress: TrainingProgress) -> TrainingProgress:
    """The same without what is over when a job has ended: only steps and epochs."""
    return TrainingProgress(
        source=progress.source,
        step=progress.step,
        total_steps=progress.total_steps,
        epoch=progress.epoch,
        total_epochs=progress.total_epochs,
    )


def number(value: float | None) -> str:
    """Three digits, and all digits of a large whole number: `2.31`, `41`, `12,480`."""
    if value is None:
        return units.NOT_MEASURED
    return f"{value:,.0f}" if abs(value) >= 100 and abs(value) < 1e15 else f"{value:.3g}"


def _loss(value: float) -> str:
    """As `number`, but with the zeros at its end: `2.00` is not exactly 2, and keeps its width."""
    return number(value) if abs(value) >= 100 else f"{value:#.3g}"


def _of(name: str, done: float | None, total: float | None) -> str:
    if done is None:
        return ""
    own = f"{done:,.0f}" if done == int(done) else f"{done:,.1f}"
    return f"{name} {own}" + (f" of {total:,.0f}" if total else "")
