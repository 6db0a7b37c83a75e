"""Notes exceptions of children of multiprocessing and mp.spawn, and of programs under hydra.main.

All catch what the target raises, so no hook sees it. Only a function in between is replaced: the
new one notes the exception and raises it again. If the child is not a rank, the exception is left
for the relay (`helper_end`), because the parent may end the ranks for it.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from ddtop.agent import current, own_imports
from ddtop.agent.guard import guard
from ddtop.agent.plain import is_a, traceback_of
from ddtop.agent.probes import exceptions
from ddtop.agent.tracebacks import leave_out
from ddtop.agent.wrapper import replace_if_there

_WRAPPED = "__ddtop_wrapped__"


def wrap_ends(module: ModuleType) -> None:
    """Replace `multiprocessing.util._exit_function`.

    `BaseProcess._bootstrap` calls it while the exception of the target is on its way. A wrapper of
    `BaseProcess.run` would be a line in the traceback that the child prints.
    """
    replace_if_there(module, "_exit_function", _ending)


def _ending(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    error = sys.exc_info()[1]
    # A child that is forked while its parent handles an exception has that one too when it ends
    # well. The frame above the wrapper is that of `_bootstrap`.
    is_own = (
        error is not None
        and (raised := traceback_of(error)) is not None
        and raised.tb_frame is sys._getframe(2)
    )
    if is_own and is_a(error, Exception):
        _note()


def wrap_spawn(module: ModuleType) -> None:
    """Replace `torch.multiprocessing.spawn._wrap`.

    It is sent to the child by name and there runs the user's function.
    """
    _note_errors(module, "_wrap")


def wrap_hydra(module: ModuleType) -> None:
    """Replace `hydra._internal.utils.run_and_report`.

    It runs the user's function for hydra.main, prints what that raises, and exits with 1.
    """
    _note_errors(module, "run_and_report")


def _note_errors(module: ModuleType, name: str) -> None:
    """Let `module.name(function, ...)` run a function that notes what the given one raises."""
    original = getattr(module, name, None)
    if original is None or hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def _wrap(function: Any, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function)
        def noting(*inner: Any, **named: Any) -> Any:
            try:
                return function(*inner, **named)
            except BaseException as error:
                if is_a(error, Exception):
                    _note()
                # Torch sends the traceback to the parent as text.
                leave_out(error)
                raise

        return original(noting, *args, **kwargs)

    setattr(_wrap, _WRAPPED, True)
    setattr(module, name, _wrap)


def _note() -> None:
    rank = current.get()
    kind, error, traceback = sys.exc_info()
    if kind is None:
        return
    if rank is not None:
        guard.run("exceptions", exceptions.note, rank, kind, error, traceback, "main")
        return
    guard.run("helper end", _leave_for_the_relay, kind, error, traceback)


def _leave_for_the_relay(*raised: Any) -> None:
    own_imports.check(sys.orig_argv)
    from ddtop.agent import helper_end

    helper_end.write(*raised)
