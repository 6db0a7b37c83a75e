"""Which function writes the text of a finding, by the type of its record.

A writer gets the finding, its record, and the moment at which it was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtop.diagnosis.finding import Context, Finding
from ddtop.diagnosis.rules.data import Alone, WaitsForData
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.diagnosis.rules.resources import Crowded, FullDisk, Short
from ddtop.diagnosis.rules.slowdown import Slower
from ddtop.diagnosis.rules.straggler import Communication
from ddtop.model.facts import Balance, GpuLate, Late
from ddtop.model.stragglers import LateByStack
from ddtop.say import resources, stragglers, training
from ddtop.say.said import Said
from ddtop.wire.records import Feed

Writer = Callable[[Finding, Any, Context], Said]

WRITERS: dict[type, Writer] = {
    Alone: training.not_distributed,
    Apart: training.diverged,
    Balance: stragglers.imbalance,
    Communication: stragglers.communication,
    Crowded: resources.crowded,
    Feed: training.sampling,
    FullDisk: resources.disk,
    GpuLate: stragglers.late_gpu,
    Late: stragglers.late,
    LateByStack: stragglers.late_by_stack,
    NotFinite: training.not_finite,
    Short: resources.memory,
    Slower: training.slowdown,
    WaitsForData: training.input_bound,
}
