"""The names of all limits that a user can set. This imports every block of them."""

from __future__ import annotations

import ddtop.diagnosis.judge
import ddtop.model.job  # noqa: F401
from ddtop.policy import BLOCKS, Policy

OLD_NAMES = {
    was + one: name
    for name in Policy().values()
    for of, _, one in [name.rpartition(".")]
    if one != "wait_s" and (was := BLOCKS[of].was if of else "") is not None
}
"""What each was called in `[thresholds]`, and what it is called in `[limits]`."""
