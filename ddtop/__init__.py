"""ddtop: a live monitor for distributed training.

A program may say how far it is: `ddtop.step()`, `ddtop.phase("eval")`, `ddtop.progress(...)`, and
what will take long: `with ddtop.expected("export", up_to_s=600):`. In a process that is not watched
these do nothing. Importing this package imports nothing else but its
version.
"""

from __future__ import annotations

# Not at run time: importing this package imports nothing else.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

try:
    from ddtop._version import version as __version__
except ImportError:
    # A checkout that was never built, reached through PYTHONPATH.
    __version__ = "0.2.0"

__all__ = ["__version__", "expected", "phase", "progress", "step", "watch"]


def __getattr__(name: str) -> Any:
    """`watch`, for programs that look at a job. What it needs is imported when it is asked for; its
    type is in `__init__.pyi`, because this module may import nothing.
    """
    if name == "watch":
        from importlib import import_module

        return import_module("ddtop.api").watch
    raise AttributeError(f"module 'ddtop' has no attribute {name!r}")


_agent: Any = None
"""`ddtop.agent.user_calls` in a watched rank."""


class _NoPhase:
    """What `phase` and `expected` return where nobody watches.

    Both methods are C functions that take what they are given and return an empty value: methods
    written in Python cost twice as much.
    """

    __slots__ = ()

    __enter__ = staticmethod(tuple)
    __exit__ = staticmethod("".format)


_NO_PHASE: Any = _NoPhase()
_ENDLESS = float("inf")


def step() -> None:
    """Mark the end of one iteration; from the first call on, iterations are counted here and
    nowhere else.

    Called on the training thread: O(1), about a microsecond, does nothing where no agent runs.
    """
    if _agent is not None:
        _agent.step()


def phase(name: str) -> AbstractContextManager[object, None]:
    """Say what the program does from now on: "train", "validate", "test", "checkpoint" or "idle".

    It lasts until the next call. In a `with` statement it lasts until the block ends, and then the
    phase before goes on. Other words are shown as they are. "eval" is "validate". About a
    microsecond; does nothing where no agent runs.
    """
    begun: AbstractContextManager[object, None] = _NO_PHASE
    if _agent is not None:
        begun = _agent.phase(name)
    return begun


def expected(name: str, *, up_to_s: float) -> AbstractContextManager[object, None]:
    """A region that may take up to `up_to_s` seconds while the other ranks wait for this one:

        with ddtop.expected("export", up_to_s=600):
            export(model)

    While it lasts, findings that say that this rank is slow, busy or elsewhere are muted, for all
    who look at the job. After `up_to_s` they are warnings that name the region. A crash, a stopped
    process and the faults of other ranks are reported as always. Of nested regions the innermost
    counts. It is for the thread that trains. A name is cut to 64 characters, and at most a week
    counts. A microsecond or two; does nothing where no agent runs.

    Raises: TypeError and ValueError for a name that is not a text or empty, and for a time that is
    not a positive finite number of Python. They are raised without an agent too.
    """
    # One expression recognises valid arguments: this code runs inside the user's program.
    if not (
        name.__class__ is str
        and (up_to_s.__class__ is int or up_to_s.__class__ is float)
        and name
        and 0 < up_to_s < _ENDLESS
    ):
        _check_expected(name, up_to_s)
    region: AbstractContextManager[object, None] = _NO_PHASE
    if _agent is not None:
        region = _agent.expected(name, up_to_s)
    return region


def _check_expected(name: object, up_to_s: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"ddtop.expected: the name must be a str, not {type(name).__name__}")
    if isinstance(up_to_s, bool) or not isinstance(up_to_s, (int, float)):
        kind = type(up_to_s).__name__
        raise TypeError(f"ddtop.expected: up_to_s must be a number of seconds, not {kind}")
    if not name:
        raise ValueError("ddtop.expected: the name is empty")
    if not 0 < up_to_s < _ENDLESS:
        raise ValueError(f"ddtop.expected: up_to_s must be positive and finite, not {up_to_s!r}")


def progress(
    *,
    step: int | None = None,
    total_steps: int | None = None,
    epoch: float | None = None,
    total_epochs: float | None = None,
    samples: float | None = None,
    tokens: float | None = None,
    loss: float | None = None,
    lr: float | None = None,
) -> None:
    """Say how far the training is; what is left out stays as it was.

    `samples` and `tokens` are counts of the whole job that only grow: ddtop makes speeds of them.
    Numbers must be Python's: the value of a tensor on a GPU would have to be waited for. About two
    microseconds; does nothing where no agent runs.
    """
    if _agent is not None:
        given = {
            "step": step,
            "total_steps": total_steps,
            "epoch": epoch,
            "total_epochs": total_epochs,
            "samples": samples,
            "tokens": tokens,
            "loss": loss,
            "lr": lr,
        }
        _agent.progress(**{name: value for name, value in given.items() if value is not None})
