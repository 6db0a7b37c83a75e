"""Which function writes the text of a finding, by the type of its record."""

from __future__ import annotations

from ddtop.diagnosis.rules.blamed import HeldUp, IoStalled, NotLaunched, WorkerStuck
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.diagnosis.rules.no_progress import ForOutside, Stands
from ddtop.diagnosis.rules.stalls import Halted
from ddtop.diagnosis.rules.waits_for_job import Absent, Crossed
from ddtop.say import blamed, calls, cycles, no_progress, other_jobs, stalls, training
from ddtop.say.said import Around, Writer

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
    **calls.WRITERS,
    **cycles.WRITERS,
}
AROUND: dict[type, Around] = {
    Crossed: other_jobs.crossed,
    Absent: other_jobs.absent,
    **calls.AROUND,
}
