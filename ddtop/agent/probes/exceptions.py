"""Exceptions that the program catches again and again (on request), and the one that ends it."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.plain import is_a, name_of, peek, text_of, traceback_of
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.stacks.frames import frames_of, user_frame_of
from ddtop.agent.stacks.walk import FLOW
from ddtop.agent.wrapper import replace
from ddtop.wire import page as layout
from ddtop.wire.records import (
    CATCHES_TOLD,
    LEFT,
    Catching,
    Caught,
    LastException,
    Place,
    RankState,
)

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank


# -- Exceptions that the program catches again and again. On request: DDTOP_EXCEPTIONS=1, Python
#    3.12
#
# Source: `sys.monitoring`, for one tick in five seconds. It reports each exception that finds a
# handler (RAISE reports where it is raised, also in libraries). These events cannot be switched off
# for single places, so the window is short, and closed after EVENTS_MAX events. `finally`, `with`
# and an `except` that does not match are handlers too: each raises again, which undoes the count.
# Only the rank's thread and the program's own code count. Between windows another tool may use the
# tool number. No exception, no frame and no code is kept. Caveat: an exception that is caught and
# raised again as another counts as caught. Check: put a counter into the handler.


VARIABLE, PROBE = "DDTOP_EXCEPTIONS", "exceptions caught"
EVERY_NS = 5_000_000_000
EVENTS_MAX = 2_000
"""A window ends after so many events: at 1 us each that is 2 ms, once in five seconds (measured:
0.9 us, without it 0.3 us)."""
WINDOWS, PLACES = 6, 64
"""Windows remembered (half a minute), and places counted in one."""
TOOL_IDS = (4, 3)
"""Tool numbers that Python does not reserve; 0, 1, 2 and 5 belong to debuggers, coverage, profilers
and optimizers.
"""
_monitoring: Any = getattr(sys, "monitoring", None)
_Key = tuple[str, str, str, int]


def why_not() -> str | None:
    """Why caught exceptions cannot be seen here; None if they can."""
    return (
        None if _monitoring is not None else f"needs Python 3.12, this is {sys.version.split()[0]}"
    )


def asked_for() -> bool:
    """DDTOP_EXCEPTIONS is set."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def probe(rank: Rank) -> ExceptionsCaught | None:
    """The probe of `ddtop.agent.sources`, if somebody asked for it.

    If this Python cannot report caught exceptions, the record says why.
    """
    if not asked_for():
        return None
    reason = why_not()
    if reason is not None:
        guard.off[PROBE] = reason
        return None
    return ExceptionsCaught(rank)


class _Place:
    """A handler in one window. `key`: what identifies it, also on other ranks."""

    __slots__ = ("count", "key")

    def __init__(self, code: CodeType, offset: int, name: str) -> None:
        # The code is not kept: if it is the program's last one, its destructor must not run in the
        # agent's thread.
        ends = ((end, line) for _, end, line in code.co_lines() if line is not None)
        line = next((line for end, line in ends if offset < end), code.co_firstlineno)
        self.key: _Key = name, code.co_filename, code.co_qualname, line  # type: ignore[attr-defined, unused-ignore]
        self.count = 0


