"""The names of all limits that a user can set. This imports every block of them."""

from __future__ import annotations

from dataclasses import dataclass

import ddtop.diagnosis.judge
import ddtop.model.job  # noqa: F401
from ddtop.policy import Limits


@dataclass(frozen=True)
class CalmLimits(Limits, of="calm"):
    """What is said of a job without findings."""

    stand_most_ranks: int = 512
    """With more ranks it is not asked at each snapshot whether all are at one place."""


@dataclass(frozen=True)
class Growing(Limits, of="growing"):
    """What is said beside what a rank does."""

    memory_bytes_per_s: float = 8.0 * 2**20
    """Its memory grows by so much each second, over twenty seconds. A cache fills more slowly."""
