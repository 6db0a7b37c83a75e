"""Lets the relay take stacks without the agent: a dump signal, and permission for py-spy.

On that signal, faulthandler writes the stacks to a file of this rank, even while C code holds the
GIL or the agent is stuck. It is a real-time signal that the program does not use, so no handler is
replaced; DDTOP_SIGNAL names another one, or none. A program that takes the signal later has it. The
relay reads the file. Before it sends the signal it checks that the process catches it and still has
the file open. A forked child inherits handler and descriptor, so a DataLoader worker can be asked
too.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ddtop import private
from ddtop.agent.plain import peek, text
from ddtop.agent.stacks.frames import FrameReader
from ddtop.procfs import signals_in, status
from ddtop.redaction import redacted_start
from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from ddtop.wire.truncation import fit_threads

_registered: tuple[int, int | None] | None = None
"""The signal that this process, or the one it was forked from, has given to faulthandler, and the
address of faulthandler's handler."""
OFFSET = 5
_IGNORE = int(signal.SIG_IGN)
_LIBC = ctypes.PyDLL(None)
"""PyDLL keeps the GIL, so no Python code runs between two calls that belong together."""
_ACTION = ctypes.c_void_p * 32
"""More than any libc's struct sigaction, of which the first field is the handler."""
_PR_SET_PTRACER = 0x59616D61
_YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


class DumpFile:
    """The file and the signal. Made before user code runs, or when the process becomes a rank.

    `off`: why there is none.
    """

    def __init__(self, folder: Path | None, name: str, wanted: str) -> None:
        global _registered
        self.path: Path | None = None
        self.descriptor: int | None = None
        self.signal: int | None = None
        self.off: str | None = None
        number, self.off = _number(wanted)
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            number, self.off = None, "without a GIL faulthandler could crash the program"
        if number is None:
            return
        if folder is None:
            self.off = "no folder for its file"
            return
        ours = _registered == (number, _action(number)[0])
        if not ours and (taken := _in_use(number)):
            self.off = taken
            return
        path = folder / name
        try:
            self.descriptor = private.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            if not ours:
                # At the end of the interpreter faulthandler restores the action that it found. The
                # default action would kill a process that gets the signal after that.
                _LIBC.sigaction(number, _ACTION(_IGNORE), None)
            # chain would drop SA_RESTART: the program's own system calls would see EINTR.
            faulthandler.register(number, file=self.descriptor, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError) as error:
            self.off = f"{type(error).__name__}: {error}"
            self._close()
            return
        self.signal, self.path = number, path
        _registered = number, _action(number)[0]

    def still_ours(self) -> bool:
        """Whether the signal is still ours and not the program's; cheap enough for every report.

        If it is the program's now, faulthandler forgets it: at the end of the interpreter it would
        restore the action that it found, over the program's. Handlers set from C count too.
        """
        if self.signal is None:
            return True
        theirs = _action(self.signal)
        if (self.signal, theirs[0]) == _registered:
            return True
        faulthandler.unregister(self.signal)
        _LIBC.sigaction(self.signal, theirs, None)
        self.off = f"the program has its own handler for signal {self.signal}"
        self.signal = None
        return False

    def remove(self) -> None:
        """Unlink the file; the descriptor stays open for as long as the handler may write to it."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def allow_tracer(pid: int) -> None:
    """Let process `pid` and its children trace this process where Yama allows only ancestors.

    Does nothing without Yama. Only the relay's pid may be passed.
    """
    if pid > 1 and _YAMA_SCOPE.exists():
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def _number(wanted: str) -> tuple[int | None, str | None]:
    """(signal, why none) of DDTOP_SIGNAL: "on", a number, a name, RTMIN+N, "off"; unset is on."""
    text = wanted.strip().upper().removeprefix("SIG")
    if text in ("", "ON"):
        return signal.SIGRTMIN + OFFSET, None
    if text in ("0", "OFF", "NONE"):
        return None, "switched off by DDTOP_SIGNAL"
    base, plus, more = text.partition("+")
    number = None
    if text.isascii() and text.isdigit():
        number = int(text)
    elif base == "RTMIN" and (not plus or (more.isascii() and more.isdigit())):
        number = signal.SIGRTMIN + int(more or 0)
    elif f"SIG{text}" in signal.Signals.__members__:
        number = int(signal.Signals[f"SIG{text}"])
    usable = {int(valid_signal) for valid_signal in signal.valid_signals()} - {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGCHLD,
    }
    why = f"DDTOP_SIGNAL={wanted[:40]} is not a signal that ddtop can use"
    return (number, None) if number in usable else (None, why)


def _action(number: int) -> ctypes.Array[ctypes.c_void_p]:
    """The struct sigaction of a signal. Check: `SigCgt` in /proc/PID/status shows whether it is
    caught, but not by whom.
    """
    found = _ACTION()
    _LIBC.sigaction(number, None, found)
    return found


def _in_use(number: int) -> str | None:
    """Why a signal is not free: handlers set from C show only in the process's own status."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return f"the program has its own handler for signal {number}"
    try:
        text = status("self")
        if any(signals_in(text, name) >> (number - 1) & 1 for name in ("SigCgt", "SigIgn")):
            return f"signal {number} is handled or ignored already"
    except ValueError:
        return "cannot see which signals are in use"
    return None