class ExceptionsCaught(Probe):
    """Opens and closes the windows on the agent's thread. The two events run on the program's.

    `thread_id`: Python's number of the thread whose exceptions are counted, the rank's.
    """

    name = PROBE
    retries = False

    def __init__(self, rank: Rank) -> None:
        self.thread_id, self._frames, self._rank = rank.main_id, rank.frames, rank
        self._tool: int | None = None
        self._opened_at = self._next_at = 0
        self._ended_at: int | None = None
        self._events = 0
        self._places: dict[tuple[int, int, str], _Place] = {}
        self._handled: dict[tuple[int, int], _Place] = {}
        self._windows: deque[tuple[int, dict[_Key, int]]] = deque(maxlen=WINDOWS)
        self.state = Catching()
        os.register_at_fork(after_in_child=self.release)

    def sample(self, tick: Tick) -> None:
        """Find the rank's thread, and open or close a window."""
        self.thread_id = self._rank.lead_id
        self.take_turn(tick.now)

    def fields(self, tick: Tick) -> Fields:
        """What the last windows saw."""
        return partial(RankState, catching=self.state)

    def close(self, tick: Tick) -> None:
        """Give the tool's number back."""
        self.release()

    def take_turn(self, now: int) -> None:
        """Close the window that is open, or open one if it is time; `now`: monotonic."""
        try:
            if self._tool is not None:
                self._end()
            elif now >= self._next_at:
                self._next_at = now + EVERY_NS
                self._begin()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the tool number; the counts of the open window are lost."""
        tool, self._tool = self._tool, None
        if tool is None:
            return
        _monitoring.set_events(tool, 0)
        events = _monitoring.events
        for event in (events.EXCEPTION_HANDLED, events.RERAISE):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)

    def _begin(self) -> None:
        tool = next((tool for tool in TOOL_IDS if _monitoring.get_tool(tool) is None), None)
        if tool is None:
            return  # Both numbers are another tool's; asked again at the next window.
        try:
            _monitoring.use_tool_id(tool, "ddtop")
        except ValueError:
            return
        self._tool = tool
        self._places, self._handled, self._events, self._ended_at = {}, {}, 0, None
        events = _monitoring.events
        _monitoring.register_callback(tool, events.EXCEPTION_HANDLED, self._on_handled)
        _monitoring.register_callback(tool, events.RERAISE, self._on_reraise)
        self._opened_at = time.monotonic_ns()
        _monitoring.set_events(tool, events.EXCEPTION_HANDLED | events.RERAISE)

    def _end(self) -> None:
        self.release()
        ended_at = self._ended_at or time.monotonic_ns()
        counts: dict[_Key, int] = {}
        for place in list(self._places.values()):  # one call of the event may still be under way
            if place.count > 0:
                counts[place.key] = counts.get(place.key, 0) + place.count
        self._places, self._handled = {}, {}
        self._windows.append((max(ended_at - self._opened_at, 1), counts))
        self.state = self._report()

    def _report(self) -> Catching:
        found: dict[_Key, list[int]] = {}
        last: dict[_Key, int] = {}
        for at, (_, counts) in enumerate(self._windows, 1):
            for key, count in counts.items():
                found.setdefault(key, []).append(count)
                last[key] = at
        first = sorted(found.items(), key=lambda item: (-len(item[1]), -sum(item[1])))[
            :CATCHES_TOLD
        ]
        return Catching(
            windows=len(self._windows),
            watched_ns=sum(ns for ns, _ in self._windows),
            caught=tuple(
                Caught(
                    *key, count=sum(counts), windows=len(counts), ago=len(self._windows) - last[key]
                )
                for key, counts in first
            ),
            omitted=len(found) - len(first),
        )

    # -- on the program's threads: nothing here may raise

    def _on_handled(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._events += 1
        if self._events > EVENTS_MAX:
            self._stop()
            return
        if threading.get_ident() != self.thread_id or not self._frames.is_user(code.co_filename):
            return
        name = name_of(type(error))
        if name in FLOW:
            return
        key = (id(code), offset, name)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= PLACES:
                return
            place = self._places[key] = _Place(code, offset, name)
        place.count += 1
        self._handled[id(code), id(error)] = place

    def _on_reraise(self, code: CodeType, _offset: int, error: BaseException) -> None:
        place = self._handled.pop((id(code), id(error)), None)
        if place is not None:
            place.count -= 1

    def _stop(self) -> None:
        tool = self._tool
        if tool is not None and self._ended_at is None:
            self._ended_at = time.monotonic_ns()
            _monitoring.set_events(tool, 0)


# -- Exceptions that nothing caught, and those after which the program has ended itself
#
# Source: `sys.excepthook` and `threading.excepthook`; what is handled at the time of `sys.exit`,
# `os._exit` or MPI's Abort. Existing hooks still run; ours runs first and only reads. Caveat: a
# signal and a crash in C code raise nothing. Check: the program's stderr.


TEXT_CHARACTERS = 500
EXITS_NS = 30_000_000_000
"""From `sys.exit` to the end of the interpreter. After more, the program has gone on."""


def install(rank: Rank) -> None:
    """Chain `sys.excepthook` and `threading.excepthook`, and read what is handled at an exit."""
    replace(sys, "exit", lambda given, _: guard.run("exceptions", _keep, rank, given))
    replace(os, "_exit", lambda given, _: guard.run("exceptions", _leave, rank, given))
    before, thread_before = sys.excepthook, threading.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> Any:
        guard.run("exceptions", lambda: note(rank, kind, error, traceback, "main"))
        return before(kind, error, traceback)

    def thread_hook(arguments: Any) -> Any:
        name = peek(arguments.thread, "_name", default="thread")
        if arguments.exc_type is not SystemExit:
            guard.run(
                "exceptions",
                lambda: note(
                    rank,
                    arguments.exc_type,
                    arguments.exc_value,
                    arguments.exc_traceback,
                    name,
                    _leads(rank),
                ),
            )
        return thread_before(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook
    rank.note_raised = lambda error, thread: note(
        rank, type(error), error, traceback_of(error), thread
    )


def _leads(rank: Rank) -> bool:
    """Whether the calling thread is the training thread. The agent's last sample may be older than
    its first step."""
    own = threading.get_ident()
    return own != rank.main_id and own in (rank.stepper, rank.lead_id)


def note(
    rank: Rank,
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
    thread: str,
    leads: bool = False,
) -> None:
    """Write the exception to the state page and to the next record.

    `leads`: it ends the thread that trained.
    """
    if current.get() is not rank:
        return
    if rank.exception is not None and thread != "main" and not (leads and not rank.exception.leads):
        return
    _tell(rank, _described(rank, kind, error, traceback, thread, leads))


def _tell(rank: Rank, found: LastException) -> None:
    rank.exception = found
    rank.page.write(layout.EXCEPTION, _encode_to_fit(found))
    rank.wake()


def _fails(given: tuple[Any, ...]) -> bool:
    """Whether an exit with these arguments says that something has failed."""
    return bool(given) and type(given[0]) in (int, str) and given[0] != 0


def _handled() -> BaseException | None:
    """What the calling thread handles."""
    error = sys.exc_info()[1]
    return None if error is None or is_a(error, SystemExit) else error


def note_handled(rank: Rank) -> None:
    """The process ends now, from a thread that handles this exception."""
    error = _handled()
    if error is not None:
        guard.run("exceptions", note, rank, type(error), error, traceback_of(error), "main", True)


def _leave(rank: Rank, given: tuple[Any, ...]) -> None:
    """`os._exit`."""
    if not _fails(given) or current.get() is not rank:
        return
    note_handled(rank)
    if rank.exception is None:
        _tell(rank, _exit_of(rank, given))


def _keep(rank: Rank, given: tuple[Any, ...]) -> None:
    """`sys.exit`: it counts once the interpreter exits, because the program may catch that too."""
    error = _handled()
    own = current.get() is rank and threading.get_ident() == rank.main_id
    if not own or not _fails(given):
        return
    rank.leaves_after = (
        _described(rank, type(error), error, traceback_of(error), "main", leads=False)
        if error is not None
        else _exit_of(rank, given)
    )


def _exit_of(rank: Rank, given: tuple[Any, ...]) -> LastException:
    """The call itself, where the program's code made it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not rank.frames.is_user(frame.f_code.co_filename):
        frame = frame.f_back
    place = None
    if frame is not None:
        place = Place(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)
    return LastException(LEFT, f"{given[0]}"[:TEXT_CHARACTERS], time.time_ns(), place)


