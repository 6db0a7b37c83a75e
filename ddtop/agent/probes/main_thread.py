"""The rank's thread: which it is, where it is, what it does, and its hottest lines."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType

from ddtop.agent.plain import peek
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.rank import Rank
from ddtop.agent.stacks.frames import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    LOADER,
    OPTIMIZER,
    OTHER,
    FrameReader,
    Stay,
    ThreadLook,
)
from ddtop.agent.stacks.walk import FLOW, Handled
from ddtop.agent.stacks.walk import Place as WalkPlace
from ddtop.procfs import names_in, read, scheduled_ns, switches
from ddtop.redaction import redacted_start
from ddtop.wire import frames
from ddtop.wire import page as layout
from ddtop.wire.records import (
    ACTIVITIES,
    Handling,
    Place,
    RankState,
    Spot,
    Whereabouts,
    by_function,
)

# -- Counts how often each activity was seen, for the shares in the column PHASES
#
# Source: the activity that `rank_thread` reads from the frames, four samples a second. Caveat:
# Python frames only, so compiled code counts as the line that called it. Check: `py-spy dump --pid
# PID` several times.


class ActivityProbe(Probe):
    """Counts samples by activity. Its row is below the one that knows whether the rank waits."""

    name = "activity"

    def __init__(self, _rank: Rank) -> None:
        self._counts = [0] * len(ACTIVITIES)

    def sample(self, tick: Tick) -> None:
        """Count what this tick has seen."""
        tick.activities = self._counts
        if tick.seen is not None:
            self._counts[counted_as(tick.seen.activity, tick.waits)] += 1

    def fields(self, tick: Tick) -> Fields:
        """The activity now, and the counts so far in the order of ACTIVITIES."""
        seen = tick.seen
        return partial(
            RankState,
            activity=ACTIVITIES[seen.activity] if seen is not None else None,
            activity_samples=tuple(self._counts),
        )


def counted_as(activity: int, waits: bool) -> int:
    """The activity under which a sample is counted.

    A sample that found the rank waiting for a collective counts as communication, also inside
    backward: so the share of communication in PHASES is never below WAIT.
    """
    return COLLECTIVE if waits else activity


# -- Counts the lines of the program's code at which the rank's thread was in the last half minute.
#    The count is bounded
#
# Source: the looks of `rank_thread`, four a second. Caveat: these are samples, so a line that runs
# only briefly may be missing. Check: `py-spy top --pid PID`.


TAKER_RATIO = 0.2
"""Share of a core from which on another thread of the program computes."""
KEPT, TOLD = 120, 8
"""Samples that are remembered (half a minute), and lines that are reported."""

_Key = tuple[str, str, int, "str | None"]


class HotLines:
    """Counts of (function, file, line, waits on) over the last samples. No frame is kept."""

    def __init__(self) -> None:
        self._looks: deque[_Key | None] = deque(maxlen=KEPT)
        self._counts: dict[_Key, int] = {}

    def add(self, seen: ThreadLook | None) -> None:
        """Add one sample. None, or no code of the program, counts too, because shares are of all
        samples."""
        if len(self._looks) == KEPT:
            self._forget(self._looks[0])
        key = None
        if seen is not None and seen.function is not None:
            key = (seen.qualname or seen.function, seen.file, seen.line, seen.waits_on)
            self._counts[key] = self._counts.get(key, 0) + 1
        self._looks.append(key)

    def _forget(self, key: _Key | None) -> None:
        if key is None:
            return
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    @property
    def total(self) -> int:
        """Looks of which the counts are."""
        return len(self._looks)

    def most_seen(self) -> tuple[Spot, ...]:
        """The lines at which it was seen most often, those first."""
        if not self._counts:
            return ()
        first = sorted(self._counts.items(), key=lambda item: -item[1])[:TOLD]
        return tuple(
            Spot(function, file, line, count, waits_on)
            for (function, file, line, waits_on), count in first
        )


class Takers:
    """Which other thread with code of the program computes at the samples that came late: it and
    the rank's thread take the GIL in turns.

    Source: the thread's CPU time in /proc/self/task/TID/schedstat. Only late samples ask for it.
    Check: `top -H -p PID`.
    """

    def __init__(self, frames: FrameReader) -> None:
        self._frames = frames
        self._ran: dict[int, tuple[int, int]] = {}
        self._lines = HotLines()

    def look(self, now: int, lead_id: int) -> None:
        """Look at all threads; `now`: monotonic ns."""
        walk, before, self._ran = self._frames.walk, self._ran, {}
        own = (threading.get_ident(), lead_id)
        busiest: tuple[float, ThreadLook | None] = (TAKER_RATIO, None)
        for ident in [one for one in walk.threads() if one not in own][:THREADS_MAX]:
            seen = self._frames.look(ident)
            ran_ns, _ = scheduled_ns(f"self/task/{walk.native_id(ident)}")
            if seen is None or seen.function is None or ran_ns is None:
                continue
            self._ran[ident] = now, ran_ns
            at, then_ns = before.get(ident, (now, 0))
            share = (ran_ns - then_ns) / (now - at) if now > at else 0.0
            if share > busiest[0]:
                busiest = share, seen
        self._lines.add(busiest[1])

    @property
    def most_seen(self) -> Spot | None:
        """Where one computed at half of these samples, or more."""
        spot = next(iter(by_function(self._lines.most_seen())), None)
        return spot if spot is not None and 2 * spot.samples >= self._lines.total else None


# -- Finds the rank's thread among the threads of the process, and what it does
#
# The rank's thread is the one that steps the optimizer. Ray Train, notebooks, GUIs and some
# trainers train in a thread while the main thread only waits for it. Before the first step, and in
# programs without an optimizer, it is the main thread. If the main thread waits for another thread
# (join, queue, future) or runs no code of the program, and another thread is in torch's training
# code, it is that other thread. One case remains uncertain: if the main thread waits for a
# background thread that communicates for it, the background thread is reported.
#
# Source: `ddtop.agent.stacks.walk`, on the agent's thread with the GIL held (10 us a thread). It
# shows Python frames only: inside C code the place is the line that called it. Check: `py-spy dump
# --pid PID`.


SCAN_EVERY_NS = 1_000_000_000
POLLS_EVERY_NS = 1_500_000_000
"""A loop that polls is found asleep at one line; so often its function is asked for what. One that
has another path each time polls for none."""
_UNASKED: tuple[int, str | None] = (0, None)
"""Since when it is at its line, and the path."""
THREADS_MAX = 64
"""Threads looked at in one scan: 10 us each."""
_TRAINING = (COLLECTIVE, BACKWARD, OPTIMIZER, FORWARD, LOADER)
SERVES = frozenset({"rpc-shutdown", "actor"})
_WAITS_FOR_THREADS = frozenset({"lock", "queue", "future", "asyncio", "exit"}) | SERVES


class Lead:
    """Finds the rank's thread and looks at it. `ident`: Python's number of the last one found."""

    def __init__(self, main_id: int, frames: FrameReader) -> None:
        self.ident = self._main_id = main_id
        self._frames, self._scanned_at = frames, 0

    def look(self, now: int, stepper: int) -> ThreadLook | None:
        """What the rank's thread does at this moment; None if the main thread has no Python frame
        any more.

        `now`: monotonic ns. `stepper`: the thread of the last optimizer step, 0 before the first.
        """
        if stepper not in (0, self._main_id):
            seen = self._frames.look(stepper)
            # An idle thread of a pool is inside the library.
            if seen is not None and seen.frame_id:
                self.ident = stepper
                return seen
        seen = self._frames.look(self._main_id)
        if stepper == self._main_id or not _waits_for_threads(seen):
            self.ident = self._main_id
            return seen
        return self._other_look(now, seen is not None and seen.waits_on in SERVES) or seen

    @property
    def native_id(self) -> int:
        """The kernel's number of the thread; 0 for the main thread, and if Python does not know it.

        Check: `ls /proc/PID/task`.
        """
        if self.ident == self._main_id:
            return 0
        # A dictionary of this process, read without its lock: a missing entry does no harm.
        known = threading._active.get(self.ident)  # type: ignore[attr-defined]
        return peek(known, "_native_id") or self._frames.walk.native_id(self.ident)

    def _other_look(self, now: int, serves: bool) -> ThreadLook | None:
        """A training thread that is not the main thread; the previous one, as long as it trains.

        `serves`: the main thread only serves calls of others. Then the only thread with code of the
        program is the rank's, whatever it does.
        """
        if self.ident != self._main_id:
            seen = self._frames.look(self.ident)
            if seen is not None and (_trains(seen) or (serves and seen.frame_id)):
                return seen
        if now - self._scanned_at < SCAN_EVERY_NS:
            return None
        self._scanned_at, self.ident = now, self._main_id
        own = threading.get_ident()
        others = [
            ident for ident in self._frames.walk.threads() if ident not in (own, self._main_id)
        ][:THREADS_MAX]
        own_code = [
            (ident, seen)
            for ident in others
            if (seen := self._frames.look(ident)) is not None and seen.frame_id
        ]
        looks = [look for look in own_code if _trains(look[1])]
        if not looks and (not serves or len(own_code) != 1):
            return None
        self.ident, found = min(
            looks or own_code,
            key=lambda look: (_TRAINING.index(look[1].activity) if looks else 0, look[0]),
        )
        return found


def _trains(seen: ThreadLook) -> bool:
    return bool(seen.frame_id) and seen.activity in _TRAINING


def _waits_for_threads(seen: ThreadLook | None) -> bool:
    return seen is None or not seen.frame_id or seen.waits_on in _WAITS_FOR_THREADS


class PlaceProbe(Probe):
    """Where the rank's thread is now, where it was most often, and how late the ticks were."""

    name = "place"

    def __init__(self, rank: Rank) -> None:
        self._rank, self._lead, self._stay = rank, Lead(rank.main_id, rank.frames), Stay()
        self._lines = HotLines()
        self._held_samples, self._held_lines = 0, HotLines()
        self._takers = Takers(rank.frames)
        self._asked_at, self._has_groups = 0, False
        self._polls = self._asked = _UNASKED

    def sample(self, tick: Tick) -> None:
        """Find the rank's thread and look at its frames."""
        rank, lead = self._rank, self._lead
        self._held_samples += tick.held
        seen = tick.seen = lead.look(tick.now, rank.stepper)
        if lead.ident != rank.lead_id:
            rank.lead_id = lead.ident
            rank.page.words[layout.LEAD_AT] = lead.native_id
        call = tick.calls.get(rank.lead_id)
        if seen is not None and call is not None:
            seen.activity, (seen.callee, seen.waits_on) = COLLECTIVE, call
        self._lines.add(seen)
        if tick.held:
            self._held_lines.add(seen)
            self._takers.look(tick.now, lead.ident)
        if seen is not None:
            self._stay.follow(seen, tick.now)
            since = tick.line_since = self._stay.line_since
            tick.call_since = self._stay.since
            if tick.now - max(since, self._asked_at) >= POLLS_EVERY_NS:
                asked = since, rank.frames.polled_path(lead.ident)
                self._polls = asked if asked == self._asked else _UNASKED
                self._asked, self._asked_at = asked, tick.now

    def fields(self, tick: Tick) -> Fields:
        """The place now and the lines of the last half minute."""
        if tick.groups and not self._has_groups:
            # What the rank did before it had process groups is not part of any step.
            self._lines = HotLines()
        self._has_groups = bool(tick.groups)
        rank, who, place = self._rank, self._rank.who, self._place(tick)
        # Times of this host mean nothing to a viewer of the other job.
        spot = place and Place(
            place.function, place.file, place.line, place.waits_on, callee=place.callee
        )
        where = Whereabouts(rank.job, who.rank, who.world_size, tick.moved_at, spot)
        rank.page.write(layout.WHEREABOUTS, frames.encode(where))
        return partial(
            RankState,
            place=place,
            spots=self._lines.most_seen(),
            spots_samples=self._lines.total,
            held_samples=self._held_samples,
            held_spot=next(iter(self._held_lines.most_seen()), None),
            held_by=self._takers.most_seen if self._held_samples else None,
        )

    def _place(self, tick: Tick) -> Place | None:
        seen = tick.seen
        if seen is None or seen.function is None:
            return None
        return Place(
            seen.function,
            seen.file,
            seen.line,
            seen.waits_on,
            self._stay.since + tick.unix_minus_mono,
            seen.callee,
            self._stay.line_since + tick.unix_minus_mono,
            seen.waits_for,
            seen.owner,
            seen.framework,
            seen.framework_call,
            seen.inside,
            self._polls[1] if self._polls[0] == self._stay.line_since else None,
            seen.asked,
        )


