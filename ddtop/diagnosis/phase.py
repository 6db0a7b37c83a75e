"""How a rank's phase changes the time limits of those who wait for it: a checkpoint, a validation
or a compilation takes long.
"""

from __future__ import annotations

from ddtop.model.state.facts import RankFacts
from ddtop.policy import Policy
from ddtop.wire.progress import (
    CHECKPOINT,
    COMPILE,
    SANITY_CHECK,
    TEST,
    VALIDATE,
    TrainingProgress,
)
from ddtop.words.progress import phase_text
from ddtop.words.sentences import file_line
from ddtop.words.units import duration

LONG_PHASES = (CHECKPOINT, VALIDATE, TEST, COMPILE, SANITY_CHECK)
"""Phases in which one rank may let the others wait. Names that the program has chosen do not
count."""


def phase_of(rank: RankFacts) -> TrainingProgress | None:
    """The progress of a rank that is in such a phase; None for all other ranks."""
    training = rank.progress.training
    if training is None or training.phase not in LONG_PHASES:
        return None
    if training.since_unix_ns is None or rank.gone:
        return None
    return training


def phase_limit_s(rank: RankFacts, works: bool, limit_s: float, policy: Policy) -> float:
    """How long (s) the others may wait for it before the wait is critical.

    `limit_s`: the limit without a phase. `works`: it uses CPU or does I/O. If it works, the phase
    may last `phase_overdue_factor` times its usual length. Otherwise it has less time, but at least
    the length of earlier phases.
    """
    training = phase_of(rank)
    if training is None:
        return limit_s
    longest_s = training.longest_s or 0.0
    if works:
        return max(limit_s, policy.phase_overdue_factor * longest_s)
    return max(limit_s, policy.phase_still_limit_s, policy.phase_usual_factor * longest_s)


def phase_clause(rank: RankFacts, now_unix_ns: int) -> str | None:
    """`saving a checkpoint (trainer.py:142), 40 s; usually 35 s`; None: it is in no such phase."""
    training = phase_of(rank)
    if training is None:
        return None
    place = rank.reported.place
    spot = f" ({file_line(place)})" if place is not None else ""
    lasts_s = max((now_unix_ns - (training.since_unix_ns or now_unix_ns)) / 1e9, 0.0)
    usual = f"; usually {duration(training.usual_s)}" if training.usual_s is not None else ""
    return f"{phase_text(training.phase or '')}{spot}, {duration(lasts_s)}{usual}"
