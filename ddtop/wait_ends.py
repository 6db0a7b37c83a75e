"""Which lines of a program would end a wait for another thread or task, and from where they are
reached: `self.ready.set()` ends `self.ready.wait()`.

Text only, as in `program_text`. Caveat: two objects may have one name, and only those files are
known in which threads stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from ddtop.program_text import function_at, loops_at, statement

CALLERS_DEEP, FOUND_MAX = 3, 16
"""Callers of callers that are looked for, and lines of a file that are kept of each search."""
_WAITS = re.compile(r"\b([A-Za-z_][\w.]*)\.(\w+)\(")
_ENDED_BY = {
    "wait": ("set", "notify", "notify_all"),
    "wait_for": ("notify", "notify_all"),
    "acquire": ("release",),
    "get": ("put", "put_nowait"),
    "put": ("get", "get_nowait"),
    "result": ("set_result", "set_exception"),
    "receive": ("send", "send_nowait"),
    "send": ("receive", "receive_nowait"),
}
"""The methods that end a wait in a method of the same object."""
_BEGINS = "__init__"
"""What it does is over when another thread or method waits for the object."""
Files = Mapping[str, Sequence[str]]


class StackLine(NamedTuple):
    """A line in a function of a file. `inner`: of the innermost frame of a stack."""

    function: str
    file: str
    line: int
    inner: bool = False


class WaitEnd(NamedTuple):
    """A line that would end the wait. `ways`: from where it is reached: itself, and the calls of
    its function. `of_attribute`: of an object that all methods know by this name; a local name may
    be that of another object elsewhere."""

    text: str
    spot: StackLine
    ways: tuple[StackLine, ...]
    of_attribute: bool


def endings_of(files: Files, file: str, line: int) -> list[WaitEnd]:
    """The lines of these files that would end the wait in which a thread stands at `line`: first
    those that name the object as this one does."""
    for waits in _WAITS.finditer(statement(files.get(file, ()), line)):
        owner, _, name = waits[1].rpartition(".")
        if (methods := _ENDED_BY.get(waits[2])) is not None:
            ends = rf"(?<!\w){name}(?:\[[^\]\n]*\])?\.(?:{'|'.join(methods)})\("
            found = [
                WaitEnd(
                    statement(files[spot.file], spot.line),
                    spot,
                    _ways(files, spot) if owner else (spot,),
                    bool(owner),
                )
                for spot in _with(files, ends)
                if spot.function != _BEGINS
            ]
            return sorted(found, key=lambda ending: f"{waits[1]}." not in ending.text)
    return []


def way_to(files: Files, ending: WaitEnd, spots: Iterable[StackLine]) -> StackLine | None:
    """Where a thread with these lines on its stack comes to that line, if it goes on: there, or at
    a call on the way."""
    return next(
        (
            way
            for spot in spots
            for way in ending.ways
            if spot[:2] == way[:2]
            and (
                spot.line <= way.line
                or loops_at(files[way.file], way.line) & loops_at(files[way.file], spot.line)
            )
        ),
        None,
    )


def _ways(files: Files, spot: StackLine) -> tuple[StackLine, ...]:
    ways, names = [spot], {spot.function}
    for _ in range(CALLERS_DEEP):
        calls = rf"(?<!\w)(?<!def )(?:{'|'.join(map(re.escape, names))})\("
        new = [way for way in _with(files, calls) if way not in ways]
        names = {way.function for way in new}
        ways += new
        if not new:
            break
    return tuple(ways)


def _with(files: Files, pattern: str) -> Iterator[StackLine]:
    """The lines in functions that match."""
    for file, lines in files.items():
        text = "\n".join(lines)
        for found in islice(re.finditer(pattern, text), FOUND_MAX):
            at = text.count("\n", 0, found.start()) + 1
            function = function_at(lines, at)
            if function is not None and not statement(lines, at).startswith("#"):
                yield StackLine(function, file, at)