# -- What is known of a rank that makes no progress: whether it has stood at its line before, until
#    when it sleeps, whether its process reads or writes a file, and whether it writes one while it
#    handles an exception
#
# Source: the looks of `rank_thread`, the arguments of the system call in which its thread sleeps,
# the exception that it handles, and the positions in the files that the process has open
# (/proc/self/fdinfo, which asks no file system). Caveat: only lines outside of collectives,
# of the model and of the DataLoader count. `time.sleep` has told the kernel its end since Python
# 3.11. A file that is opened anew for each line is not seen to grow. Check: `cat
# /proc/PID/syscall`, `grep -H pos /proc/PID/fdinfo/*`.


LINES_MAX, STAYS_MAX, FILES_MAX = 16, 64, 256
LOOK_EVERY_NS, MOVES_NS, LOGGED_BYTES = 1_000_000_000, 5_000_000_000, 1024
"""How often the positions in files are read where no exception is handled (15 us each), and for how
long a file that was read or written is work. A loop that waits may write a log: that is less
between two looks."""
FIRST_FACTOR = 2
EXCEPTION_CHARACTERS, STACK_MOST = 200, 100
_FUTEX = (b"202", b"98")
"""On x86-64 and on arm64. Its fourth argument is the time limit."""
_ABSOLUTE_SLEEPS = (["230", "0x1", "0x1"], ["115", "0x1", "0x1"])
"""clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, ...) on x86-64 and on arm64."""
"""The position and the flags are the first two lines of the file."""
_Line = tuple["str | None", str, int]


