"""Exceptions of multiprocessing's and mp.spawn's children: both catch what the target raises, so no hook sees it.

Only the function in between is replaced, by one that notes the exception and lets it go on.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from ddtop.agent import exceptions, runtime

_WRAPPED = "__ddtop_wrapped__"


def wrap_process(module: ModuleType) -> None:
    """`multiprocessing.process.BaseProcess.run`, which runs the target."""
    process: Any = module.BaseProcess
    original = process.run
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def run(self: Any) -> Any:
        try:
            return original(self)
        except Exception:
            _note()
            raise

    setattr(run, _WRAPPED, True)
    process.run = run


def wrap_spawn(module: ModuleType) -> None:
    """`torch.multiprocessing.spawn._wrap`, which is sent to the child by name and there runs the user's function."""
    original = getattr(module, "_wrap", None)
    if original is None or hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def _wrap(function: Any, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function)
        def noting(*inner: Any, **named: Any) -> Any:
            try:
                return function(*inner, **named)
            except Exception:
                _note()
                raise

        return original(noting, *args, **kwargs)

    setattr(_wrap, _WRAPPED, True)
    module._wrap = _wrap  # type: ignore[attr-defined]


def _note() -> None:
    running = runtime.current()
    kind, error, traceback = sys.exc_info()
    if running is not None and kind is not None:
        running.guarded("exceptions", lambda: exceptions.note(running, kind, error, traceback, "main"))
