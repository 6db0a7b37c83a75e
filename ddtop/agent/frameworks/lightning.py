"""The Trainer of Lightning.

Source: `Trainer` (lightning 2.6, pytorch/trainer/trainer.py:1559-1740): global_step, max_steps,
current_epoch, max_epochs, num_training_batches, state.stage, and the numbers that its progress bar
and its loggers have been given. Nothing is computed: `estimated_stepping_batches` would make a
DataLoader. Samples are the batches that are done, times `batch_size` of the DataLoader
(loops/fit_loop.py:257) and `num_replicas` of its sampler. Caveat: the last batch of an epoch counts
as a whole one; of several DataLoaders, or of one that makes its batches itself, no samples are
known. Values that are still tensors are read only if they are on the CPU. Check: the trainer's
progress bar.
"""

from __future__ import annotations

import sys
from math import isfinite
from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import LOSSES, as_phase, first_number, while_running
from ddtop.agent.notes import TRAINER, ObjectSource, SourceValues
from ddtop.agent.plain import is_a, number, peek, text, whole
from ddtop.agent.probes.replicas import may_be_asked
from ddtop.wire.records import CHECKPOINT, IDLE, SANITY_CHECK, TEST, TRAIN, VALIDATE

STAGES = {
    "train": TRAIN,
    "sanity_check": SANITY_CHECK,
    "validate": VALIDATE,
    "test": TEST,
    "predict": TEST,
}
"""Values of `RunningStage` (pytorch/trainer/states.py:44)."""
_DONE = "fit_loop", "epoch_loop", "batch_progress"


def wrap(module: ModuleType) -> None:
    """Note which trainer runs, and when it saves a checkpoint."""
    source = LightningSource()
    trainer: Any = module.Trainer
    while_running(trainer, "_run", source.note, "progress of lightning")
    as_phase(trainer, "save_checkpoint", CHECKPOINT, source.name)


class LightningSource(ObjectSource):
    """Reads the trainer that has last begun to run."""

    name = "lightning"
    level = TRAINER

    def read_from(self, own: Any) -> SourceValues | None:
        """Where the trainer is."""
        stage = peek(own, "state", "stage")
        stage = text(peek(stage, "_value_", default=stage))
        # Plain attributes: the properties of the same names may look for a DataLoader.
        batches = number(peek(own, "fit_loop", "max_batches"))
        batches = batches if batches and isfinite(batches) else None
        epochs, epoch = whole(peek(own, "max_epochs")), whole(peek(own, "current_epoch"))
        done = whole(peek(own, *_DONE, "current", "completed"))
        reading = SourceValues(
            step=whole(peek(own, "global_step")),
            epoch=number(epoch),
            total_epochs=float(epochs) if epochs and epochs > 0 else None,
            phase=STAGES.get(text(peek(stage, "value", default=stage)) or "")
            if self.runs
            else IDLE,
            samples=_samples(own),
            loss=_loss(peek(own, "_logger_connector")),
            lr=_rate(own),
        )
        if batches and epoch is not None and done is not None:
            reading.epoch = epoch + min(done / batches, 1.0)
        reading.total_steps = _total(own, batches, epochs)
        return reading


def _total(trainer: Any, batches: float | None, epochs: int | None) -> int | None:
    most = whole(peek(trainer, "max_steps")) or 0
    if epochs and epochs > 0 and batches:
        each = -(-int(batches) // max(whole(peek(trainer, "accumulate_grad_batches")) or 1, 1))
        return min(most, each * epochs) if most > 0 else each * epochs
    return most if most > 0 else None


def _samples(trainer: Any) -> float | None:
    """Of all ranks since the start; None where nothing says how many a batch has."""
    loaders = peek(trainer, "fit_loop", "_combined_loader", "flattened")
    if type(loaders) is not list or len(loaders) != 1:
        return None
    size = whole(peek(loaders[0], "batch_size"))
    replicas = whole(peek(loaders[0], "sampler", "num_replicas"))
    if replicas is None and peek(trainer, "strategy", "world_size", default=1) == 1:
        replicas = 1
    done = whole(peek(trainer, *_DONE, "total", "completed"))
    if size is None or replicas is None or done is None:
        return None
    return float(done * size * replicas)


def _loss(connector: Any) -> float | None:
    for name in ("_progress_bar_metrics", "_logged_metrics"):
        values = peek(connector, name)
        for loss in LOSSES if is_a(values, dict) else ():
            value = _on_cpu(dict.get(values, loss))
            if value is not None:
                return value
    return None


def _on_cpu(value: Any) -> float | None:
    """A number, or the value of a tensor that is in main memory already."""
    torch = sys.modules.get("torch")
    if torch is None or not may_be_asked(value, torch):
        return number(value)
    return float(value.detach().item()) if value.is_cpu and value.numel() == 1 else None


def _rate(trainer: Any) -> float | None:
    optimizers = peek(trainer, "strategy", "_optimizers")
    groups = peek(optimizers[0], "param_groups") if optimizers else None
    return first_number(groups[0], ("lr",)) if groups else None