class Standing(Probe):
    """Follows the rank's thread from one moment of progress to the next."""

    name = "standing"

    def __init__(self, rank: Rank) -> None:
        self._rank, self._limits = rank, rank.limits
        self._moved_at = 0
        self._lines: set[_Line] = set()
        self._stays: dict[_Line, int] = {}
        self._stayed = (0, 0)
        self._sleep: tuple[int | None, int] = (None, 0)
        self._exception: Handled | None = None
        self._handler: Handling | None = None
        self._handled: tuple[object, ...] | None = None
        self._handled_at = self._grown_at = 0
        self._positions: dict[str, tuple[int, bool]] = {}
        self._looked_at = self._moves_at = self._moves_since = 0
        self._wakes: int | None = None

    def sample(self, tick: Tick) -> None:
        """Note where the thread stands, if it has stood for a while."""
        if tick.groups and not self._moved_at:
            # It has joined. The wait for its first work counts too.
            self._moved_at = tick.now
        if tick.moved_at > self._moved_at:
            length_ns = tick.moved_at - self._moved_at
            if not self._stays:
                # While it started, what it waits for may have begun.
                begun = self._rank.started_unix_ns - tick.unix_minus_mono
                length_ns = max(length_ns, min(FIRST_FACTOR * length_ns, tick.moved_at - begun))
            self._note_stay(length_ns)
            self._moved_at, self._stayed, self._handled = tick.moved_at, (0, 0), None
            self._exception = self._handler = None
            self._sleep, self._wakes = (None, 0), None
            self._lines.clear()
            self._positions.clear()
        seen = tick.seen
        since = self._moved_at or tick.line_since
        if seen is None or not since or tick.now - since <= self._limits.still_ns:
            return
        if seen.activity == OTHER:
            until = sleeps_until(self._rank.page.words[layout.LEAD_AT] or os.getpid())
            if until != self._sleep[0]:
                self._sleep = until, tick.now
            self._note_wake(tick.now)
        if not self._moved_at:
            # It has not joined: nothing waits for its work yet.
            self._look_at_files(tick.now)
            return
        line = (seen.function, seen.file, seen.line)
        if seen.activity == OTHER and len(self._lines) < LINES_MAX:
            self._lines.add(line)
        walk, lead = self._rank.frames.walk, self._rank.lead_id
        self._exception = walk.handled_exception(lead)
        # Python runs handlers on the main thread only.
        self._handler = (
            _handler_on(walk.stack(lead, STACK_MOST)) if lead == self._rank.main_id else None
        )
        # A loop that polls is at another of its lines in some looks.
        self._stayed = (self._stays.get(line, 0), self._stayed[0])
        if seen.activity == OTHER:
            self._look_at_files(tick.now)

    def fields(self, tick: Tick) -> Fields:
        """`stayed_s`, `sleeps_until_unix_ns`, `sleeps_since_unix_ns`, `writes_since_unix_ns`,
        `handling`, `in_handler` and `moves_since_unix_ns`."""
        until, found_at = self._sleep
        # The thread may wake between two reads. Two looks at one sleep find the same end.
        if found_at == tick.now:
            until = None
        lately = self._grown_at and tick.now - self._grown_at < self._limits.still_ns
        return partial(
            RankState,
            stayed_s=max(self._stayed) / 1e9 or None,
            sleeps_until_unix_ns=until + tick.unix_minus_mono if until else None,
            sleeps_since_unix_ns=found_at + tick.unix_minus_mono if until else None,
            writes_since_unix_ns=self._handled_at + tick.unix_minus_mono
            if self._handled is not None and lately
            else None,
            handling=_as_record(self._exception, self._rank.frames.is_user),
            in_handler=self._handler,
            moves_since_unix_ns=self._moves_since + tick.unix_minus_mono
            if self._moves_at and tick.now - self._moves_at < MOVES_NS
            else None,
        )

    def _note_stay(self, length_ns: int) -> None:
        for line in self._lines:
            length_ns = max(length_ns, self._stays.pop(line, 0))
            self._stays[line] = length_ns
            if len(self._stays) > STAYS_MAX:
                del self._stays[next(iter(self._stays))]

    def _note_wake(self, now: int) -> None:
        """Whether the thread has got what it waited for, and waits again: then another one works
        for it. A wait with a time limit may just have reached it."""
        wakes = wakes_of_wait(self._rank.page.words[layout.LEAD_AT] or os.getpid())
        if None not in (wakes, self._wakes) and wakes != self._wakes:
            self._note_move(now)
        self._wakes = wakes

    def _note_move(self, now: int) -> None:
        if now - self._moves_at >= MOVES_NS:
            self._moves_since = now
        self._moves_at = now

    def _look_at_files(self, now: int) -> None:
        """Whether a file is read or written, and whether one of its own has grown while it handles
        the same exception."""
        if self._exception is None and now - self._looked_at < LOOK_EVERY_NS:
            return
        self._looked_at = now
        before, self._positions = self._positions, _positions(self._rank.dump_file.descriptor)
        grown = [
            (at - before.get(number, (at, writes))[0], writes)
            for number, (at, writes) in self._positions.items()
        ]
        if any(more > LOGGED_BYTES * writes for more, writes in grown):
            self._note_move(now)
        handled = self._exception.arguments or None if self._exception is not None else None
        if handled is None or handled is not self._handled:
            self._handled, self._handled_at, self._grown_at = handled, now, 0
        elif any(more > 0 and writes for more, writes in grown):
            self._grown_at = now


