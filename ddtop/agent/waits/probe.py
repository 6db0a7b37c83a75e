"""What the rank's thread waits for in Python, while it makes no progress: the condition of its
loop, the thread that has its lock or that it joins, the task at which its event loop stands.

Source: the places of the threads (`ddtop.agent.stacks.walk`), the text of their lines, and the
values of plain variables. The files are read on a thread of its own, because a file server may
hang. Caveat: "is inside `with lock`" is what the text says; two objects may have one name. Check:
`ddtop stacks`, the program's text.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple

from ddtop.agent.plain import peek, text
from ddtop.agent.probe import Probe, Tick
from ddtop.agent.stacks.frames import OTHER
from ddtop.agent.waits import lines
from ddtop.patience import LatestResult
from ddtop.redaction import redact
from ddtop.wire import page as layout
from ddtop.wire.records import KEY, LOCK, LOOP, TASK, THREAD, Link, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ddtop.agent.rank import Rank

AFTER_NS, EVERY_NS = 2_000_000_000, 5_000_000_000
"""A rank that makes no progress is looked at after this time, and then this often."""
THREADS_MAX, FRAMES_MAX, TASKS_MAX, AWAITS_MAX = 64, 60, 64, 32
STALE_S = 30.0
SOURCE_MAX = 1 << 20
"""Characters of a file that are read."""
_NAMES_MAX = 4
_JOINS = ("threading.py", "join")
_CHILDREN = {
    "child": layout.ITS_CHILDREN,
    "pool": layout.ITS_CHILDREN,
    "future": layout.ITS_CHILDREN,
    "queue": layout.OF_CHILDREN,
    "pipe": layout.OF_CHILDREN,
}
"""Waits that children of the process may have to end, by the word of the place."""
_STORE = re.compile(r"\w*store\w*\.(?:get|wait)\((.+)\)")


class _Spot(NamedTuple):
    """A line of the program on the stack of a thread. `inner`: it is the innermost frame."""

    function: str
    file: str
    line: int
    inner: bool = False


class _Task(NamedTuple):
    """A pending task of asyncio, and the innermost of the program's lines on its awaits."""

    name: str
    spot: _Spot


class _Thread(NamedTuple):
    """Another thread: its name, the kernel's number, the program's lines on its stack, and what the
    innermost of them waits on."""

    name: str
    tid: int
    spots: tuple[_Spot, ...]
    waits_on: str | None