def _described(
    rank: Rank,
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
    thread: str,
    leads: bool,
) -> LastException:
    from ddtop.agent.notes import LoaderNotes
    from ddtop.agent.probes.loader import first_failed

    found = user_frame_of(traceback, rank.frames)
    text = one_line(error)
    stack, omitted = frames_of(traceback, rank.frames)
    return LastException(
        name_of(kind),
        text,
        time.time_ns(),
        Place(found[0], found[1], found[2]) if found else None,
        thread,
        leads,
        stack,
        omitted,
        first_failed(rank.notes[LoaderNotes]) if "DataLoader worker" in text else None,
    )


def _encode_to_fit(exception: LastException) -> bytes:
    """The exception for the state page. Long paths may leave room for only a few frames."""
    import msgspec

    from ddtop.wire import frames
    from ddtop.wire.page import EXCEPTION_BYTES_MAX

    data = frames.encode(exception)
    while len(data) > EXCEPTION_BYTES_MAX and exception.frames:
        kept = exception.frames[: len(exception.frames) // 2]
        left = exception.omitted + len(exception.frames) - len(kept)
        exception = msgspec.structs.replace(exception, frames=kept, omitted=left)
        data = frames.encode(exception)
    return data


_WORKER = re.compile(r"Caught \S+ in (DataLoader worker process \d+|[^\n]{1,60}?)\.\nOriginal ")
_FRAME = re.compile(r' +File "([^"]+)", line (\d+), in (\S+)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen")
_TRACEBACK, QUOTED_MAX = "Traceback (most recent call last):", 1 << 16


def one_line(error: BaseException | None) -> str:
    """The exception's text (`plain.text_of`) without line breaks and secrets; what is cut shows as
    an ellipsis."""
    from ddtop.redaction import TEXT_CHARACTERS_MAX, redacted_start

    said = _without_frames(text_of(error) if error is not None else "", name_of(type(error)))
    # Cut first, because the text of an exception may be a whole batch. Keep one character more, so
    # that the next cut shows that something is missing.
    text = redacted_start(said[: TEXT_CHARACTERS_MAX + 1], TEXT_CHARACTERS_MAX)
    text = " ".join(text.split())
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def _without_frames(text: str, kind: str) -> str:
    """The text without the frames of tracebacks of other processes that it quotes: the errors at
    their ends would be cut. `kind`: the name of its exception."""
    if _TRACEBACK not in text:
        return text
    lines = text[:QUOTED_MAX].splitlines()
    said = "\n".join(line for line in lines if line[:2] != "  ").replace(_TRACEBACK, "")
    found = _WORKER.match(text)
    if found is None:
        return said
    # What torch raises again for a worker: its error, and where the program's code raised it.
    error = said.partition("Original ")[2].strip()
    whole, _, only = error.partition(": ")
    named = only if only and whole.rpartition(".")[2] == kind else error
    own = [one for one in map(_FRAME.match, lines) if one and not _LIBRARY.search(one[1])]
    at = f", {os.path.basename(own[-1][1])}:{own[-1][2]} {own[-1][3]}" if own else ""
    return f"{named} (in {found[1]}{at})"


def note_last(rank: Rank) -> None:
    """At exit: an exception whose hook somebody replaced is still in `sys.last_value`; that after
    which the program has called `sys.exit` was kept."""
    error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if rank.exception is None and is_a(error, BaseException):
        note(rank, type(error), error, traceback_of(error), "main")
    kept = rank.leaves_after
    if rank.exception is None and kept is not None and time.time_ns() - kept.unix_ns < EXITS_NS:
        _tell(rank, kept)
