"""What the rank's thread waits for in Python, while it makes no progress: the condition of its
loop, the thread that has its lock, its queue or its future, or that it joins, the task at which its
event loop stands, the process that has its lock file.

Source: the places of the threads (`ddtop.agent.stacks.walk`), the text of their lines, the values
of plain variables, the ids of what their functions hold, /proc/locks. The files are read on a
thread of its own, because a file server may hang. Caveat: "is inside `with lock`" is what the text
says; two objects may have one name. Check: `ddtop stacks`, the program's text.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ddtop import program_text as lines
from ddtop.agent.plain import peek, text
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.stacks.frames import COLLECTIVE, LOADER, OTHER
from ddtop.agent.stacks.walk import FLOW
from ddtop.agent.waits.tasks import NOTHING, PendingTask, awaits, short_name
from ddtop.patience import LatestResult
from ddtop.procfs import CLOCK_TICK_NS, children, wchan
from ddtop.redaction import redact, redacted_start, redacted_variable
from ddtop.registry import start_ticks
from ddtop.wait_ends import StackLine, WaitEnd, endings_of, way_to
from ddtop.wire import page as layout
from ddtop.wire.names import CONNECTIONS, word_of
from ddtop.wire.records import (
    ALONE,
    BLOCKS,
    CHANGES,
    CHILD,
    ENDING,
    ENDS_AGAIN,
    FILE_LOCK,
    ITSELF,
    KEY,
    LOCK,
    LOOP,
    OBJECT,
    OF_TASK,
    REPLACES,
    RETRY,
    STARVED,
    TAKEN,
    TAKES,
    TASK,
    THREAD,
    TIMED,
    TWICE,
    UNDONE,
    Link,
    Place,
    RankState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddtop.agent.rank import Rank

AFTER_NS, EVERY_NS = 2_000_000_000, 5_000_000_000
"""A rank that makes no progress is looked at after this time, and then this often."""
LIVED_NS, ENDED_NS = 5_000_000_000, 60_000_000_000
"""A thread that has lived for this long is remembered for this long after its end."""
JUST_NS, VALUE_MAX = 1_000_000_000, 100
THREADS_MAX, FRAMES_MAX, LINKS_MAX = 64, 60, 4
STALE_S = 30.0
SOURCE_MAX = 1 << 20
"""Characters of a file that are read."""
_NAMES_MAX = 4
_QUEUE = ("/queue.py", "join")
_JOINS = ("threading.py", "join")
_OF_THREADS = ("lock", "queue")
"""Waits that only another thread ends, if the object is one of `_OBJECTS`."""
_IN_MEMORY = (*_OF_THREADS, "future", "asyncio")
_SEMAPHORE = "multiprocessing/synchronize.py"
_OBJECTS = ("/threading.py", "/queue.py", "concurrent/futures/_base.py")
"""Files whose classes let threads wait for each other."""
POOL = ("concurrent/futures/thread.py", "_worker")
_ASYNCIO_RUN, _LOOP = "asyncio/runners.py", "asyncio/base_events.py"
_GIVES = "run_coroutine_threadsafe("
_ON_THREADS = ("run_in_executor", "to_thread")
_LOOP_THREADS = (("fsspec/asyn.py", "fsspecIO"),)
"""Libraries that talk on a thread of their own: a file on the stack of the thread that waits for
it, and its name."""
_TASK_QUEUE = "asyncio/queues.py"
_ASKS_CHILD = re.compile(r"\.(?:poll|is_alive)\(\)|\.(?:returncode|exitcode)\b")
_NAMED_LOCK = re.compile(r"(?<![bc])lock|mutex|sem(?:aphore)?\b", re.IGNORECASE)
"""In the name of a lock; a clock and a block are no locks."""
_LIMIT = re.compile(
    r"\b(?:timeout(?:_at)?|fail_(?:after|at)|move_on_(?:after|at))\((?!None)|\btimeout=\d"
)
"""Of a block that ends its awaits by itself."""


class _Failed(NamedTuple):
    """An exception that is handled, and the line of the program that has raised it."""

    type: str
    spot: StackLine


class _Thread(NamedTuple):
    """A thread: its name, the kernel's number, the program's lines on its stack, and what the
    innermost of them waits on. `stack`: (file, function) of its innermost frames. `depth`: how many
    of them are inside the program's innermost line. `pooled`: an executor's thread, which works for
    a future. `library`: the lines of installed packages on its stack, innermost first."""

    ident: int
    name: str
    tid: int
    spots: tuple[StackLine, ...]
    waits_on: str
    stack: tuple[tuple[str, str], ...]
    depth: int
    pooled: bool
    library: tuple[StackLine, ...] = ()


class _Texts(NamedTuple):
    """What was read from files: the lines of the program, `link`, the process that has the lock
    file for which it polls, or that has replaced a worker of its pool, and the children."""

    files: Mapping[str, Sequence[str]]
    link: Link | None
    children: Sequence[int] = ()

    def of(self, spot: StackLine) -> Sequence[str]:
        """The lines of its file."""
        return self.files.get(spot.file, ())


class WaitChain(Probe):
    """Looks at a rank once it makes no progress, and again every few seconds."""

    name = "waits"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._asked_at, self._asked, self._lasts = 0, False, False
        self._for_others = False
        self._lead: _Thread | None = None
        self._threads: tuple[_Thread, ...] = ()
        self._foreign: tuple[_Thread, ...] = ()
        self._tasks: tuple[PendingTask, ...] = ()
        self._others: tuple[PendingTask, ...] = ()
        self._failed: _Failed | None = None
        self._polls: str | None = None
        self._since = 0
        self._alive: dict[int, tuple[str, int]] = {}
        self._ended = ("", 0)
        self._shown: dict[str, str] = {}
        self._new: int | None = None
        self._texts = LatestResult(self._read)
        self._chain: tuple[Link, ...] = ()

    def sample(self, tick: Tick) -> None:
        """Look at a wait that lasts."""
        seen, page = tick.seen, self._rank.page.words
        activity = seen.activity if seen is not None else None
        self._for_others = tick.waits or activity == COLLECTIVE
        stands = self._for_others or activity in (OTHER, LOADER)
        self._note_ended(tick.now)
        if not stands or tick.now - max(tick.moved_at, tick.call_since) < AFTER_NS:
            if self._chain or page[layout.AWAITED_AT]:
                self._chain, page[layout.AWAITED_AT] = (), 0
            self._asked_at = 0
            if tick.now - tick.moved_at < AFTER_NS:
                self._shown, self._new = {}, None
            return
        if tick.now - self._asked_at >= EVERY_NS:
            # A task may fail by design, of a rank that stands for a moment.
            self._lasts = self._asked_at > 0
            self._asked_at = tick.now
            lead = self._lead = self._thread(self._rank.lead_id)
            every = self._idents()
            self._threads = tuple(filter(None, map(self._thread, every)))
            known = {one.ident for one in self._threads}
            self._foreign = tuple(self._of_libraries(one for one in every if one not in known))
            in_loop = lead is not None and lead.waits_on in ("asyncio", "future")
            self._tasks, self._others = (
                awaits(self._rank, lead.stack, self._lasts) if lead and in_loop else ((), ())
            )
            self._failed = self._failed_at()
            self._polls = self._rank.frames.polled_path(self._rank.lead_id)
            self._since = tick.line_since
            self._texts.ask(monotonic())
            self._asked = True
        elif self._asked and self._lead and not self._texts.waiting_s(monotonic()):
            self._asked = False
            if (texts := self._texts.result(monotonic(), STALE_S)) is not None:
                self._chain, page[layout.AWAITED_AT] = self._find(self._lead, texts)

    def fields(self, _tick: Tick) -> Fields:
        """`chain`."""
        return partial(RankState, chain=self._chain)

    def _note_ended(self, now: int) -> None:
        """Remember the names of threads that end: nobody can ask for them later."""
        active = threading._active  # type: ignore[attr-defined]
        if active.keys() == self._alive.keys() or len(active) > THREADS_MAX:
            return
        for ident in self._alive.keys() - active.keys():
            name, since = self._alive.pop(ident)
            self._ended = (name, now) if now - since >= LIVED_NS else self._ended
        for ident, one in list(active.items()):
            self._alive.setdefault(ident, (text(peek(one, "_name")) or "", now))

    # -- What is read

    def _thread(self, ident: int) -> _Thread | None:
        """The thread; None if it runs no code of the program."""
        frames = self._rank.frames
        stack = frames.walk.stack(ident, FRAMES_MAX)
        every = [
            StackLine(function, file, line or 0, not deep)
            for deep, ((file, function, _, line), _) in enumerate(stack)
        ]
        spots = tuple(spot for spot in every if frames.is_user(spot.file))
        if not spots:
            return None
        known = threading._active.get(ident)  # type: ignore[attr-defined]
        seen, places = frames.look(ident), tuple(place[:2] for place, _ in stack)
        return _Thread(
            ident,
            text(peek(known, "_name")) or f"{ident}",
            frames.walk.native_id(ident),
            spots,
            (seen.waits_on if seen is not None else None) or "",
            places,
            next(deep for deep, (file, _) in enumerate(places) if frames.is_user(file)),
            any(file.endswith(POOL[0]) and name == POOL[1] for file, name in places),
            tuple(spot for spot in every if "/site-packages/" in spot.file),
        )

    def _idents(self) -> list[int]:
        """The other threads."""
        own = (threading.get_ident(), self._rank.lead_id)
        idents = [one for one in self._rank.frames.walk.threads() if one not in own]
        return idents[:THREADS_MAX]

    def _of_libraries(self, idents: Iterable[int]) -> Iterator[_Thread]:
        """Those of these threads, which run only code of libraries, that wait for no other one."""
        for ident in idents:
            seen = self._rank.frames.look(ident)
            if seen is None or seen.waits_on in _IN_MEMORY or seen.file.endswith(POOL[0]):
                continue
            known = threading._active.get(ident)  # type: ignore[attr-defined]
            name, tid = text(peek(known, "_name")), self._rank.frames.walk.native_id(ident)
            spot = StackLine(seen.function or "", seen.file, seen.line, inner=True)
            if not (name or "").startswith("ddtop"):
                yield _Thread(
                    ident, name or f"{ident}", tid, (spot,), seen.waits_on or "", (), 0, False
                )

    def _failed_at(self) -> _Failed | None:
        """The program's line that has raised the exception which its thread handles."""
        error = self._rank.frames.walk.handled_exception(self._rank.lead_id)
        if error is None or error.type in FLOW:
            return None
        own = [one for one in error.places if self._rank.frames.is_user(one[0])]
        return (
            _Failed(error.type, StackLine(own[-1][1], own[-1][0], own[-1][2] or 0)) if own else None
        )

    def _read(self) -> _Texts:
        """Read the files. A separate thread calls it."""
        every = [one for one in (self._lead, *self._threads) if one is not None]
        spots = [at for one in every for at in one.spots]
        spots += [at for one in (*self._tasks, *self._others) for at in one.spots]
        package = _package(every[0].library[0].file) if every and every[0].library else None
        spots += [at for one in every for at in one.library if _package(at.file) == package]
        spots += [self._failed.spot] if self._failed is not None else []
        found = {file: _lines_of(file) for file in {spot.file for spot in spots}}
        pid = locked_by(self._polls) if self._polls else None
        link = Link(FILE_LOCK, self._polls or "", pid=pid) if pid else None
        every_child = children(os.getpid())
        if self._lead is not None and self._lead.waits_on == "pool":
            new = started_in_place(every_child, self._since)
            again = new is not None and self._new not in (None, new)
            self._new = new or self._new
            does = ENDS_AGAIN if again else REPLACES
            link = Link(CHILD, who="its worker", pid=new, does=does) if new else link
        return _Texts(found, link, every_child)

    # -- What it means

    def _find(self, lead: _Thread, texts: _Texts) -> tuple[tuple[Link, ...], int]:
        """The chain, and what the relay is to follow it with: `layout.AWAITED_AT`. Of a rank that
        waits for others the thread that should answer one of them."""
        if self._for_others:
            return tuple(self._of_itself(lead, texts)), 0
        chain: list[Link] = []
        passed, thread = [lead], lead
        while len(chain) < LINKS_MAX:
            links, other = self._step(thread, texts)
            chain += links
            if other is None:
                break
            if other in passed:
                chain[-1] = msgspec.structs.replace(chain[-1], circle=True)
                return tuple(chain), 0
            passed.append(other)
            thread = other
        for at, link in enumerate(chain):
            if link.resource == LOCK and not link.does:
                # Threads that have it one after the other go on.
                who = link.who or ""
                changes = CHANGES if self._shown.setdefault(link.named, who) != who else ""
                chain[at] = msgspec.structs.replace(link, does=changes)
        loops = any(link.resource in (LOOP, RETRY) for link in chain)
        on_with = self._on_with(thread, lead, texts) or loops * layout.ENDED_CHILD
        return tuple(
            chain or self._of_itself(lead, texts) or self._named_lock(lead, texts)
        ), on_with

    def _of_itself(self, lead: _Thread, texts: _Texts) -> list[Link]:
        """The thread of this process that should answer if the other end of its socket or pipe is
        here, as only the relay can see: one that waits for what the rank's thread has, else the
        only one; and what that one waits for."""
        taken = [lines.taken_at(texts.of(one.spots[0]), one.spots[0].line) for one in self._threads]
        pairs = list(zip(self._threads, taken, strict=True))
        waits = [one for one, lock in pairs if lock and self._holder(one, lock, texts) is lead]
        found = waits or (self._threads if len(self._threads) == 1 else ())
        if not found:
            return []
        links, other = self._step(found[0], texts)
        if other is lead:
            links[-1] = msgspec.structs.replace(links[-1], circle=True)
        return [_of_thread(ITSELF, found[0]), *links]

    def _named_lock(self, lead: _Thread, texts: _Texts) -> list[Link]:
        """The lock for which it waits, if no thread of this process is known to have it."""
        spot = lead.spots[0]
        taken = lines.taken_at(texts.of(spot), spot.line) or ""
        if not taken or not _is_lock(lead, taken):
            return []
        if not self._threads and _runs_loop(lead):
            return [Link(LOCK, redact(taken), nobody=True, does=BLOCKS)]
        return [Link(LOCK, redact(taken), does=_told(self._values(lead, lines.names_in(taken))))]

    def _on_with(self, thread: _Thread, lead: _Thread, texts: _Texts) -> int:
        if thread is not lead:
            return thread.tid
        if texts.link is not None:
            return (texts.link.pid or 0) if texts.link.resource == FILE_LOCK else 0
        asks = _ASKS_CHILD.search(_condition(thread, texts) or "") or any(
            task.of_child for task in self._tasks[-1:]
        )
        others = layout.OF_CHILDREN if _is_of_processes(thread) else 0
        # A task that should finish the future is no child.
        of_future = 0 if self._tasks else layout.FOR_CHILDREN.get(thread.waits_on, others)
        return (layout.ITS_CHILDREN if asks else of_future) or self._talker(thread)

    def _talker(self, thread: _Thread) -> int:
        """The kernel's number of the thread of a library that talks for this one; 0 if none."""
        names = [
            name for end, name in _LOOP_THREADS if any(at.endswith(end) for at, _ in thread.stack)
        ]
        known = threading._active.items() if names else ()  # type: ignore[attr-defined]
        found = (ident for ident, one in list(known) if text(peek(one, "_name")) in names)
        return next(map(self._rank.frames.walk.native_id, found), 0)

    def _step(self, thread: _Thread, texts: _Texts) -> tuple[list[Link], _Thread | None]:
        """What this thread waits for, and the thread that has it."""
        spot = thread.spots[0]
        taken = lines.taken_at(texts.of(spot), spot.line) or ""
        ends = any(file.endswith(_ASYNCIO_RUN) for file, _ in thread.stack)
        pooled = [one for one in self._threads if one.pooled]
        if thread is self._lead and self._tasks:
            found = self._of_task(self._tasks[-1], texts)
        elif thread is self._lead and ends and pooled:
            # All tasks are done: it waits for the threads of its executor.
            found = [_of_thread(THREAD, pooled[0])], pooled[0]
        elif thread is self._lead and texts.link is not None:
            found = [texts.link], None
        elif (other := self._joined(thread)) is not None:
            found = [_of_thread(THREAD, other)], other
        elif taken and (before := self._taken_before(thread, taken, texts)) is not None:
            place = Place(before.function, before.file, before.line)
            found = [Link(LOCK, taken, short_name(thread.name), place=place, does=TWICE)], thread
        elif (other := self._holder(thread, taken, texts)) is not None:
            found = [_of_thread(LOCK, other, taken)], other
        elif (held := self._of_library(thread, texts)) is not None:
            found = held
        else:
            # A library that waits for nothing known only answers what the loop asks.
            asks = spot.inner or not thread.waits_on
            found = self._of_loop(thread, texts) if asks else self._of_object(thread, texts)
        return found

    def _of_loop(self, thread: _Thread, texts: _Texts) -> tuple[list[Link], _Thread | None]:
        """What it tries again, or the condition of its loop and the thread that has one of the
        objects in it."""
        spot = thread.spots[0]
        found, failed = self._of_text(thread, texts.of(spot)), self._failed
        of_key = found is not None and found.resource == KEY
        tries = thread is self._lead and not of_key and not self._polls
        if tries and failed is not None and lines.is_in_loop(texts.of(spot), spot.line):
            return [self._of_retry(thread, failed, texts)], None
        if found is None:
            return [], None
        names = lines.names_in(found.named)
        roots = {name.partition(".")[0] for name in names}
        objects = {number for name in roots for _, number, _ in self._named(thread, name, 1)}
        other = self._user_of(objects, thread)
        return [found, *([_of_thread(OBJECT, other)] if other is not None else [])], other

    def _of_object(self, thread: _Thread, texts: _Texts) -> tuple[list[Link], _Thread | None]:
        """The queue, future or the like for which it waits, and the thread that has it too."""
        pooled = [one for one in self._threads if one.pooled]
        if (none_free := _none_free(thread, pooled, texts)) is not None:
            return [none_free], None
        selves = self._named(thread, "self", thread.depth) if thread.depth else []
        awaited = [one for one in selves if one[0].endswith(_OBJECTS)]
        objects = {number for _, number, _ in awaited}
        other = self._user_of(objects, thread)
        of_future = thread.waits_on == "future"
        if other is None and of_future:
            other = next(iter(pooled), None) or self._loop_of(thread, texts)
        named = awaited[-1][2].lower() if awaited else "future"
        if (ending := self._ended_by(thread, texts, objects, other)) is not None:
            return ending
        if other is not None:
            return [_of_thread(OBJECT, other, named, "computes" if of_future else "uses")], other
        return self._of_nobody(thread, named if awaited else "")

    def _loop_of(self, thread: _Thread, texts: _Texts) -> _Thread | None:
        """The thread with an event loop, if this one waits for a coroutine that it gave to a loop,
        and the loop does not wait for its next event but stands in the program."""
        if not any(_GIVES in line for line in texts.of(thread.spots[0])):
            return None
        return next(filter(_runs_loop, self._threads), None)

    def _of_nobody(self, thread: _Thread, named: str) -> tuple[list[Link], _Thread | None]:
        """What it waits for, though no other thread that runs code of the program has it. `named`:
        an object that only a thread can end."""
        if any(file.endswith(_QUEUE[0]) and name == _QUEUE[1] for file, name in thread.stack):
            return [Link(OBJECT, "queue", nobody=True, does=UNDONE)], None
        in_memory = thread.waits_on in _OF_THREADS and not _is_of_processes(thread)
        if self._threads or not named or not in_memory or len(self._foreign) > 1:
            return [], None
        if self._foreign:
            # No other thread is left that could end the wait.
            return [_of_thread(THREAD, self._foreign[0])], self._foreign[0]
        return [Link(OBJECT, named, nobody=True, does=ALONE)], None

    def _ended_by(
        self, thread: _Thread, texts: _Texts, objects: set[int], user: _Thread | None
    ) -> tuple[list[Link], _Thread | None] | None:
        """The line of the program that would end its wait for one of these objects, and the thread
        that comes to it: another one, else itself. None if none does and another thread, `user`, or
        one that runs only libraries, may end it too."""
        endings, here = _endings(thread, texts), thread.spots[0]
        named = redact(lines.statement(texts.of(here), here.line))
        every = [one for one in self._every() if one.spots[0] != here] if endings else []
        if all(any(_comes_to(one, [end], texts) for one in (*every, thread)) for end in endings):
            # No other thread that is not there yet may come.
            others = [*every, thread]
        else:
            others = [one for one in every if one is not self._lead]
        for other in sorted(others, key=lambda one: one is not user):
            has = not objects.isdisjoint(self._rank.frames.walk.held(other.ident, FRAMES_MAX))
            if (ending := _comes_to(other, endings, texts, has=has)) is not None:
                return [_with_ending(_of_thread(ENDING, other, named), ending)], other
        if not endings or not endings[0].of_attribute or user is not None or self._foreign:
            return None
        name, ended_at = self._ended
        who = name if name and self._asked_at - ended_at < ENDED_NS else None
        missed = [end for end in endings if _comes_to(thread, [end], texts) is None] or endings
        return [_with_ending(Link(ENDING, named, who, nobody=True), missed[0])], None

    def _of_retry(self, thread: _Thread, failed: _Failed, texts: _Texts) -> Link:
        """The statement that fails again and again, and the values in it, if its function is still
        there."""
        function, file, line, _ = failed.spot
        named = lines.statement(texts.of(failed.spot), line)
        here = thread.spots[0][:2] == (function, file)
        shown = _told(self._values(thread, lines.names_in(named))) if here else ""
        return Link(
            RETRY, redact(named), failed.type, place=Place(function, file, line), does=shown
        )

    def _values(
        self, thread: _Thread, names: Sequence[str], *, of_key: bool = False
    ) -> dict[str, str]:
        """What the plain ones of these variables are, without secrets. The key of a store is a
        name, though a variable `key` elsewhere may have a secret."""
        read = partial(self._rank.frames.walk.values, thread.ident, names[:_NAMES_MAX])
        values = read(thread.depth)
        if not values and (now := self._thread(thread.ident)) is not None:
            # A loop that spins may be in a library at one moment and not at the next.
            values = read(now.depth) if now.spots[0][:2] == thread.spots[0][:2] else values
        return {
            name: redacted_start(value, VALUE_MAX)
            if of_key
            else redacted_variable(name, value, VALUE_MAX)
            for name, value in values.items()
        }

    def _named(self, thread: _Thread, name: str, most: int) -> list[tuple[str, int, str]]:
        return self._rank.frames.walk.named(thread.ident, name, most)

    def _user_of(self, objects: set[int], thread: _Thread) -> _Thread | None:
        """The first other thread that has one of these objects, and does not itself wait for it."""
        walk = self._rank.frames.walk
        for other in self._threads if objects else ():
            if other.ident == thread.ident or objects.isdisjoint(
                walk.held(other.ident, FRAMES_MAX)
            ):
                continue
            waits = self._named(other, "self", other.depth) if other.depth else []
            if not any(file.endswith(_OBJECTS) and one in objects for file, one, _ in waits):
                return other
        return None

    def _of_text(self, thread: _Thread, source: Sequence[str]) -> Link | None:
        """The key of a store for which it waits, or the condition of its loop."""
        spot = thread.spots[0]
        key = lines.key_at(source, spot.line)
        named = key.named if key is not None else lines.condition_of(source, spot.line)
        if named is None:
            return None
        values = self._values(thread, lines.names_in(named), of_key=key is not None)
        shown = _told(values)
        place = Place(spot.function, spot.file, spot.line)
        if key is None:
            limit = f"that {TIMED}" if lines.is_timed(source, spot.line) else ""
            # Of a loop that spins the values cannot be read at each look.
            first = self._shown[named] = self._shown.get(named) or shown
            changes = CHANGES if shown and shown != first else ""
            does = ", and ".join(filter(None, (shown, limit or changes)))
            return Link(LOOP, redact(named), place=place, does=does)
        # Of a variable the value says more than the name.
        told = values.get(named.strip(), redact(named))
        shown = shown if told == redact(named) else ""
        return Link(KEY, told, place=place, does=TAKES if key.taken else shown)

    def _joined(self, thread: _Thread) -> _Thread | None:
        """The thread that it joins."""
        file, function = _JOINS
        places = thread.stack[:4]
        found = next((one for one in places if one[0].endswith(file) and one[1] == function), None)
        walk = self._rank.frames.walk
        name = found and walk.text_of_self(thread.ident, found[0], function, "_name")
        return next((one for one in self._every() if one.name == name), None)

    def _every(self) -> Iterator[_Thread]:
        yield from self._threads
        if self._lead is not None:
            yield self._lead

    def _holder(self, thread: _Thread, taken: str, texts: _Texts) -> _Thread | None:
        """The first other thread that is inside a `with` of the same name, and has that object. One
        that waits there for a condition does not have its lock meanwhile."""
        walk = self._rank.frames.walk
        lock = walk.attribute(thread.ident, taken, thread.depth)
        for other in self._every() if taken else ():
            if lock is not None and lock not in walk.held(other.ident, FRAMES_MAX):
                continue
            at = [(texts.of(spot), spot.line) for spot in other.spots]
            waits = any(f"{taken}.wait" in lines.statement(*one) for one in at)
            if (
                other is not thread
                and not waits
                and any(taken in lines.held_at(*one) for one in at)
            ):
                return other
        return None

    def _of_library(
        self, thread: _Thread, texts: _Texts
    ) -> tuple[list[Link], _Thread | None] | None:
        """The lock of a library in which it waits, and the thread that is inside a `with` of the
        same name there; of a lock in C the only other thread that is in that library."""
        if not thread.library or thread.waits_on:
            return None
        here = thread.library[0]
        taken = lines.taken_at(texts.of(here), here.line) or ""
        beside = [
            (other, [spot for spot in other.library if _package(spot.file) == _package(here.file)])
            for other in self._every()
            if other is not thread
        ]
        for other, spots in beside if taken else ():
            if any(taken in lines.held_at(texts.of(spot), spot.line) for spot in spots):
                return [_of_thread(LOCK, other, taken)], other
        there = [other for other, spots in beside if spots]
        if len(there) == 1 and "futex" in (wchan(f"self/task/{thread.tid}") or ""):
            return [_of_thread(OBJECT, there[0])], there[0]
        return None

    def _taken_before(self, thread: _Thread, taken: str, texts: _Texts) -> StackLine | None:
        """The line further out that is inside a `with` of the same name, of the same object or in
        the same file: then it takes a lock a second time. Of `locks[key]` the text does not say
        which one it is."""
        if not _is_lock(thread, taken) or not taken.replace(".", "_").isidentifier():
            return None
        deep = [at for at, (file, _) in enumerate(thread.stack) if self._rank.frames.is_user(file)]
        outer = [
            (spot, at)
            for spot, at in zip(thread.spots[1:], deep[1:], strict=False)
            if taken in lines.held_at(texts.of(spot), spot.line)
        ]
        lock_at = partial(self._rank.frames.walk.attribute, thread.ident, taken)
        if outer and (lock := lock_at(thread.depth)) is not None:
            return next((spot for spot, at in outer if lock_at(at) == lock), None)
        files = {spot.file for spot in (thread.spots[0], *(spot for spot, _ in outer))}
        owners = self._named(thread, taken.partition(".")[0], FRAMES_MAX) if outer else ()
        ids = {number for file, number, _ in owners if file in files}
        same = len(ids) == 1 or (not ids and len(files) == 1)
        return outer[0][0] if outer and same else None

    def _of_task(self, task: PendingTask, texts: _Texts) -> tuple[list[Link], _Thread | None]:
        spot = task.spots[0]
        function, file, line, _ = spot
        source = texts.of(spot)
        awaited = redact(lines.statement(source, line))
        timed = task.timed or any(map(_LIMIT.search, lines.held_at(source, line)))
        place = Place(function, file, line)
        link = Link(TASK, awaited, short_name(task.name), place=place, does=TIMED if timed else "")
        on_thread = any(word in awaited for word in _ON_THREADS)
        pooled = [one for one in self._threads if one.pooled and on_thread]
        if any(word_of(*at) == CONNECTIONS for at in task.inside):
            return [link, Link(OBJECT, "connection", nobody=True, does=TAKEN)], None
        having = (
            [_of_thread(THREAD, one) for one in pooled[:1]]
            or self._task_with(task, texts)
            or self._task_that_comes(task, texts)
            or self._task_that_uses(task)
        )
        # It does not await, but stops its loop.
        runs = (
            one
            for one in self._threads
            if _runs_loop(one) and spot[:3] in (at[:3] for at in one.spots)
        )
        return [link, *having], next(iter(pooled), None) or next(runs, None)

    def _task_with(self, task: PendingTask, texts: _Texts) -> list[Link]:
        """The task that is inside an `async with` of the lock for which this one waits, and where
        it stands: itself, if it takes the lock a second time, or one that waits for it."""
        here = task.spots[0]
        taken = lines.taken_at(texts.of(here), here.line) or "its lock"
        for other in (task, *self._tasks[:-1], *self._others):
            # A line that waits for a lock is inside of it for the interpreter.
            waits = other.wants == task.wants
            inside = (
                at for at, ids in enumerate(other.holds) if task.wants[0] in ids and at >= waits
            )
            for at in inside:
                mine, circle = other is task, other in self._tasks
                place = Place(*other.spots[at if mine else 0][:3])
                who, does = OF_TASK + short_name(other.name), TWICE if mine else ""
                return [Link(LOCK, redact(taken), who, place=place, circle=circle, does=does)]
        return []

    def _task_that_comes(
        self, task: PendingTask, texts: _Texts, passed: tuple[PendingTask, ...] = ()
    ) -> list[Link]:
        """The task that comes to the line which would end the wait of this one, and for whom that
        one waits in turn; nobody, if no task and no thread comes there."""
        passed = (*passed, task)
        endings = _endings(task, texts) if task.wants != NOTHING else []
        every = (*self._others, *self._tasks)
        sure = all(any(_comes_to(one, [end], texts) for one in every) for end in endings)
        # A task that is not there yet may come too.
        for other in every if sure else self._others:
            has = task.wants[0] in other.uses
            if (ending := _comes_to(other, endings, texts, has=has)) is not None:
                who, place = OF_TASK + short_name(other.name), Place(*other.spots[0][:3])
                circle = other in passed or other in self._tasks
                link = _with_ending(Link(ENDING, who=who, place=place, circle=circle), ending)
                return [link] if circle else [link, *self._task_that_comes(other, texts, passed)]
        if not endings or not endings[0].of_attribute or self._threads or self._foreign:
            return []
        return [_with_ending(Link(ENDING, nobody=True), endings[0])]

    def _task_that_uses(self, task: PendingTask) -> list[Link]:
        """The only other task that uses the object for which this one waits. All items of a queue
        have been taken if the others wait for the next one."""
        wanted, named = task.wants
        users = [one for one in self._others if wanted in one.uses]
        if any(file.endswith(_TASK_QUEUE) and name == "join" for file, name in task.inside):
            idle = all(one.wants == task.wants for one in users)
            return [Link(OBJECT, "queue", nobody=True, does=UNDONE)] if idle else []
        if len(users) != 1 or not wanted:
            return []
        (other,) = users
        spot = other.spots[0]
        place, who = Place(spot.function, spot.file, spot.line), OF_TASK + short_name(other.name)
        back = [one for one in (task, *self._others) if other.wants[0] in one.uses]
        circle = bool(other.wants[0]) and [one for one in back if one is not other] == [task]
        return [Link(OBJECT, named, who, place=place, does="uses", circle=circle)]


