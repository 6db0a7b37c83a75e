"""What is known of a rank that makes no progress: whether it has stood at its line before, until
when it sleeps, and whether it writes a file while it handles an exception.

Source: the looks of `rank_thread`, the arguments of the system call in which its thread sleeps, the
exception that it handles, and the positions in the files that the process has open for writing
(/proc/self/fdinfo, which asks no file system). Caveat: only lines outside of collectives, of the
model and of the DataLoader count. `time.sleep` has told the kernel its end since Python 3.11. A
file that is opened anew for each line is not seen to grow. Check: `cat /proc/PID/syscall`,
`grep -H pos /proc/PID/fdinfo/*`.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddtop.agent.probe import Probe, Tick
from ddtop.agent.stacks.frames import OTHER
from ddtop.wire.page import LEAD_AT

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

LINES_MAX, STAYS_MAX, FILES_MAX = 16, 64, 256
FIRST_FACTOR = 2
_ABSOLUTE_SLEEPS = (["230", "0x1", "0x1"], ["115", "0x1", "0x1"])
"""clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, ...) on x86-64 and on arm64."""
INFO_BYTES = 64
"""The position and the flags are the first two lines of the file."""
_Line = tuple["str | None", str, int]


def probe(rank: Rank) -> Standing:
    """The probe of `ddtop.agent.sources`."""
    return Standing(rank)


class Standing(Probe):
    """Follows the rank's thread from one moment of progress to the next."""

    name = "standing"

    def __init__(self, rank: Rank) -> None:
        self._rank, self._limits = rank, rank.limits
        self._moved_at = 0
        self._lines: set[_Line] = set()
        self._stays: dict[_Line, int] = {}
        self._stayed = (0, 0)
        self._until: tuple[int | None, int | None] = (None, None)
        self._handled: tuple[object, ...] | None = None
        self._handled_at = self._grown_at = 0
        self._positions: dict[str, int] = {}

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
            self._until = (None, None)
            self._lines.clear()
        seen = tick.seen
        still = self._moved_at and tick.now - self._moved_at > self._limits.still_ns
        if seen is None or not still:
            return
        line = (seen.function, seen.file, seen.line)
        if seen.activity == OTHER and len(self._lines) < LINES_MAX:
            self._lines.add(line)
        # A loop that polls is at another of its lines in some looks.
        self._stayed = (self._stays.get(line, 0), self._stayed[0])
        if seen.activity == OTHER:
            self._until = (
                _sleeps_until(self._rank.page.words[LEAD_AT] or os.getpid()),
                self._until[0],
            )
            self._look_at_files(tick.now)

    def fields(self, tick: Tick) -> Mapping[str, Any]:
        """`stayed_s`, `sleeps_until_unix_ns` and `writes_since_unix_ns`."""
        until, before = self._until
        lately = self._grown_at and tick.now - self._grown_at < self._limits.still_ns
        return {
            "stayed_s": max(self._stayed) / 1e9 or None,
            # The thread may wake between two reads. Two looks at one sleep find the same end.
            "sleeps_until_unix_ns": until + tick.unix_minus_mono
            if until and until == before
            else None,
            "writes_since_unix_ns": self._handled_at + tick.unix_minus_mono
            if self._handled is not None and lately
            else None,
        }

    def _note_stay(self, length_ns: int) -> None:
        for line in self._lines:
            length_ns = max(length_ns, self._stays.pop(line, 0))
            self._stays[line] = length_ns
            if len(self._stays) > STAYS_MAX:
                del self._stays[next(iter(self._stays))]

    def _look_at_files(self, now: int) -> None:
        """Whether it handles the same exception as before, and a file of its own has grown."""
        handled = self._rank.frames.walk.handled(self._rank.lead_id)
        if handled is None or handled is not self._handled:
            self._handled, self._handled_at, self._grown_at = handled, now, 0
            self._positions.clear()
        if handled is None:
            return
        before, self._positions = self._positions, _positions(self._rank.dump_file.descriptor)
        if any(at > before.get(number, at) for number, at in self._positions.items()):
            self._grown_at = now


def _sleeps_until(thread: int) -> int | None:
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


def _positions(own: int | None) -> dict[str, int]:
    """Where the process writes in each of its files, by descriptor.

    Without standard input, output and error, which ranks share, and without ddtop's own file.
    """
    found = {}
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd")[:FILES_MAX]:
            if number in ("0", "1", "2", str(own)):
                continue
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/self/fdinfo/{number}", "rb", buffering=0) as file,
            ):
                words = file.read(INFO_BYTES).split()
                if int(words[3], 8) & os.O_ACCMODE:
                    found[number] = int(words[1])
    return found