def _as_record(exception: Handled | None, is_user: Callable[[str], bool]) -> Handling | None:
    """None for an exception by which programs poll."""
    if exception is None or exception.type in FLOW:
        return None
    number, *text = exception.arguments or ("",)
    words = f"[Errno {number}] {text[0]}" if isinstance(number, int) and text else str(number)
    users = [place for place in exception.places if is_user(place[0])]
    file, function, line = (users or exception.places or [("", "", 0)])[-1]
    return Handling(
        exception.type,
        redacted_start(words, EXCEPTION_CHARACTERS),
        Place(function, file, line or 0) if file else None,
        redacted_start(str(exception.path), EXCEPTION_CHARACTERS) if exception.path else None,
    )


def _handler_on(stack: list[tuple[WalkPlace, int]]) -> Handling | None:
    """The function on this stack, innermost first, that is the program's handler of a signal."""
    handlers: dict[tuple[str, str], signal.Signals] = {}
    for number in signal.Signals:
        handler: object = signal.getsignal(number)
        function = handler.__func__ if type(handler) is MethodType else handler
        if type(function) is FunctionType:
            handlers[function.__code__.co_filename, function.__code__.co_name] = number
    for (file, function_name, _, line), _ in stack if handlers else ():
        if (found := handlers.get((file, function_name))) is not None:
            return Handling(found.name, "", Place(function_name, file, line or 0))
    return None