def _none_free(thread: _Thread, pooled: Sequence[_Thread], texts: _Texts) -> Link | None:
    """What it waits for of a pool that has none left: a connection, or a thread for its task, where
    all threads of pools wait for tasks in turn. Children may do tasks too."""
    if thread.waits_on == CONNECTIONS:
        return Link(OBJECT, "connection", nobody=True, does=TAKEN)
    waits = thread.waits_on == "future" and not texts.children
    starved = waits and pooled and all(one.waits_on == "future" for one in pooled)
    return Link(OBJECT, "future", nobody=True, does=STARVED) if starved else None


def _runs_loop(thread: _Thread) -> bool:
    return any(file.endswith(_LOOP) for file, _ in thread.stack)


def _package(file: str) -> str:
    """The package to which a file of a library belongs."""
    return file.rpartition("/site-packages/")[2].partition("/")[0]


def locked_by(path: str) -> int | None:
    """The other process that has a lock on this file.

    Source: /proc/locks, by the numbers of the device and the file. Check: `lslocks`.
    """
    try:
        found = os.stat(path)
        with open("/proc/locks", encoding="ascii") as file:
            every = [line.split() for line in file]
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    pids = [int(one[4]) for one in every if len(one) > 5 and one[5] == device and one[1] != "->"]
    return next((pid for pid in pids if pid > 0 and pid != os.getpid()), None)


