"""DeepSpeed: the engine below a loop of the program's own, or below a trainer.

Source: `DeepSpeedEngine` (deepspeed 0.19, runtime/engine.py:536, 637, 1520): global_steps and
global_samples, integers that `step` counts. Phase: `save_checkpoint`. Caveat: the loss is a tensor
on the device, so it is not read. Check: the engine's own line every `steps_per_print`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import as_phase, call_note_before, first_number
from ddtop.agent.notes import ENGINE, ObjectSource, SourceValues
from ddtop.agent.plain import number, peek, whole
from ddtop.wire.records import CHECKPOINT


def wrap(module: ModuleType) -> None:
    """Note which engine steps, and when it saves a checkpoint."""
    source, engine = DeepSpeedSource(), module.DeepSpeedEngine
    # The engine is being made.
    call_note_before(
        engine, "__init__", lambda own, *_, **__: source.note(own, True), "progress of deepspeed"
    )
    as_phase(engine, "save_checkpoint", CHECKPOINT, source.name)


class DeepSpeedSource(ObjectSource):
    """Reads the engine that was made last."""

    name = "deepspeed"
    level = ENGINE

    def read_from(self, own: Any) -> SourceValues | None:
        """Its counts; None before its first step, and while it is being constructed."""
        step = whole(peek(own, "global_steps"))
        if not step:
            return None
        groups = peek(own, "optimizer", "param_groups")
        rate = first_number(groups[0], ("lr",)) if groups else None
        return SourceValues(step=step, samples=number(peek(own, "global_samples")), lr=rate)
