"""Which function writes the text of a finding, by the type of its record.

A writer gets the finding, its record, and the moment at which it was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtop.diagnosis.finding import Context, Finding
from ddtop.diagnosis.rules.blamed import HeldUp, IoStalled, NotLaunched, WorkerStuck
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.diagnosis.rules.no_progress import ForOutside, Stands
from ddtop.diagnosis.rules.stalls import Halted
from ddtop.diagnosis.rules.waits_for_job import Absent, Crossed
from ddtop.say import blamed, no_progress, other_jobs, stalls, training
from ddtop.say.said import Said

Writer = Callable[[Finding, Any, Context], Said]
Around = Callable[[Finding, Any, Context, Said], Said]

WRITERS: dict[type, Writer] = {
    HeldUp: blamed.held_up,
    NotLaunched: blamed.not_launched,
    IoStalled: stalls.io_stalled,
    WorkerStuck: stalls.worker_stuck,
    Halted: stalls.halted,
    Stands: no_progress.stands,
    ForOutside: no_progress.for_outside,
    Apart: training.diverged,
    NotFinite: training.not_finite,
}
AROUND: dict[type, Around] = {
    Crossed: other_jobs.crossed,
    Absent: other_jobs.absent,
}
"""The writers of findings that are made of another one: they also get the words of that one."""
