"""torchtitan.

Source: its `Trainer` (0.2, torchtitan/train.py, later torchtitan/trainer.py): `step`, and
`training.steps` of its configuration. `torchrun -m torchtitan.train` has the trainer as a global of
`__main__`. In later releases, `Trainer.train` is noted. The loss is an argument of
`MetricsProcessor.log`, a float, every `log_freq` steps. Phases: `Validator.validate`, and torch's
own checkpoint functions. Check: its log.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import as_phase, call_note_before, while_running
from ddtop.agent.notes import TRAINER, ObjectSource, SourceValues, progress_notes
from ddtop.agent.plain import number, of_class, peek, whole
from ddtop.wire.records import VALIDATE


def wrap_metrics(module: ModuleType) -> None:
    """`torchtitan.components.metrics`, which both trainers import."""
    progress_notes.add(SOURCE)
    call_note_before(module.MetricsProcessor, "log", SOURCE.note_log, "progress of torchtitan")


def wrap_trainer(module: ModuleType) -> None:
    """`torchtitan.trainer`."""
    while_running(module.Trainer, "train", SOURCE.note, "progress of torchtitan")


def wrap_validator(module: ModuleType) -> None:
    """`torchtitan.components.validate`."""
    as_phase(module.Validator, "validate", VALIDATE, "torchtitan")


class TitanSource(ObjectSource):
    """Reads the trainer."""

    name = "torchtitan"
    level = TRAINER

    def __init__(self) -> None:
        super().__init__()
        self.loss: float | None = None

    def note_log(self, _self: Any, _step: int, global_avg_loss: Any, *_more: Any, **_: Any) -> None:
        """The loss that is logged, over all ranks."""
        self.loss = number(global_avg_loss)

    def read(self) -> SourceValues | None:
        """Register the source, also for a trainer that is a global of the program."""
        if self._object is None:
            trainer = getattr(sys.modules.get("__main__"), "trainer", None)
            trains = of_class(type(trainer), "train_step") is not None
            if trains and whole(peek(trainer, "step")) is not None:
                self.note(trainer, True)
        return super().read()

    def read_from(self, own: Any) -> SourceValues | None:
        """Its step."""
        config = peek(own, "job_config") or peek(own, "config")
        total = whole(peek(config, "training", "steps"))
        return SourceValues(step=whole(peek(own, "step")), total_steps=total, loss=self.loss)


SOURCE = TitanSource()
