"""The Trainer of Hugging Face transformers, and trainers that inherit from it (TRL).

Source: `Trainer.state`, a TrainerState (transformers 5.23, trainer_callback.py:40): global_step,
max_steps, epoch, num_train_epochs, num_input_tokens_seen, and log_history, into which the trainer
writes the loss as a float. Phases are calls of evaluate, predict and _save_checkpoint. Caveat: the
loss is as old as `logging_steps`. Check: the trainer's log.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import as_phase, first_number, while_running
from ddtop.agent.notes import TRAINER, ObjectSource, SourceValues
from ddtop.agent.plain import is_of_library, number, of_class, peek, whole
from ddtop.wire.records import CHECKPOINT, IDLE, TEST, VALIDATE

LOGS_LOOKED_AT = 8
"""Entries of the log from its end: logs of evaluations have no `loss`."""


def wrap(module: ModuleType) -> None:
    """Note which trainer trains, and its phases."""
    trainer: Any = module.Trainer
    source = TrainerSource()
    while_running(trainer, "train", source.note, "progress of hf-trainer")
    as_phase(trainer, "evaluate", VALIDATE, source.name)
    as_phase(trainer, "predict", TEST, source.name)
    as_phase(trainer, "_save_checkpoint", CHECKPOINT, source.name)


class TrainerSource(ObjectSource):
    """Reads the trainer that has last begun to train."""

    name = "hf-trainer"
    level = TRAINER

    def read_from(self, own: Any) -> SourceValues | None:
        """The state of the trainer; None before its first step is known."""
        state = peek(own, "state")
        step = whole(peek(state, "global_step"))
        reading = SourceValues(
            step=step,
            total_steps=whole(peek(state, "max_steps")) or None,
            epoch=number(peek(state, "epoch")),
            total_epochs=number(peek(state, "num_train_epochs")) or None,
            phase=None if self.runs else IDLE,
            tokens=number(peek(state, "num_input_tokens_seen")) or None,
        )
        total = of_class(type(own), "get_total_train_batch_size")
        if step is not None and is_of_library(total):
            reading.samples = number(step * total(own, peek(own, "args")))
        logs = peek(state, "log_history", default=())
        for log in reversed(logs[-LOGS_LOOKED_AT:] if type(logs) is list else []):
            if (loss := first_number(log, ("loss",))) is not None:
                reading.loss, reading.lr = loss, first_number(log, ("learning_rate",))
                break
        return reading