def started_in_place(pids: Sequence[int], since_mono_ns: int) -> int | None:
    """The first of these processes that has started after that time: clearly, or about then while
    another one is older."""
    shift_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    started = {pid: ticks * CLOCK_TICK_NS - shift_ns for pid in pids if (ticks := start_ticks(pid))}
    about = [pid for pid, at in started.items() if at > since_mono_ns - JUST_NS]
    later = [pid for pid in about if started[pid] > since_mono_ns + 2 * JUST_NS]
    return next(iter(about if len(about) < len(started) else later), None)


def _condition(thread: _Thread, texts: _Texts) -> str | None:
    spot = thread.spots[0]
    return lines.condition_of(texts.of(spot), spot.line) if spot.inner else None


def _told(values: Mapping[str, str]) -> str:
    """`port is 9, host is 'node7'`."""
    return ", ".join(f"{name} is {value}" for name, value in values.items())


def _is_lock(thread: _Thread, taken: str) -> bool:
    """Whether what the thread takes is a lock, by its call or its name. Others are entered too."""
    return thread.waits_on == "lock" or _NAMED_LOCK.search(taken) is not None


def _is_of_processes(thread: _Thread) -> bool:
    """Whether it waits for an object that processes share."""
    return any(file.endswith(_SEMAPHORE) for file, _ in thread.stack)


