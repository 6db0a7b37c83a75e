"""Fabric of Lightning: the program has the loop, and logs its numbers.

Source: `Fabric.log_dict(metrics, step)` (lightning 2.6, fabric/fabric.py:1089; `log` calls it) and
`Fabric.save`. Caveat: a program that logs no step is counted by its optimizer only. Values that are
tensors are left out. Check: the program's logger.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.wrapping import LOSSES, RATES, as_phase, call_note_before, first_number
from ddtop.agent.notes import LIBRARY, ProgressSource, SourceValues, progress_notes
from ddtop.agent.plain import whole
from ddtop.wire.records import CHECKPOINT


def wrap(module: ModuleType) -> None:
    """Note what is logged, and when a checkpoint is saved."""
    source, fabric = LogSource("fabric"), module.Fabric
    call_note_before(fabric, "log_dict", source.note, "progress of fabric")
    as_phase(fabric, "save", CHECKPOINT, source.name)


class LogSource(ProgressSource):
    """Numbers that the program has given to its logger."""

    level = LIBRARY

    def __init__(self, name: str) -> None:
        self.name, self.last = name, SourceValues()

    def note(
        self, _self: Any, metrics: Mapping[str, Any], step: int | None = None, *_more: Any
    ) -> None:
        """The program logs these. Only numbers of Python are read; tensors are skipped."""
        last = self.last
        last.step = last.step if (known := whole(step)) is None else known
        loss, rate = first_number(metrics, LOSSES), first_number(metrics, RATES)
        last.loss = last.loss if loss is None else loss
        last.lr = last.lr if rate is None else rate
        progress_notes.add(self)

    def read(self) -> SourceValues | None:
        """What was logged last."""
        return self.last if self.last != SourceValues() else None
