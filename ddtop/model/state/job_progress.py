"""The progress of the job, from the progress of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from ddtop.model.state.facts import RankFacts
from ddtop.wire.progress import IDLE, TRAIN, TrainingProgress

T = TypeVar("T")


def of_job(ranks: Iterable[RankFacts], still: bool, now_unix_ns: int) -> TrainingProgress | None:
    """One progress for all ranks; None while no rank reports any. `still`: no rank makes steps.

    Steps and rates are the median over the ranks that have the most frequent source of steps. What
    only some ranks know (loss and bars are often rank 0's) is taken from the lowest of them. The
    phase is that of most ranks, but `train` only if no living rank is in another: the job waits
    for a rank that saves a checkpoint.
    """
    known = [(rank, rank.progress.training) for rank in ranks if rank.progress.training is not None]
    if not known:
        return None
    counting = [one for _, one in known if one.step is not None]
    source = _most([one.source for one in counting or [one for _, one in known]])
    own = [one for one in counting or [one for _, one in known] if one.source == source]
    rest = [*own, *(one for _, one in known if one.source != source)]
    phased = _phase([one for rank, one in known if not rank.gone] or [one for _, one in known])
    steps = [one.step for one in own if one.step is not None]
    found = TrainingProgress(
        source=source,
        step=int(median(steps)) if steps else None,
        total_steps=_first(one.total_steps for one in own),
        epoch=_median([one.epoch for one in own]),
        total_epochs=_first(one.total_epochs for one in own),
        phase=phased.phase,
        samples_per_s=_median([one.samples_per_s for one in rest]),
        tokens_per_s=_median([one.tokens_per_s for one in rest]),
        loss=_first(one.loss for one in rest),
        lr=_first(one.lr for one in rest),
        eta_s=_median([one.eta_s for one in own]),
        since_unix_ns=phased.since_unix_ns,
        steps_per_s=_median([one.steps_per_s for one in own]),
        usual_s=phased.usual_s,
        longest_s=phased.longest_s,
        phases_ended=phased.phases_ended,
    )
    return as_it_stands(found, still, now_unix_ns)


def as_it_stands(progress: TrainingProgress, still: bool, now_unix_ns: int) -> TrainingProgress:
    """Without a time left and without rates if the job is `still`: nobody knows when it goes on, or
    whether, and a framework's rates are those of its last report.

    In a validation or a checkpoint no steps are expected, so they stay until the phase takes longer
    than all of its kind before.
    """
    if not still or _is_pause(progress, now_unix_ns):
        return progress
    return msgspec.structs.replace(
        progress, eta_s=None, steps_per_s=None, samples_per_s=None, tokens_per_s=None
    )


def _is_pause(progress: TrainingProgress, now_unix_ns: int) -> bool:
    """Whether it is in a phase without steps, and for no longer than the longest one before."""
    if progress.phase in (None, TRAIN, IDLE):
        return False
    if progress.since_unix_ns is None or progress.longest_s is None:
        return False
    return now_unix_ns - progress.since_unix_ns <= progress.longest_s * 1e9


def _phase(known: Sequence[TrainingProgress]) -> TrainingProgress:
    """The progress whose phase is the job's, with the earliest beginning."""
    named = [one for one in known if one.phase is not None]
    others = [one for one in named if one.phase != TRAIN]
    if not named:
        return known[0]
    phase = _most([one.phase or "" for one in others or named])
    same = [one for one in named if one.phase == phase]
    return min(same, key=lambda one: one.since_unix_ns or 0)


def _most(names: Sequence[str]) -> str:
    """The most frequent name, the first of equals."""
    return Counter(names).most_common(1)[0][0]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)
