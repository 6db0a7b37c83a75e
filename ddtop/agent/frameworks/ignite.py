"""The Engine of PyTorch-Ignite, and MONAI's workflows, which are such engines.

Source: `Engine.state` (ignite 0.5, engine/engine.py:890-1280): iteration, epoch, max_epochs and
epoch_length. An engine that runs inside another one validates. MONAI 1.5: `monai.engines.workflow.
Workflow` inherits from Engine and runs through `Engine.run`. Caveat: `state.output` may be a tensor
on a device, so a loss is read only where it is a float. Check: the engine's own log.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import LOSSES, first_number, while_running
from ddtop.agent.notes import TRAINER, ObjectSource, Phase, SourceValues, progress_notes
from ddtop.agent.plain import module_of, number, peek, text, whole
from ddtop.wire.records import IDLE, VALIDATE


def wrap(module: ModuleType) -> None:
    """Note which engine runs."""
    while_running(module.Engine, "run", IgniteSource().note, "progress of ignite")


class IgniteSource(ObjectSource):
    """Reads the outermost engine."""

    name = "ignite"
    level = TRAINER

    def __init__(self) -> None:
        super().__init__()
        self._running: list[Phase | None] = []

    def note(self, own: Any, begins: bool) -> None:
        """`run` begins or ends. An engine that runs inside another one validates."""
        if not begins:
            phase = self._running.pop()
            if phase is not None:
                progress_notes.leave(phase)
            return
        inner = bool(self._running)
        if not inner:
            module = text(module_of(type(own))) or ""
            self.name = "monai" if module.startswith("monai.") else "ignite"
            super().note(own, begins)
        self._running.append(progress_notes.enter(VALIDATE, self.name) if inner else None)

    def read_from(self, own: Any) -> SourceValues | None:
        """Where the engine is."""
        state = peek(own, "state")
        length, epochs, step = (
            whole(peek(state, name)) for name in ("epoch_length", "max_epochs", "iteration")
        )
        reading = SourceValues(step=step, total_epochs=number(epochs))
        known = step is not None and bool(length)
        reading.epoch = step / length if known else number(peek(state, "epoch"))  # type: ignore[operator]
        reading.total_steps = length * epochs if length and epochs else None
        reading.phase = None if self._running else IDLE
        output = peek(state, "output")
        loss = number(output)
        reading.loss = first_number(output, LOSSES) if loss is None else loss
        return reading
