"""The dump signal: whether it may be sent to a process, sending it, and what faulthandler wrote.

faulthandler walks the frames of all threads without the GIL. While another thread runs Python that
can crash the process: one run in two did, with a second thread in a loop. So the signal is only for
processes in which no Python can run: the agent is silent, and the threads show that C code holds
the GIL (`gil_wait`), so no frame changes. A forked child is asked only while all its threads sleep.

The default action of the signal is to kill. So five things are checked right before: it is the same
process; it catches the signal; it does not wait for signals itself (`sigwait` would return ours);
the file of faulthandler is still open under the number that the rank reported (a program that
closes descriptors would otherwise get our text in a file of its own); and the interpreter is not
exiting, because it removes the handler then.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from ddtop import private, registry
from ddtop.policy import Policy
from ddtop.procfs import (
    link,
    names_in,
    scheduled_ns,
    signals_in,
    stat_fields,
    status,
    switches,
    wchan,
)
from ddtop.relay.processes import sample
from ddtop.wire.page import PageView
from ddtop.wire.records import Hello, StackFrame, ThreadStack
from ddtop.wire.truncation import fit_threads

DUMP_BYTES_MAX = 1 << 20
AGENT_STUCK_STEP_S = 1.5
"""A step so long after the agent's last tick: Python runs, so the agent waits for no GIL. Ticks are
up to 1.2 s apart."""


def dump_path(hello: Hello) -> Path | None:
    """The rank's dump file, if its name is one that an agent of this user makes."""
    if not hello.dump_path:
        return None
    path = Path(hello.dump_path)
    fits = (
        path.name == f"{hello.pid}-{hello.start_ticks}.stacks"
        and path.parent.name == registry.pages_folder()
    )
    return path if fits and str(path.parent.parent) in ("/dev/shm", "/tmp") else None


def why_not(hello: Hello, pid: int, start_ticks: int) -> str | None:
    """Why the signal must not go to this process (the rank, or a child forked from it).

    None if it may.

    Check: `grep Sig /proc/PID/status`, `ls -l /proc/PID/fd`.
    """
    number, path = hello.dump_signal, dump_path(hello)
    if number is None or path is None or hello.dump_fd is None:
        return f"no dump signal: {hello.dump_off or 'not set up'}"
    page = sample.page(hello)
    if page is None:
        return "its state page cannot be read"
    if pid == hello.pid and (runs := _python_may_run(page)) is not None:
        return runs
    text = status(pid)
    if not text or registry.start_ticks(pid) != start_ticks:
        return "gone"
    # While it waits for signals, the kernel shows those as not blocked.
    if "sigtimedwait" in (wchan(pid) or ""):
        return "waits for signals itself"
    return _why_not_handled(text, number) or _why_closed(pid, hello.dump_fd, path)


def _python_may_run(page: PageView) -> str | None:
    if page.exiting_mono_ns:
        return "in interpreter exit"
    if not page.heartbeat_mono_ns:
        return "its agent has ended: Python may run"
    after_ns = page.step_mono_ns - page.heartbeat_mono_ns
    stepped = after_ns > AGENT_STUCK_STEP_S * 1e9
    return "its agent is stuck while Python runs" if stepped else None


def _why_not_handled(status: str, number: int) -> str | None:
    bit = 1 << (number - 1)
    if not signals_in(status, "SigCgt") & bit:
        return f"does not catch signal {number}"
    if signals_in(status, "SigBlk") & bit:
        return f"blocks signal {number}"
    pending = signals_in(status, "ShdPnd") & bit
    return "an earlier dump signal is still pending" if pending else None


def _why_closed(pid: int, descriptor: int, path: Path) -> str | None:
    return None if link(pid, f"fd/{descriptor}") == str(path) else "has closed its dump file"


