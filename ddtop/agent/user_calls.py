"""`ddtop.step`, `ddtop.phase`, `ddtop.expected` and `ddtop.progress` in a watched rank.

Source: the program's own calls. Check: print the same numbers beside the call.
"""

from __future__ import annotations

from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import USER, Phase, ProgressSource, Region, SourceValues, progress_notes
from ddtop.wire import page as layout
from ddtop.wire.records import (
    CHECKPOINT,
    EXPECTED_CHARACTERS,
    EXPECTED_MOST_S,
    TEST,
    TRAIN,
    VALIDATE,
)

_SAME = {
    "eval": VALIDATE,
    "evaluate": VALIDATE,
    "evaluation": VALIDATE,
    "val": VALIDATE,
    "valid": VALIDATE,
    "validation": VALIDATE,
    "training": TRAIN,
    "save": CHECKPOINT,
    "testing": TEST,
    "predict": TEST,
}
step = current.user_step


class UserSource(ProgressSource):
    """The numbers that the program itself has reported."""

    name = "user"
    level = USER

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def read(self) -> SourceValues | None:
        """The numbers of `ddtop.progress`, and the count of `ddtop.step` where no step is given."""
        reading = SourceValues(**self.given)
        rank = current.get()
        if reading.step is None and rank is not None:
            words = rank.page.words
            if words[layout.ITERATION_SOURCE_AT] == layout.SOURCE_USER:
                reading.step = words[layout.ITERATION_AT]
        return reading if reading != SourceValues() else None


class OpenPhase:
    """What `ddtop.phase` returns: leaving it goes back to the phase before."""

    __slots__ = ("_before", "_own")

    def __init__(self, before: Phase | None, own: Phase) -> None:
        self._before, self._own = before, own

    def __enter__(self) -> OpenPhase:
        return self

    def __exit__(self, *_error: object) -> None:
        _replace(self._own, self._before)


_user_phase: Phase | None = None


def phase(name: str) -> OpenPhase:
    """A phase begins. It lasts until the next call, or until the `with` block ends."""
    word = str(name).strip().lower()
    before = _user_phase
    own = Phase(_SAME.get(word, word), "user")
    _replace(before, own)
    return OpenPhase(before, own)


def _replace(old: Phase | None, new: Phase | None) -> None:
    global _user_phase
    # Another phase has begun meanwhile and counts.
    if old is not _user_phase:
        return
    if old is not None:
        progress_notes.leave(old)
    if new is not None:
        progress_notes.open.append(new)
    _user_phase = new


class Expected:
    """What `ddtop.expected` returns: the region lasts as long as the `with` block."""

    __slots__ = ("_name", "_open", "_up_to_s")

    def __init__(self, name: str, up_to_s: float) -> None:
        self._name, self._up_to_s = name, up_to_s
        self._open: list[Region] = []

    def __enter__(self) -> Expected:
        region = Region(self._name, self._up_to_s)
        self._open.append(region)
        progress_notes.expected.append(region)
        return self

    def __exit__(self, *_error: object) -> None:
        region = self._open.pop()
        # Phases are compared by identity.
        if region in progress_notes.expected:
            progress_notes.expected.remove(region)


def expected(name: str, up_to_s: float) -> Expected:
    """An expected region, which begins with the `with` statement. The arguments are checked."""
    text = " ".join(str(name).split())
    return Expected(text[:EXPECTED_CHARACTERS] or "?", float(min(up_to_s, EXPECTED_MOST_S)))


def progress(**given: Any) -> None:
    """Numbers that the program already has; None removes one.

    A value that is not a plain number (a tensor) is left out, and the record says so.
    """
    source = progress_notes.sources.get("user")
    if not isinstance(source, UserSource):
        source = UserSource()
        progress_notes.add(source)
    for name, value in given.items():
        if value is None or isinstance(value, (int, float)):
            source.given[name] = value
        else:
            kind = type(value).__name__
            guard.note("ddtop.progress", f"{name} is a {kind}: give a number, {name}.item()")
