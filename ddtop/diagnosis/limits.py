"""The names of all limits that a user can set. This imports every block of them."""

from __future__ import annotations

from dataclasses import dataclass

import ddtop.diagnosis.judge
import ddtop.model.job  # noqa: F401
from ddtop.policy import BLOCKS, Limits, Policy


@dataclass(frozen=True)
class CalmLimits(Limits, of="calm", was=""):
    """What is said of a job without findings."""

    stand_most_ranks: int = 512
    """With more ranks it is not asked at each snapshot whether all are at one place."""


OLD_NAMES = {
    was + one: name
    for name in Policy().values()
    for of, _, one in [name.rpartition(".")]
    if one != "wait_s" and (was := BLOCKS[of].was if of else "") is not None
}
"""What each was called in `[thresholds]`, and what it is called in `[limits]`."""
