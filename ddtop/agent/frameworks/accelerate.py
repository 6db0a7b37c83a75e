"""Accelerate of Hugging Face: the program has the loop, and logs its numbers.

Source: `Accelerator.log(values, step)` (accelerate 1.15, accelerator.py:3398), `save_state` and
`save_model`. Caveat: a program that logs no step is counted by its optimizer only. Check: the
program's tracker.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.fabric import LogSource
from ddtop.agent.frameworks.wrapping import as_phase, call_note_before
from ddtop.wire.records import CHECKPOINT


def wrap(module: ModuleType) -> None:
    """Note what is logged, and when a checkpoint is saved."""
    source, accelerator = LogSource("accelerate"), module.Accelerator
    call_note_before(accelerator, "log", _note_of(source), "progress of accelerate")
    as_phase(accelerator, "save_state", CHECKPOINT, source.name)
    as_phase(accelerator, "save_model", CHECKPOINT, source.name)


def _note_of(source: LogSource) -> Any:
    def note(own: Any, values: Any, step: int | None = None, log_kwargs: Any = None) -> None:
        del log_kwargs
        source.note(own, values, step)

    return note
