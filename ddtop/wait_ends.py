"""Which lines of a program would end a wait for another thread or task, and from where they are
reached: `self.ready.set()` ends `self.ready.wait()`.

Text only, as in `program_text`. Caveat: two objects may have one name, and only those files are
known in which threads stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from ddtop.program_text import function_at, loops_at, statement

CALLERS_DEEP, FOUND_MAX, ENDS_MAX, TEXT_MAX = 3, 16, 4, 1 << 18
"""Callers of callers that are looked for, lines that each search finds, ends of one wait, and
characters of a file that is searched: a search holds the GIL."""
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
    those that name the object as this one does. None if they are more than `ENDS_MAX`."""
    texts = {named: "\n".join(lines) for named, lines in files.items()}
    texts = {named: text for named, text in texts.items() if len(text) <= TEXT_MAX}
    for waits in _WAITS.finditer(statement(files.get(file, ()), line)):
        owner, _, name = waits[1].rpartition(".")
        if (methods := _ENDED_BY.get(waits[2])) is not None:
            ends = rf"(?<!\w){name}(?:\[[^\]\n]*\])?\.(?:{'|'.join(methods)})\("
            found = [spot for spot in _with(texts, files, ends, {name}) if spot.function != _BEGINS]
            if len(found) > ENDS_MAX:
                return []
            said = {spot: statement(files[spot.file], spot.line) for spot in found}
            first = sorted(found, key=lambda spot: f"{waits[1]}." not in said[spot])
            ways = [_ways(texts, files, spot) if owner else (spot,) for spot in first]
            every = zip(first, ways, strict=True)
            return [WaitEnd(said[spot], spot, way, bool(owner)) for spot, way in every]
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


def _ways(texts: Mapping[str, str], files: Files, spot: StackLine) -> tuple[StackLine, ...]:
    ways, names = [spot], {spot.function}
    for _ in range(CALLERS_DEEP):
        calls = rf"(?<!\w)(?<!def )(?:{'|'.join(map(re.escape, names))})\("
        new = [way for way in _with(texts, files, calls, names) if way not in ways]
        names = {way.function for way in new}
        ways += new
        if not new:
            break
    return tuple(ways)


def _with(texts: Mapping[str, str], files: Files, pattern: str, words: set[str]) -> list[StackLine]:
    """The lines in functions that match. `words`: each match has one of them."""
    found = (
        (file, text.count("\n", 0, match.start()) + 1)
        for file, text in texts.items()
        if any(map(text.__contains__, words))
        for match in re.finditer(pattern, text)
    )
    every = ((function_at(files[file], at), file, at) for file, at in islice(found, FOUND_MAX))
    return [
        StackLine(function, file, at)
        for function, file, at in every
        if function is not None and not statement(files[file], at).startswith("#")
    ]
