"""What a thread of another Python waits for inside its process, by the text of its program: a
lock, and the thread that has it, or a call, and the thread that comes to the line which ends it. Of
a manager: that one of its clients waits.

Source: the stacks of all its threads (py-spy), its source files, the sockets of the manager.
Caveat: "is inside `with lock`" is what the text says. Check: `py-spy dump --pid PID`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

import msgspec

from ddtop.procfs import program_lines
from ddtop.program_text import held_at, statement, taken_at
from ddtop.redaction import redact
from ddtop.relay.processes.sockets import sleeping_in
from ddtop.wait_ends import Files, StackLine, WaitEnd, endings_of, way_to
from ddtop.wire.names import word_of
from ddtop.wire.records import (
    BLOCKS,
    CALL,
    ENDING,
    LOCK,
    OBJECT,
    STARVED,
    TWICE,
    Link,
    Place,
    StackFrame,
    ThreadStack,
)

_WAITS_INSIDE = ("/threading.py", "/queue.py", "concurrent/futures/_base.py")
_POOL, _FUTURE = ("concurrent/futures/thread.py", "_worker"), "future"
_FINISHES = ("concurrent/futures/process.py", "/asyncio/")
"""Whose threads may finish a future that no thread of a pool computes."""
_LOOP = ("asyncio/base_events.py", "asyncio/runners.py")
PACKAGES = ("/site-packages/", "/dist-packages/")
_LIBRARIES = (*PACKAGES, "/lib/python3", "<frozen", "/ddtop/agent/")
_SERVES = ("multiprocessing/managers.py", "serve_client")
Lines = Callable[[str], Sequence[str]]


class Inside(NamedTuple):
    """`links`: the lock, and who has it. `tid`: the kernel's number of the thread that has it, 0 if
    the chain ends here. `of_client`: a client of this manager waits for an object that another one
    may have."""

    links: tuple[Link, ...] = ()
    tid: int = 0
    of_client: bool = False


def inside(
    pid: int, waits: ThreadStack | None, threads: Sequence[ThreadStack], tids: Mapping[int, int]
) -> Inside:
    """What the thread `waits`, which runs the program, waits for. It reads files, so it may hang.
    `tids`: the kernel's number of each thread."""
    innermost = [thread.frames[0] for thread in threads]
    if any(_is_at(at, *_SERVES) for at in innermost):
        return Inside(of_client=True)
    tid = tids.get((waits.thread_id if waits is not None else 0) or 0, pid)
    if waits is None or sleeping_in(pid, tid).call != "futex":
        return Inside()
    lines_of = cache(lambda file: program_lines(pid, file) or ())
    here = waits.frames[0]
    of_library = here.file.endswith(_WAITS_INSIDE)
    taken = None if of_library else taken_at(lines_of(here.file), here.line)
    # The line is the innermost one, so that its `with` waits in C: in a futex, for a lock.
    if taken:
        return _of_lock(waits, taken, lines_of, threads, tids)
    starved = _starved(waits, threads)
    return Inside(starved) if starved else _in_memory(waits, lines_of, threads, tids)


def followed(
    pid: int, waits: ThreadStack, threads: Sequence[ThreadStack], tids: Mapping[int, int]
) -> Inside:
    """`inside`, on through each thread that has a lock. `tid`: of the last one."""
    by_tid = {tids.get(one.thread_id or 0): one for one in threads}
    links: list[Link] = []
    passed, tid, last = [waits], 0, inside(pid, waits, threads, tids)
    while (thread := by_tid.get(last.tid) if last.tid else None) and thread not in passed:
        links += last.links
        passed, tid, last = [*passed, thread], last.tid, inside(pid, thread, threads, tids)
    links += [msgspec.structs.replace(link, circle=True) if thread else link for link in last.links]
    return Inside(tuple(links), 0 if thread else last.tid or tid)


def _of_lock(
    waits: ThreadStack,
    taken: str,
    lines_of: Lines,
    threads: Sequence[ThreadStack],
    tids: Mapping[int, int],
) -> Inside:
    """The thread that has this lock: itself, or another one."""
    here = waits.frames[0]
    before = _holding(here.file, taken, lines_of, waits.frames[1:])
    if before is not None and "[" not in taken:
        place = Place(before.function, before.file, before.line)
        return Inside((Link(LOCK, taken, waits.name, place=place, circle=True, does=TWICE),))
    for other in threads:
        at = _holding(here.file, taken, lines_of, other.frames) if other is not waits else None
        if at is not None:
            stands = next(frame for frame in other.frames if frame.file == here.file)
            place = place_of(other, stands)
            tid = tids.get(other.thread_id or 0, 0)
            return Inside((Link(LOCK, taken, other.name or "?", place=place),), tid)
    others = (one for one in threads if one is not waits)
    alone = not any(is_programs(frame.file) for one in others for frame in one.frames)
    if alone and any(frame.file.endswith(_LOOP) for frame in waits.frames):
        return Inside((Link(LOCK, taken, nobody=True, does=BLOCKS),))
    # A fork may have copied it as taken, which the text cannot tell.
    return Inside()


