"""Phases that torch itself knows: saving a checkpoint, compiling.

Source: `torch.save`, `torch.distributed.checkpoint.save` and `async_save` while they run, and
`torch._dynamo.callback`, which torch calls before the first of some nested compilations and after
the last. Caveat: an async save is the phase only as long as the training waits for it; a call of
`torch.save` for something small is a phase of its length. Check: py-spy dump --pid PID.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from ddtop.agent import saves
from ddtop.agent.frameworks.wrapping import as_phase, call_note_before
from ddtop.agent.notes import Phase, progress_notes
from ddtop.wire.records import CHECKPOINT, COMPILE

_NAME = "torch"


def wrap_save(module: ModuleType) -> None:
    """`torch.serialization.save`, which torch binds as `torch.save` afterwards."""
    as_phase(module, "save", CHECKPOINT, _NAME, partial(saves.note, "torch.save"))


def wrap_distributed_save(module: ModuleType) -> None:
    """`torch.distributed.checkpoint.state_dict_saver`: save and async_save."""
    done = partial(saves.note, "torch.distributed.checkpoint.save")
    as_phase(module, "save", CHECKPOINT, _NAME, done)
    as_phase(module, "async_save", CHECKPOINT, _NAME)


def wrap_compile(module: ModuleType) -> None:
    """The handler that runs the callbacks; the list of callbacks stays the program's own."""
    handler: Any = module.CompilationCallbackHandler
    compiling = Compiling()
    call_note_before(handler, "run_start_callbacks", compiling.begins, "compile phase")
    call_note_before(handler, "run_end_callbacks", compiling.ends, "compile phase")


class Compiling:
    """The open compilation of this process; torch counts nested ones."""

    def __init__(self) -> None:
        self._open: Phase | None = None

    def begins(self, *_arguments: Any) -> None:
        """The first of some nested compilations."""
        self.ends()
        self._open = progress_notes.enter(COMPILE, _NAME)

    def ends(self, *_arguments: Any) -> None:
        """The last of them is over."""
        if self._open is not None:
            progress_notes.leave(self._open)
            self._open = None
