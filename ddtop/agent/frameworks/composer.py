"""Composer of MosaicML.

Source: `State.timestamp` (composer 0.3x, core/time.py:624): batch, epoch, sample and token, each
with a `value` of the whole job, and `State.max_duration`. Phase: `Trainer._eval_loop`; torch's own
checkpoint functions. Caveat: the loss is a tensor on the device, so it is not read. Check: its
progress bar.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import as_phase, while_running
from ddtop.agent.notes import TRAINER, ObjectSource, SourceValues
from ddtop.agent.plain import number, peek, whole
from ddtop.wire.records import IDLE, VALIDATE


def wrap(module: ModuleType) -> None:
    """Note which trainer trains, and when it evaluates."""
    trainer = module.Trainer
    while_running(trainer, "fit", ComposerSource().note, "progress of composer")
    as_phase(trainer, "_eval_loop", VALIDATE, "composer")


class ComposerSource(ObjectSource):
    """Reads the trainer that has last begun to train."""

    name = "composer"
    level = TRAINER

    def read_from(self, own: Any) -> SourceValues | None:
        """The timestamp of its state."""
        at, most = peek(own, "state", "timestamp"), peek(own, "state", "max_duration")
        reading = SourceValues(
            step=whole(peek(at, "batch", "value")),
            epoch=number(peek(at, "epoch", "value")),
            samples=number(peek(at, "sample", "value")) or None,
            tokens=number(peek(at, "token", "value")) or None,
            phase=None if self.runs else IDLE,
        )
        unit = peek(most, "unit", "_value_")
        if unit == "ba":
            reading.total_steps = whole(peek(most, "value"))
        elif unit == "ep":
            reading.total_epochs = number(peek(most, "value"))
        return reading