def _of_thread(resource: str, thread: _Thread, named: str = "", does: str = "") -> Link:
    """The link that this thread has."""
    spot = thread.spots[0]
    place = Place(spot.function, spot.file, spot.line, thread.waits_on or None)
    return Link(resource, named, short_name(thread.name), place=place, does=does)


def _endings(waits: _Thread | PendingTask, texts: _Texts) -> list[WaitEnd]:
    """The lines of the program that would end its wait."""
    return endings_of(texts.files, waits.spots[0].file, waits.spots[0].line)


def _comes_to(
    one: _Thread | PendingTask, endings: Sequence[WaitEnd], texts: _Texts, *, has: bool = True
) -> WaitEnd | None:
    """The first of these lines to which it comes, if it goes on: in a function of its own only if
    that `has` the object."""
    ways = ((ending, way_to(texts.files, ending, one.spots)) for ending in endings)
    return next((ending for ending, way in ways if way and (has or way != ending.spot)), None)


def _with_ending(link: Link, ending: WaitEnd) -> Link:
    at, does = Place(*ending.spot[:3]), redact(ending.text)
    return msgspec.structs.replace(link, at=at, does=does)


def _lines_of(file: str) -> list[str]:
    """The lines of a file, as far as they are read; none of what is not a file. A program may give
    its code any name: to open a named pipe would be noticed at its other end."""
    try:
        with open(
            file if os.path.isfile(file) else os.devnull, encoding="utf-8", errors="replace"
        ) as source:
            return source.read(SOURCE_MAX).splitlines()
    except (OSError, ValueError):
        return []
