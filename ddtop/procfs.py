"""Reads facts about processes from /proc.

The agent reads about its workers, the relay about its ranks, and commands about any process. Where
something cannot be read, mostly because the process is gone or belongs to another user, a function
returns None or nothing. `task` is a process, or "PID/task/TID" for one thread; "self" is this one.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial

ROOT = "/proc"
FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The pid namespace of the host: the kernel numbers it the same everywhere (PROC_PID_INIT_INO)."""
DESCENDANTS_MAX = 256
COMMAND_LINES_MAX = 4
"""Between a rank and Hydra's proxy, or torchrun, are at most a shell and a wrapper or two."""
STAT_BYTES_MAX = 2048
"""A line has about 350 bytes. The 50 numbers and the name have at most 1,200."""
STAT_FIELDS_MIN = 22
_STACK_START = 25
"""Field 28 of the line, of those from the third on."""

SOURCE_BYTES_MAX = 1 << 20
"""A larger source file is generated, and its lines have no meaning for a reader."""
CLOCK_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""The unit of the times in /proc/PID/stat."""


def read(task: int | str, name: str) -> bytes | None:
    """What /proc/TASK/NAME holds now."""
    # Unbuffered reads of bytes take half the CPU of Path.read_text.
    with contextlib.suppress(OSError), open(f"{ROOT}/{task}/{name}", "rb", buffering=0) as file:
        return file.readall()
    return None


def link(task: int | str, name: str) -> str | None:
    """Where the link /proc/TASK/NAME leads: `exe`, `cwd`, `ns/mnt`, `fd/3`.

    It is read without access to what it leads to.
    """
    try:
        return os.readlink(f"{ROOT}/{task}/{name}")
    except OSError:
        return None


def names_in(task: int | str, name: str) -> list[str] | None:
    """The names in the folder /proc/TASK/NAME: `task`, `fd`."""
    try:
        return os.listdir(f"{ROOT}/{task}/{name}")
    except OSError:
        return None


def in_own_pid_namespace() -> bool:
    """Whether this process counts other pids than its host, as in a container."""
    return link("self", "ns/pid") not in (None, FIRST_PID_NAMESPACE)


def tasks(pid: int | str) -> list[str]:
    """All threads of the process, each as "PID/task/TID"; none if it is gone."""
    return [f"{pid}/task/{tid}" for tid in names_in(pid, "task") or ()]


def owner_of(pid: int) -> int | None:
    """The user that the process belongs to. Check: `ps -o uid= -p PID`."""
    try:
        return os.stat(f"{ROOT}/{pid}").st_uid
    except OSError:
        return None


def command_line(pid: int | str) -> tuple[str, ...] | None:
    """Its words; none of a zombie or of a part of the kernel. Check: `ps -o args= -p PID`."""
    data = read(pid, "cmdline")
    if data is None:
        return None
    # A title that `setproctitle` has set is one word, and zeros up to the end of the old line.
    text = data.rstrip(b"\0").decode(errors="replace")
    return tuple(text.split("\0")) if text else ()


def environment_of(pid: int) -> dict[str, str] | None:
    """The variables that it was started with; what it set itself later is not among them."""
    data = read(pid, "environ")
    if data is None:
        return None
    entries = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in entries if name}


def program_lines(pid: int, file: str) -> list[str] | None:
    """The lines of a source file as that process sees it; None where it was changed since, and of
    what is no file: to open a named pipe would be noticed at its other end. A file server that does
    not answer holds it up."""
    path = f"{ROOT}/{pid}/root/{os.path.join(link(pid, 'cwd') or '/', file).lstrip('/')}"
    try:
        known, started = os.stat(path), os.stat(f"{ROOT}/{pid}").st_mtime
        is_file = stat.S_ISREG(known.st_mode) and known.st_size <= SOURCE_BYTES_MAX
        if not is_file or known.st_mtime > started:
            return None
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read().splitlines()
    except OSError:
        return None


def is_python(pid: int) -> bool:
    """Whether a Python runs in it. Check: `readlink /proc/PID/exe`."""
    program = link(pid, "exe")
    if program is None:
        # The link of another user's process may not be read.
        program = (command_line(pid) or ("",))[0]
    return "python" in os.path.basename(program)


def status(task: int | str) -> str:
    """The text for `status_of`; empty where it cannot be read."""
    return (read(task, "status") or b"").decode("ascii", "replace")


def status_of(text: str, name: str) -> str | None:
    """What the line `name` of a status says. Check: `grep NAME: /proc/PID/status`."""
    _, found, rest = text.partition(f"\n{name}:")
    return rest.partition("\n")[0].strip() if found else None


def signals_in(text: str, name: str) -> int:
    """The mask of signals in the line `name` of a status, such as `SigCgt`.

    Raises:
        ValueError: there is none.
    """
    return int(status_of(text, name) or "", 16)


def io_bytes(pid: int) -> int | None:
    """Bytes that the process has read and written, through calls and mapped files; only grows.

    Source: /proc/PID/io.
    """
    try:
        lines = (read(pid, "io") or b"").split()
        # rchar and wchar, read_bytes and write_bytes: only these count pages of a mapped file.
        return sum(int(lines[at]) for at in (1, 3, 9, 11))
    except (ValueError, IndexError):
        return None


def read_stat(pid: int | str) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ... Check: proc_pid_stat(5).

    `pid` is a process, or "PID/task/TID" for a thread.

    Raises:
        FileNotFoundError, ProcessLookupError: there is no such process.
        OSError: it cannot be read now, as with no descriptor left.
        ValueError: the line is cut.
    """
    with open(f"{ROOT}/{pid}/stat", "rb", buffering=0) as file:
        data = file.read(STAT_BYTES_MAX)
    # The name of the program is in parentheses, and may have blanks and parentheses itself.
    fields = data[data.rindex(b")") + 2 :].decode("ascii", "replace").split()
    if len(fields) < STAT_FIELDS_MIN:
        raise ValueError(f"/proc/{pid}/stat has {len(fields)} fields")
    return fields


