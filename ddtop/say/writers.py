"""Which function writes the text of a finding, by the type of its record.

A writer gets the finding, its record, and the moment at which it was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtop.diagnosis.finding import Context, Finding
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.say import training
from ddtop.say.said import Said

Writer = Callable[[Finding, Any, Context], Said]

WRITERS: dict[type, Writer] = {
    Apart: training.diverged,
    NotFinite: training.not_finite,
}