def send(hello: Hello, pidfd: int | None) -> str | None:
    """Empty the file and send the signal; why not, if that failed. Call `why_not` right before."""
    if pidfd is None:
        return f"signal {hello.dump_signal}: no pidfd here, so it could reach another process"
    path = dump_path(hello)
    assert path is not None
    assert hello.dump_signal is not None
    try:
        descriptor = private.open_file(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        signal.pidfd_send_signal(pidfd, hello.dump_signal)
    except OSError as error:
        return f"signal {hello.dump_signal}: {error.strerror}"
    return None


def read_written(hello: Hello) -> bytes:
    """What is in the file now; nothing if it cannot be read."""
    path = dump_path(hello)
    if path is None:
        return b""
    try:
        return private.read(path, DUMP_BYTES_MAX)
    except OSError:
        return b""


# -- Whether C code holds the GIL of a process, from two looks at its threads
#
# A silent agent is not proof. On a crowded host, the agent and the thread that runs Python may get
# no CPU for seconds, and a relay without CPU has not read what was sent. The proof has two parts.
# First, a thread that waits for the GIL wakes every 5 ms to ask for it again. Second, a thread that
# runs Python releases the GIL on request, as soon as it has a CPU.


THREADS_MAX = 512
"""The limit of threads: a look at this many takes 20 ms."""


@dataclass(frozen=True, slots=True)
class ThreadRun:
    """One thread. `letter`: its state; `ran_ns`: CPU time; `wakes`: voluntary switches."""

    letter: str
    ran_ns: int
    wakes: int


def threads_of(pid: int) -> dict[int, ThreadRun] | None:
    """All threads of a process; None where they cannot be read, or are too many.

    Source: /proc/PID/task/TID/stat, schedstat and status. Caveat: a thread without a CPU waits in
    state R, and schedstat counts that wait only once it is over.
    """
    found: dict[int, ThreadRun] = {}
    names = names_in(pid, "task")
    if names is None or len(names) > THREADS_MAX:
        return None
    for name in names:
        task = f"{pid}/task/{name}"
        fields, wakes, (ran_ns, _) = stat_fields(task), switches(task), scheduled_ns(task)
        if fields is None or wakes is None or ran_ns is None:
            return None
        found[int(name)] = ThreadRun(fields[0], ran_ns, wakes)
    return found


def python_may_run(
    before: dict[int, ThreadRun] | None,
    now: dict[int, ThreadRun] | None,
    seconds: float,
    policy: Policy,
) -> str | None:
    """Why Python may run in this process, from two looks that lie so far apart.

    None: C code holds the GIL.
    """
    if before is None or now is None:
        return "its threads cannot be read: Python may run"
    if before.keys() != now.keys():
        return "its threads come and go: Python may run"
    waits = {
        number
        for number, thread in now.items()
        if thread.wakes - before[number].wakes >= policy.gil_wakes_per_s * seconds
    }
    if not waits:
        return "no thread of it waits for the GIL: Python may run"
    for number in now.keys() - waits:
        ran_ns = now[number].ran_ns - before[number].ran_ns
        if now[number].letter == "R" and ran_ns < policy.busy_ratio * seconds * 1e9:
            return "a thread of it lacks CPU time: Python may run"
    return None


def is_asleep(pid: int) -> bool:
    """Whether all of its threads sleep; False where that cannot be read."""
    threads = threads_of(pid)
    return threads is not None and all(thread.letter in "SD" for thread in threads.values())


# -- Parses the text that faulthandler writes. Pure: text in, records out
#
# The writer is a signal handler: it writes a few bytes at a time, without a head, a length or an
# end, every thread newest first, so the main thread comes last. A text that is read while it is
# written may end anywhere. With more than a hundred threads, the main thread is never written. Seen
# in CPython 3.10 to 3.14:
#
#     Current thread 0x00007f7f (most recent call first):         the thread on which the signal's
#         handler ran
#     Thread 0x00007f7e [pt_data_worker] (most recent call first):    the name from 3.14 on
#       Garbage-collecting
#       File "/a/b\xe9.py", line 12 in load
#       <no Python frame>
#       ...                                                        more than 100 frames
#           (indented), or threads (not indented)
#
# From 3.13 on, a stack of more than 100 frames ends after the hundredth without a mark. `<freed
# thread state>`, not indented, ends a text of 3.14: the list of threads was lost.


WRITTEN_THREADS_MAX = 256
"""faulthandler stops at 100; a file may hold something else."""
FRAMES_MAX = 128
"""Frames kept of a thread."""
WRITTEN_MAX = 100
"""Frames that faulthandler writes of a thread."""
NAME_MAX = 1000
"""Characters of a path or a function; faulthandler cuts at 500 of them, before escapes."""
COLLECTING = "Garbage-collecting"
"""Function of the frame that stands for faulthandler's line of that name."""

_HEAD = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.{0,64})\])? \(most recent call first\):"
)
_LONE_HEAD = "Stack (most recent call first):"
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
_HEAD_END = b" (most recent call first):\n"
_LOST_THREADS = ("...", "<freed thread state>")
_OUTERMOST = ("<module>", "_run_module_as_main")
_THREAD_BEGINS = "_bootstrap"
"""Outermost frame of a `threading.Thread`."""