# -- All threads' stacks of this process, taken by the agent's thread
#
# Source: `ddtop.agent.stacks.walk`, one thread after the other. Each stack is of one moment, and
# the other threads may run between two of them. No local is read. Caveat: Python frames only.
# Check: `py-spy dump --pid PID`.


THREADS_MAX, FRAMES_MAX, DEPTH_MAX = 128, 64, 5_000
"""Threads and frames of each that are sent, and how many frames are counted. To read 5,000 frames
takes 2 ms, in which no other thread runs."""
TEXT_CHARACTERS = 300


def take(
    request: str,
    rank: int | None,
    pid: int,
    reader: FrameReader,
    automatic: bool,
    lead: int | None = None,
) -> Stacks:
    """The stacks now.

    `lead`: Python's number of the rank's thread, None for the main thread. `pause_ns` of the record
    is how long this took, and so the longest time that other threads waited for the GIL.
    """
    began = time.perf_counter_ns()
    # One call of C, without threading's lock, which another thread may hold.
    known = threading._active.copy()  # type: ignore[attr-defined]
    names = {
        ident: redacted_start(text(peek(thread, "_name")) or "", TEXT_CHARACTERS)
        for ident, thread in known.items()
    }
    idents = set(reader.walk.threads()) - {threading.get_ident()}
    main = lead if lead in idents else threading.main_thread().ident
    # The main thread first, so that it is not left out if there are too many threads.
    order = sorted(idents, key=lambda ident: (ident != main, ident))
    threads = tuple(
        _thread(ident, names.get(ident), ident == main, reader) for ident in order[:THREADS_MAX]
    )
    return Stacks(
        request=request,
        of_rank=rank,
        pid=pid,
        taken_unix_ns=time.time_ns(),
        method="agent",
        threads=fit_threads(threads),
        pause_ns=time.perf_counter_ns() - began,
        automatic=automatic,
    )


def _thread(ident: int, name: str | None, main: bool, reader: FrameReader) -> ThreadStack:
    stack = reader.walk.stack(ident, DEPTH_MAX)
    frames = tuple(
        StackFrame(
            qualname[:TEXT_CHARACTERS],
            file[-TEXT_CHARACTERS:],
            line or 0,
            reader.is_user(file),
        )
        for (file, _, qualname, line), _ in stack[:FRAMES_MAX]
    )
    return ThreadStack(frames, name, ident, main, len(stack) - len(frames))