def wakes_of_wait(thread: int) -> int | None:
    """How often that thread has gone to sleep, if it waits for another one now, without a time
    limit; else None.

    Source: /proc/self/task/THREAD/syscall, status. Check: `cat` both.
    """
    words = (read(f"self/task/{thread}", "syscall") or b"").split()
    waits = len(words) > 4 and words[0] in _FUTEX and words[4] == b"0x0"
    return switches(f"self/task/{thread}") if waits else None


def sleeps_until(thread: int) -> int | None:
    """The end of the sleep of a thread of this process, monotonic ns; None if it is in none that
    has one.

    Source: /proc/self/task/THREAD/syscall and the memory that it points to.
    """
    with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
        with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
            words = file.read().split()
        if words[:3] in _ABSOLUTE_SLEEPS:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(int(words[3], 16))
                seconds, rest = struct.unpack("=qq", memory.read(16))
                return int(seconds * 10**9 + rest)
    return None


def _positions(own: int | None) -> dict[str, tuple[int, bool]]:
    """Where the process is in each of its files and whether it may write there, by descriptor.

    Without standard input, output and error, which ranks share, and without ddtop's own file.
    """
    found = {}
    for number in (names_in("self", "fd") or ())[:FILES_MAX]:
        if number in ("0", "1", "2", str(own)):
            continue
        with contextlib.suppress(ValueError, IndexError):
            words = (read("self", f"fdinfo/{number}") or b"").split()
            found[number] = int(words[1]), bool(int(words[3], 8) & os.O_ACCMODE)
    return found