def parse(text: str | bytes) -> tuple[ThreadStack, ...]:
    """Every thread in the text, in its order.

    Other lines are ignored.

    A last line without a newline is not read, because it may be half a name. `main` marks the
    thread that is listed last, unless more threads were to follow. `omitted` is a lower bound:
    faulthandler does not count what it leaves out.
    """
    threads: list[_Thread] = []
    cut = not (text.endswith("\n") if isinstance(text, str) else text.endswith(b"\n"))
    for line in _lines(text):
        if line in _LOST_THREADS:
            cut = True
            continue
        found = _head(line)
        if found is not None:
            threads.append(found)
        elif threads:
            threads[-1].take(line)
    if not threads:
        return ()
    last = threads[-1].stack(main=not cut and not threads[-1].started_by_another)
    return fit_threads(
        (
            *(
                thread.stack(main=False)
                for thread in threads[: min(len(threads), WRITTEN_THREADS_MAX) - 1]
            ),
            last,
        )
    )


def is_complete(data: bytes) -> bool:
    """Whether the main thread is complete: the text ends after a frame that can be the outermost
    one.

    This is a sign, not a proof. Between a module's frame and those of its importer a text looks
    complete for a few microseconds, so a caller reads again and accepts a text that has not grown.
    """
    if not data.endswith(b"\n"):
        return False
    last_thread = data[data.rfind(_HEAD_END) + len(_HEAD_END) :] if _HEAD_END in data else b""
    lines = _lines(last_thread)
    last = lines[-1] if lines else ""
    if (
        last in _LOST_THREADS
        or last == "  ..."
        or sum(line.startswith("  File ") for line in lines) >= WRITTEN_MAX
    ):
        return True
    # A thread without a frame that is not the last one is followed by an empty line at once, as all
    # threads are.
    if last.startswith("  <") and last.endswith(">"):
        return True
    frame = _frame(last)
    return frame is not None and frame.function in _OUTERMOST


class _Thread:
    """One thread while its lines are read."""

    def __init__(self, thread_id: int | None, name: str | None) -> None:
        self._thread_id = thread_id
        self._name = name
        self._history: list[StackFrame] = []
        self._omitted = 0
        self._cut = False

    @property
    def started_by_another(self) -> bool:
        """Whether it cannot be the main thread."""
        return bool(self._history) and self._history[-1].function == _THREAD_BEGINS

    def take(self, line: str) -> None:
        frame = StackFrame(COLLECTING, "", 0) if line == f"  {COLLECTING}" else _frame(line)
        if frame is None:
            self._cut |= line == "  ..."
        elif len(self._history) < FRAMES_MAX:
            self._history.append(frame)
        else:
            self._omitted += 1

    def stack(self, main: bool) -> ThreadStack:
        frames = tuple(self._history)
        full = len(frames) == WRITTEN_MAX and frames[-1].function not in (
            *_OUTERMOST,
            _THREAD_BEGINS,
        )
        return ThreadStack(
            frames, self._name, self._thread_id, main, self._omitted + (self._cut or full)
        )


def _lines(text: str | bytes) -> list[str]:
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    # Not splitlines: it also splits at characters that a thread's name may hold.
    return raw.decode("utf-8", "replace").split("\n")[:-1]


def _head(line: str) -> _Thread | None:
    if line == _LONE_HEAD:
        return _Thread(None, None)
    match = _HEAD.fullmatch(line)
    return _Thread(int(match[1], 16), match[2] or None) if match else None


def _frame(line: str) -> StackFrame | None:
    """`  File "PATH", line N in NAME`; `???` stands for what is not known."""
    if not line.startswith("  File "):
        return None
    at = line.rfind(", line ")
    number, separator, function = line[at + 7 :].partition(" in ")
    path = line[7:at]
    if at < 7 or not separator or not (number == "???" or (number.isascii() and number.isdigit())):
        return None
    if path.startswith('"') and path.endswith('"') and len(path) >= 2:
        path = path[1:-1]
    elif path != "???":
        return None
    return StackFrame(
        _unescape(function),
        _unescape(path),
        int(number) if len(number) <= 9 and number != "???" else 0,
    )


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text)[:NAME_MAX]


def _character(match: re.Match[str]) -> str:
    """The character behind an escape.

    A character that faulthandler does not escape is part of the name.

    Half a surrogate pair (a byte that is not UTF-8) stays escaped, because it could not be sent.
    """
    code = int(match[1] or match[2] or match[3], 16)
    if 32 <= code < 127 or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        return match[0]
    return chr(code)
