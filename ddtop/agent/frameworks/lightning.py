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

from math import isfinite
from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import LOSSES, as_phase, number, while_running
from ddtop.agent.notes import TRAINER, ObjectSource, Reading
from ddtop.wire.records import CHECKPOINT, IDLE, SANITY_CHECK, TEST, TRAIN, VALIDATE

STAGES = {
    "train": TRAIN,
    "sanity_check": SANITY_CHECK,
    "validate": VALIDATE,
    "test": TEST,
    "predict": TEST,
}
"""Values of `RunningStage` (pytorch/trainer/states.py:44)."""


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

    def read_from(self, own: Any) -> Reading | None:
        """Where the trainer is."""
        stage = own.state.stage
        fit = own.fit_loop
        # Plain attributes: the properties of the same names may look for a DataLoader.
        batches, epochs = number(fit.max_batches), own.max_epochs
        batches = batches if batches and isfinite(batches) else None
        done = fit.epoch_loop.batch_progress.current.completed
        reading = Reading(
            step=int(own.global_step),
            epoch=own.current_epoch + min(done / batches, 1.0) if batches else None,
            total_epochs=float(epochs) if epochs and epochs > 0 else None,
            phase=STAGES.get(str(getattr(stage, "value", stage))) if self.runs else IDLE,
            samples=_samples(own, fit),
            loss=_loss(own._logger_connector),
            lr=_rate(own),
        )
        if reading.epoch is None:
            reading.epoch = float(own.current_epoch)
        reading.total_steps = _total(own, batches, epochs)
        return reading


def _total(trainer: Any, batches: float | None, epochs: int | None) -> int | None:
    most = int(trainer.max_steps)
    if epochs and epochs > 0 and batches:
        each = -(-int(batches) // max(int(trainer.accumulate_grad_batches), 1))
        return min(most, each * epochs) if most > 0 else each * epochs
    return most if most > 0 else None


def _samples(trainer: Any, fit: Any) -> float | None:
    """Of all ranks since the start; None where nothing says how many a batch has."""
    loaders: Any = getattr(getattr(fit, "_combined_loader", None), "flattened", None) or ()
    if len(loaders) != 1:
        return None
    size = getattr(loaders[0], "batch_size", None)
    replicas = getattr(getattr(loaders[0], "sampler", None), "num_replicas", None)
    if replicas is None and getattr(trainer.strategy, "world_size", 1) == 1:
        replicas = 1
    if not isinstance(size, int) or not isinstance(replicas, int):
        return None
    return float(fit.epoch_loop.batch_progress.total.completed * size * replicas)


def _loss(connector: Any) -> float | None:
    for values in (connector._progress_bar_metrics, connector._logged_metrics):
        for name in LOSSES:
            value = _on_cpu(values.get(name))
            if value is not None:
                return value
    return None


def _on_cpu(value: Any) -> float | None:
    """A number, or the value of a tensor that is in main memory already."""
    if isinstance(value, (int, float)):
        return float(value)
    device = getattr(value, "device", None)
    if getattr(device, "type", None) != "cpu" or value.numel() != 1:
        return None
    return float(value.detach().item())


def _rate(trainer: Any) -> float | None:
    optimizers = getattr(trainer.strategy, "_optimizers", None) or ()
    groups = getattr(optimizers[0], "param_groups", None) if optimizers else None
    return number(groups[0].get("lr")) if groups else None
