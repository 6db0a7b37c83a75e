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

from ddtop.agent.frameworks.wrapping import as_phase, number
from ddtop.agent.notes import TRAINER, ProgressSource, Reading, progress_notes
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

    def read(self) -> Reading | None:
        """The counts; None before the loop has begun."""
        args: Any = getattr(sys.modules.get(VARIABLES), "_GLOBAL_ARGS", None)
        step = getattr(args, "curr_iteration", None)
        if step is None:
            step = getattr(args, "iteration", None)
        if args is None or step is None:
            return None
        samples = number(args.consumed_train_samples)
        length = number(getattr(args, "seq_length", None))
        return Reading(
            step=int(step),
            total_steps=int(args.train_iters) if args.train_iters else None,
            samples=samples,
            tokens=samples * length if samples is not None and length else None,
        )
