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
import signal
from pathlib import Path

from ddtop import private, registry
from ddtop.policy import Policy
from ddtop.procfs import wchan
from ddtop.relay.processes import sample
from ddtop.wire.page import PageView
from ddtop.wire.records import Hello

DUMP_BYTES_MAX = 1 << 20


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


def why_not(hello: Hello, pid: int, start_ticks: int, policy: Policy) -> str | None:
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
    if pid == hello.pid and (runs := _python_may_run(page, policy)) is not None:
        return runs
    masks = _masks(pid)
    if masks is None or registry.start_ticks(pid) != start_ticks:
        return "gone"
    # While it waits for signals, the kernel shows those as not blocked.
    if "sigtimedwait" in (wchan(pid) or ""):
        return "waits for signals itself"
    return _why_not_handled(masks, number) or _closed(pid, hello.dump_fd, path)


def _python_may_run(page: PageView, policy: Policy) -> str | None:
    if page.exiting_mono_ns:
        return "in interpreter exit"
    if not page.heartbeat_mono_ns:
        return "its agent has ended: Python may run"
    after_ns = page.step_mono_ns - page.heartbeat_mono_ns
    stepped = after_ns > policy.agent_stuck_step_s * 1e9
    return "its agent is stuck while Python runs" if stepped else None


def _why_not_handled(masks: dict[str, int], number: int) -> str | None:
    bit = 1 << (number - 1)
    if not masks["SigCgt"] & bit:
        return f"does not catch signal {number}"
    if masks["SigBlk"] & bit:
        return f"blocks signal {number}"
    return "an earlier dump signal is still pending" if masks["ShdPnd"] & bit else None


def _closed(pid: int, descriptor: int, path: Path) -> str | None:
    try:
        theirs = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        theirs = ""
    return None if theirs == str(path) else "has closed its dump file"


def _masks(pid: int) -> dict[str, int] | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        found = {
            name: int(text, 16)
            for name, _, text in (line.partition(":") for line in lines)
            if name in _MASKS
        }
    except (OSError, ValueError):
        return None
    return found if len(found) == len(_MASKS) else None


_MASKS = ("SigCgt", "SigBlk", "ShdPnd")


def send(hello: Hello, pidfd: int | None) -> str | None:
    """Empty the file and send the signal; why not, if that failed. Call `why_not` right before."""
    if pidfd is None:
        return f"signal {hello.dump_signal}: no pidfd here, it could reach another process"
    path = dump_path(hello)
    assert path is not None
    assert hello.dump_signal is not None
    try:
        descriptor = private.opened(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        signal.pidfd_send_signal(pidfd, hello.dump_signal)
    except OSError as error:
        return f"signal {hello.dump_signal}: {error.strerror}"
    return None


def written(hello: Hello) -> bytes:
    """What is in the file now; nothing if it cannot be read."""
    path = dump_path(hello)
    if path is None:
        return b""
    try:
        return private.read(path, DUMP_BYTES_MAX)
    except OSError:
        return b""