def is_programs(file: str) -> bool:
    """Whether it is the program's own, and of no library."""
    return not any(part in file for part in _LIBRARIES)


def place_of(thread: ThreadStack, at: StackFrame) -> Place:
    """This frame of the thread, and what the frames inside it wait on."""
    inner = thread.frames[: thread.frames.index(at)]
    words = [word_of(frame.file, _name(frame)) for frame in inner]
    waits_on = next(filter(None, reversed(words)), None)
    return Place(at.function, at.file, at.line or 0, waits_on)


def _starved(waits: ThreadStack, threads: Sequence[ThreadStack]) -> tuple[Link, ...]:
    """The future of a pool of threads, all of which wait for futures in turn; empty if another
    thread may finish it."""
    pooled = [one for one in threads if any(_is_at(frame, *_POOL) for frame in one.frames)]
    others = [one for one in threads if one is not waits and one not in pooled]
    files = {frame.file for one in others for frame in one.frames}
    if not pooled or any(part in file for part in _FINISHES for file in files):
        return ()
    starved = all(map(_awaits_future, (waits, *pooled)))
    return (Link(OBJECT, _FUTURE, nobody=True, does=STARVED),) if starved else ()


def _awaits_future(thread: ThreadStack) -> bool:
    inner = takewhile(lambda frame: frame.file.endswith(_WAITS_INSIDE), thread.frames)
    return any(word_of(frame.file, _name(frame)) == _FUTURE for frame in inner)


def _is_at(frame: StackFrame, file: str, name: str) -> bool:
    return frame.file.endswith(file) and _name(frame) == name


def _in_memory(
    waits: ThreadStack, lines_of: Lines, threads: Sequence[ThreadStack], tids: Mapping[int, int]
) -> Inside:
    """The call in which it waits for another thread of its process: of an event, a queue; and the
    thread that comes to a line which ends it."""
    inner = list(takewhile(lambda frame: frame.file.endswith(_WAITS_INSIDE), waits.frames))
    at = waits.frames[len(inner)] if inner and len(inner) < len(waits.frames) else None
    text = statement(lines_of(at.file), at.line) if at is not None else ""
    if at is None or not text:
        return Inside()
    own = set(filter(is_programs, (frame.file for one in threads for frame in one.frames)))
    files = {file: lines_of(file) for file in own}
    # A local name may be that of another object elsewhere.
    endings = [one for one in endings_of(files, at.file, at.line or 0) if one.of_attribute]
    if not endings:
        here = Place(at.function, at.file, at.line)
        return Inside((Link(OBJECT, redact(text), place=here, does=CALL),))
    comes = {
        (number, at): ending
        for number, other in enumerate(threads)
        for at, ending in enumerate(endings)
        if other is not waits and _comes_to(other, files, ending)
    }
    for (number, _), ending in comes.items():
        other = threads[number]
        stands = next(frame for frame in other.frames if frame.file in own)
        place, name = place_of(other, stands), other.name or "?"
        link = Link(ENDING, redact(text), name, place=place, at=Place(*ending.spot[:3]))
        # A thread that is not there yet may come to another of these lines.
        sure = len({at for _, at in comes}) == len(endings)
        tid = tids.get(other.thread_id or 0, 0) if sure else 0
        return Inside((msgspec.structs.replace(link, does=redact(ending.text)),), tid)
    first = endings[0]
    link = Link(
        ENDING, redact(text), nobody=True, at=Place(*first.spot[:3]), does=redact(first.text)
    )
    return Inside((link,))


def _comes_to(thread: ThreadStack, files: Files, ending: WaitEnd) -> bool:
    lines = [StackLine(_name(frame), frame.file, frame.line or 0) for frame in thread.frames]
    return way_to(files, ending, lines) is not None


def _name(frame: StackFrame) -> str:
    return frame.function.rpartition(".")[2]


def _holding(
    file: str, taken: str, lines_of: Lines, frames: Sequence[StackFrame]
) -> StackFrame | None:
    """Where this thread is inside a `with` of that name in that file; None if it is not, or waits
    there for a condition, which gives the lock back."""
    spots = [(frame, lines_of(file)) for frame in frames if frame.file == file]
    if any(f"{taken}.wait" in statement(lines, frame.line) for frame, lines in spots):
        return None
    found = (frame for frame, lines in spots if taken in held_at(lines, frame.line))
    return next(found, None)
