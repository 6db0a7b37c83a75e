"""Wraps functions of frameworks: the wrapper notes the call and runs the original unchanged.

A wrapper costs about a microsecond per call. Use it for rare calls (a checkpoint, a validation, a
line of a log), never for calls in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtop.agent.guard import guard
from ddtop.agent.notes import progress_notes
from ddtop.agent.plain import is_a, number
from ddtop.agent.wrapper import replace


def as_phase(
    owner: Any, name: str, phase: str, by: str, done: Callable[..., object] | None = None
) -> None:
    """While `owner.name` runs, its thread is in `phase`. `by`: the source of this fact.

    `done` gets what each call raised (None: it returned) and its arguments.

    Raises:
        AttributeError: this version of the framework has no such function.
    """

    def after(noted: Any, _made: Any, error: BaseException | None) -> None:
        begun, args, kwargs = noted
        progress_notes.leave(begun)
        if done is not None:
            guard.run(by, done, error, args, kwargs)

    replace(
        owner, name, lambda args, kwargs: (progress_notes.enter(phase, by), args, kwargs), after
    )


def call_note_before(owner: Any, name: str, note: Callable[..., object], part: str) -> None:
    """`note` gets the arguments of each call of `owner.name`, before it runs.

    An error of `note` switches `part` off, and the program does not see it.

    Raises:
        AttributeError: this version of the framework has no such function.
    """
    replace(owner, name, lambda args, kwargs: guard.run(part, lambda: note(*args, **kwargs)))


def while_running(owner: Any, name: str, note: Callable[[Any, bool], object], part: str) -> None:
    """`note(self, True)` before each call of the method, `note(self, False)` after it.

    Raises:
        AttributeError: this version of the framework has no such method.
    """

    def begin(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        guard.run(part, note, args[0], True)
        return args[0]

    replace(owner, name, begin, lambda one, *_: guard.run(part, note, one, False))


def first_number(values: Any, names: tuple[str, ...]) -> float | None:
    """The first of these entries of a dictionary that is a number."""
    held = (dict.get(values, name) for name in (names if is_a(values, dict) else ()))
    return next((value for one in held if (value := number(one)) is not None), None)


LOSSES = ("loss", "train_loss", "train/loss", "loss_step", "train_loss_step", "training_loss")
RATES = ("lr", "learning_rate", "train/lr", "train/learning_rate")
