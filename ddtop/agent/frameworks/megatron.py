"""Megatron-LM.

Source: `megatron.training.global_vars._GLOBAL_ARGS` (core 0.12, training/global_vars.py:19):
`curr_iteration` (set by `train` in training/training.py), train_iters, consumed_train_samples,
seq_length. Phases: `evaluate_and_print_results` and `save_checkpoint_and_time` of
`megatron.training.training`. Caveat: losses are tensors on the device, so they are not read. Check:
its log.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import as_phase
from ddtop.agent.notes import TRAINER, ProgressSource, SourceValues, progress_notes
from ddtop.agent.plain import number, peek, whole
from ddtop.wire.records import CHECKPOINT, VALIDATE

VARIABLES = "megatron.training.global_vars"


def wrap(module: ModuleType) -> None:
    """Register the source and note the phases; `training` calls both functions by its globals."""
    progress_notes.add(MegatronSource())
    as_phase(module, "evaluate_and_print_results", VALIDATE, "megatron")
    as_phase(module, "save_checkpoint_and_time", CHECKPOINT, "megatron")


class MegatronSource(ProgressSource):
    """Reads the arguments that its training loop updates."""

    name = "megatron"
    level = TRAINER

    def read(self) -> SourceValues | None:
        """The counts; None before the loop has begun."""
        args: Any = getattr(sys.modules.get(VARIABLES), "_GLOBAL_ARGS", None)
        step = whole(peek(args, "curr_iteration"))
        if step is None:
            step = whole(peek(args, "iteration"))
        if step is None:
            return None
        samples = number(peek(args, "consumed_train_samples"))
        length = number(peek(args, "seq_length"))
        return SourceValues(
            step=step,
            total_steps=whole(peek(args, "train_iters")) or None,
            samples=samples,
            tokens=samples * length if samples is not None and length else None,
        )