def stat_fields(pid: int | str) -> list[str] | None:
    """The result of `read_stat`; None if it fails, mostly because the process is gone."""
    try:
        return read_stat(pid)
    except (OSError, ValueError):
        return None


def runs(pid: int | str) -> bool:
    """Whether the main thread of the process runs or could run now. Check: `ps -o stat= -p PID`."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] == "R"


def stack_start(fields: Sequence[str]) -> int:
    """The address at which the stack of a process begins, of what `stat_fields` returns.

    exec gives a process a new stack at a random address. 0 if the kernel hides it, as for another
    user's process. Check: field 28 of /proc/PID/stat.
    """
    return int(fields[_STACK_START]) if len(fields) > _STACK_START else 0


def command_name(pid: int | str) -> str | None:
    """The name of the program that the process runs. Check: `ps -o comm -p PID`."""
    return (read(pid, "comm") or b"").decode(errors="replace").strip() or None


SAMPLERS = ("py-spy",)
"""Names of programs that stop a process for milliseconds to read its stacks."""


def own_letter(pid: int, letter: str) -> str:
    """The state letter, but `S` in place of `t` while py-spy holds the process: no debugger does.

    The state right before is not known; CPU time and I/O show whether the process works.
    Check: `grep TracerPid /proc/PID/status`.
    """
    if letter != "t":
        return letter
    tracer = status_of(status(pid), "TracerPid")
    return "S" if tracer and command_name(tracer) in SAMPLERS else letter


def parent_of(pid: int) -> int | None:
    """Field 4 of /proc/PID/stat; None if there is no such process."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields is not None else None


def parents(pid: int, at_most: int) -> list[int]:
    """Its parent, the parent of that, and so on, at most so many; without pid 1."""
    found: list[int] = []
    while len(found) < at_most and (above := parent_of(found[-1] if found else pid) or 0) > 1:
        found.append(above)
    return found


def command_lines(pid: int) -> Callable[[], Iterator[Sequence[str]]]:
    """A function that reads the command lines of `pid` and of the processes above it.

    They contain the options of the launcher.
    """
    return partial(_command_lines, pid)


def _command_lines(pid: int) -> Iterator[Sequence[str]]:
    """They end at the first process that cannot be read."""
    for _ in range(COMMAND_LINES_MAX):
        if pid < 1 or (words := command_line(pid)) is None:
            return
        yield words
        pid = parent_of(pid) or 0


def wchan(pid: int | str) -> str | None:
    """The function of the kernel in which the main thread sleeps; with "PID/task/TID" that thread.

    None if it runs, or where the kernel does not say. Source: /proc/PID/wchan.
    """
    text = (read(pid, "wchan") or b"").decode(errors="replace")
    return text if text not in ("", "0") else None


def switches(task: int | str) -> int | None:
    """Voluntary context switches of the main thread, or of the thread; only grows.

    Check: `grep ^vol /proc/PID/task/TID/status`.
    """
    text = read(task, "status") or b""
    try:
        return int(text[text.rindex(b"\nvoluntary_ctxt_switches:") + 25 :].split(None, 1)[0])
    except (ValueError, IndexError):
        return None


def scheduled_ns(task: int | str) -> tuple[int | None, int | None]:
    """(ran, ready but without a CPU) of the main thread, or of the thread; ns, only grow.

    Caveat: a thread without a CPU waits in state R, and this counts the wait only once it is over.
    Source: /proc/PID/task/TID/schedstat.
    """
    try:
        ran, delay, _ = (read(task, "schedstat") or b"").split()
        return int(ran), int(delay)
    except ValueError:
        return None, None


def children(pid: int) -> tuple[int, ...]:
    """Its children, of all its threads; none if it is gone.

    Check: `cat /proc/PID/task/*/children`.
    """
    found: list[int] = []
    for task in tasks(pid):
        # A thread may end before all others have been read.
        found += map(int, (read(task, "children") or b"").split())
    return tuple(found)


def descendants(pid: int, at_most: int = DESCENDANTS_MAX) -> tuple[int, ...]:
    """Its children and their descendants, at most so many. Check: `pstree -p PID`."""
    found: list[int] = []
    open_pids = [pid]
    while open_pids and len(found) < at_most:
        theirs = children(open_pids.pop())
        found += theirs
        open_pids += theirs
    return tuple(found[:at_most])