class WaitChain(Probe):
    """Looks at a rank once it makes no progress, and again every few seconds."""

    name = "waits"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._asked_at = 0
        self._spots: tuple[_Spot, ...] = ()
        self._threads: tuple[_Thread, ...] = ()
        self._tasks: tuple[_Task, ...] = ()
        self._waits_on = ""
        self._texts = LatestResult(self._read)
        self._chain: tuple[Link, ...] = ()

    def sample(self, tick: Tick) -> None:
        """Look at a wait that lasts."""
        seen, page = tick.seen, self._rank.page.words
        stands = seen is not None and seen.activity == OTHER and not tick.waits
        if not stands or tick.now - max(tick.moved_at, tick.line_since) < AFTER_NS:
            if self._chain:
                self._chain, page[layout.AWAITED_AT] = (), 0
            self._asked_at = 0
            return
        if tick.now - self._asked_at >= EVERY_NS:
            self._asked_at = tick.now
            self._spots = self._spots_of(self._rank.lead_id)
            self._threads = tuple(self._others())
            self._waits_on = (seen.waits_on if seen is not None else None) or ""
            in_loop = self._waits_on == "asyncio"
            self._tasks = tuple(_awaits(self._rank.frames.is_user)) if in_loop else ()
            self._texts.ask(monotonic())
        elif (texts := self._texts.result(monotonic(), STALE_S)) is not None:
            self._chain, page[layout.AWAITED_AT] = self._find(texts)

    def fields(self, _tick: Tick) -> Mapping[str, Any]:
        """`chain`."""
        return {"chain": self._chain}

    # -- What is read

    def _spots_of(self, ident: int) -> tuple[_Spot, ...]:
        stack, is_user = self._rank.frames.walk.stack(ident, FRAMES_MAX), self._rank.frames.is_user
        return tuple(
            _Spot(function, file, line or 0, not deep)
            for deep, ((file, function, _, line), _) in enumerate(stack)
            if is_user(file)
        )

    def _others(self) -> Iterator[_Thread]:
        """The other threads that run code of the program."""
        walk, own = self._rank.frames.walk, threading.get_ident()
        idents = [one for one in walk.threads() if one not in (own, self._rank.lead_id)]
        for ident in idents[:THREADS_MAX]:
            if spots := self._spots_of(ident):
                known = threading._active.get(ident)  # type: ignore[attr-defined]
                name = text(peek(known, "_name")) or f"{ident}"
                seen = self._rank.frames.look(ident)
                yield _Thread(
                    name, walk.native_id(ident), spots, seen.waits_on if seen is not None else None
                )

    def _read(self) -> dict[str, list[str]]:
        """Read the text of the files. A separate thread calls it."""
        spots = [*self._spots, *(one.spot for one in self._tasks)]
        spots += [spot for one in self._threads for spot in one.spots]
        return {file: _lines_of(file) for file in {spot.file for spot in spots}}

    # -- What it means

    def _find(self, texts: Mapping[str, Sequence[str]]) -> tuple[tuple[Link, ...], int]:
        """The chain, and what the relay is to follow it with: `layout.AWAITED_AT`."""
        if self._tasks:
            return (_of_task(self._tasks[0], texts),), 0
        if self._waits_on in _CHILDREN or not self._spots:
            return (), _CHILDREN.get(self._waits_on, 0)
        spot = self._spots[0]
        source = texts.get(spot.file, ())
        taken = lines.taken_at(source, spot.line) or ""
        joined = self._joined()
        other = joined or self._holder(taken, texts)
        if other is not None:
            return self._of_thread(THREAD if joined else LOCK, "" if joined else taken, other)
        return self._of_text(spot, source) if spot.inner else (), 0

    def _of_text(self, spot: _Spot, source: Sequence[str]) -> tuple[Link, ...]:
        """The key of a store for which it waits, or the condition of its loop."""
        key = _STORE.search(lines.statement(source, spot.line))
        named = key[1] if key is not None else lines.condition_of(source, spot.line)
        if named is None:
            return ()
        walk, names = self._rank.frames.walk, lines.names_in(named)
        values = walk.values(self._rank.lead_id, names[:_NAMES_MAX])
        shown = ", ".join(f"{name} is {redact(value)}" for name, value in values.items())
        place = Place(spot.function, spot.file, spot.line)
        return (Link(KEY if key else LOOP, redact(named), place=place, does=shown),)

    def _joined(self) -> _Thread | None:
        """The thread that it joins."""
        file, function = _JOINS
        walk, lead = self._rank.frames.walk, self._rank.lead_id
        places = [place for place, _ in walk.stack(lead, 4)]
        found = next((one for one in places if one[0].endswith(file) and one[1] == function), None)
        name = found and walk.text_of_self(lead, found[0], function, "_name")
        return next((one for one in self._threads if one.name == name), None)

    def _holder(self, taken: str, texts: Mapping[str, Sequence[str]]) -> _Thread | None:
        """The first other thread that is inside a `with` of the same name. One that waits there for
        a condition does not have its lock meanwhile."""
        for other in self._threads:
            at = [(texts.get(spot.file, ()), spot.line) for spot in other.spots]
            waits = any(f"{taken}.wait" in lines.statement(*one) for one in at)
            if not waits and any(taken in lines.held_at(*one) for one in at):
                return other
        return None

    def _of_thread(
        self, resource: str, named: str, thread: _Thread
    ) -> tuple[tuple[Link, ...], int]:
        spot = thread.spots[0]
        place = Place(spot.function, spot.file, spot.line, thread.waits_on)
        return (Link(resource, named, thread.name, place=place),), thread.tid


def _lines_of(file: str) -> list[str]:
    """The lines of a file, as far as they are read; none of what is no file. A program may give its
    code any name: to open a named pipe would be noticed at its other end."""
    try:
        with open(
            file if os.path.isfile(file) else os.devnull, encoding="utf-8", errors="replace"
        ) as source:
            return source.read(SOURCE_MAX).splitlines()
    except (OSError, ValueError):
        return []


def _of_task(task: _Task, texts: Mapping[str, Sequence[str]]) -> Link:
    function, file, line, _ = task.spot
    awaited = redact(lines.statement(texts.get(file, ()), line))
    return Link(TASK, awaited, task.name, place=Place(function, file, line))


def _awaits(is_user: Callable[[str], bool]) -> Iterator[_Task]:
    """The pending tasks of asyncio that run code of the program."""
    module = sys.modules.get("asyncio.tasks")
    known = vars(module).get("_scheduled_tasks", vars(module).get("_all_tasks")) if module else None
    if known is None:
        return
    for task in list(known)[:TASKS_MAX]:
        # A class of the program may have methods of its own.
        if type(task) is not vars(module)["Task"] or task.done():
            continue
        spot, coroutine = None, task.get_coro()
        for _ in range(AWAITS_MAX):
            if type(coroutine) is not CoroutineType or coroutine.cr_frame is None:
                break
            code, line = coroutine.cr_code, coroutine.cr_frame.f_lineno
            if is_user(code.co_filename):
                spot = _Spot(code.co_name, code.co_filename, line)
            coroutine = coroutine.cr_await
        if spot is not None:
            yield _Task(task.get_name(), spot)
