"""Which function writes the text of a finding, by the type of its record.

A writer gets the finding, its record, and the moment at which it was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtop.diagnosis.finding import Context, Finding
from ddtop.diagnosis.rules.blamed import HeldUp, IoStalled, NotLaunched, WorkerStuck
from ddtop.diagnosis.rules.data import Alone, WaitsForData
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.diagnosis.rules.no_progress import ForOutside, Stands
from ddtop.diagnosis.rules.resources import Crowded, FullDisk, Short
from ddtop.diagnosis.rules.slowdown import Slower
from ddtop.diagnosis.rules.stalls import Halted
from ddtop.diagnosis.rules.straggler import Communication
from ddtop.diagnosis.rules.waits_for_job import Absent, Crossed
from ddtop.model.facts import Balance, GpuLate, Late
from ddtop.model.stragglers import LateByStack
from ddtop.say import blamed, no_progress, other_jobs, resources, stalls, stragglers, training
from ddtop.say.said import Said
from ddtop.wire.records import Feed

Writer = Callable[[Finding, Any, Context], Said]
Around = Callable[[Finding, Any, Context, Said], Said]

WRITERS: dict[type, Writer] = {
    Alone: training.not_distributed,
    HeldUp: blamed.held_up,
    NotLaunched: blamed.not_launched,
    IoStalled: stalls.io_stalled,
    WorkerStuck: stalls.worker_stuck,
    Halted: stalls.halted,
    Stands: no_progress.stands,
    ForOutside: no_progress.for_outside,
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
AROUND: dict[type, Around] = {
    Crossed: other_jobs.crossed,
    Absent: other_jobs.absent,
}
"""The writers of findings that are made of another one: they also get the words of that one."""
