"""Starts the relay without any effect on the rank that starts it.

The problem: the program's own `os.wait()` finds an ordinary child, the end of a child raises
SIGCHLD, and a fork in a process with threads runs Python in a copy whose locks may be held.

What does not work: subprocess (SIGCHLD, and the parent must reap it), and a double fork with
`os.fork` (the same, and atfork handlers of every library run).

What we do: `clone` with exit signal 0 makes a child that plain `wait` calls do not see and that
ends without SIGCHLD. The child clones once more, the grandchild executes a fresh interpreter, and
the parent reaps the child with __WCLONE. Between clone and exec there are only calls of C functions
with arguments that were made before.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import sys
import time
from pathlib import Path

from ddtop import private, start_python

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_CLOSE_RANGE = 436  # the same on all architectures, Linux 5.9
_WCLONE = -0x80000000  # __WCLONE as the signed int that waitpid takes
_DROPPED = (
    "LD_PRELOAD",
    "DDTOP",
    "DDTOP_JOB",
    "DDTOP_CLAIM",
    "DDTOP_TREE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONDEVMODE",
    "PYTHONWARNINGS",
    "PYTHONFAULTHANDLER",
)
_DROPPED_PREFIXES = ("OMP_", "KMP_", "GOMP_", "TORCHELASTIC_", "TORCH_", "NCCL_")
LAUNCH_TRIES, LAUNCH_S = 3, 0.25
STARTING_S, STARTING_AT_EXIT_S = 5.0, 1.0
"""A relay that was started less than this ago may still be starting, so no second one is started.
At the end of a rank only the other ranks may have started one just now."""


def start_relay(job: str, run: str, socket: Path, starting_s: float = STARTING_S) -> bool:
    """Start a relay for this run unless one holds the lock.

    Returns False if none was needed or none could be started. Many agents call this at the same
    time; the age of the lock file lets only one of them try. A relay that does not get the lock
    ends at once, so a race only costs one process start.

    Raises:
        OSError: the lock file cannot be written, or is not ours.
    """
    if sys.platform != "linux" or not sys.executable:
        return False
    lock = socket.with_suffix(".lock")
    descriptor = private.open_file(lock, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        # Under the lock: the file's text is the time of the last attempt.
        last = os.pread(descriptor, 32, 0).decode("ascii", "replace")
        if last.isdigit() and 0 <= time.time_ns() - int(last) < starting_s * 1e9:
            return False
        os.pwrite(descriptor, str(time.time_ns()).encode(), 0)
    finally:
        # Unlock, do not only close: a child that is forked at this instant has the descriptor too,
        # and would hold the lock for its life.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    arguments = [
        sys.executable,
        "-m",
        "ddtop.relay",
        "--job",
        job,
        "--run",
        run,
        "--launcher",
        str(os.getppid()),
    ]
    _launch(arguments, _environment())
    return True


def _environment() -> dict[str, str]:
    # The program may remove a variable meanwhile.
    kept = {
        name: value
        for name in list(os.environ)
        if name not in _DROPPED
        and not name.startswith(_DROPPED_PREFIXES)
        and (value := os.environ.get(name)) is not None
    }
    # The folder of this ddtop: it may be on the path only through an editable install of another
    # prefix.
    home = str(Path(__file__).resolve().parents[2])
    return start_python.last_on_the_path(kept, home)


def _launch(arguments: list[str], environment: dict[str, str]) -> None:
    number = _SYS_CLONE.get(platform.machine())
    if number is None:
        import subprocess

        # On an architecture with unknown system call numbers, a shell is the intermediate child.
        shell = ["/bin/sh", "-c", '"$@" >/dev/null 2>&1 </dev/null &', "sh", *arguments]
        subprocess.run(shell, env=environment, cwd="/", check=False)
        return
    # PyDLL keeps the GIL: no other thread runs Python between clone and exec, neither in the parent
    # nor in the copy.
    libc = ctypes.PyDLL(None, use_errno=True)
    program = os.fsencode(arguments[0])
    argv = (ctypes.c_char_p * (len(arguments) + 1))(
        *[os.fsencode(word) for word in arguments], None
    )
    pairs = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    envp = (ctypes.c_char_p * (len(pairs) + 1))(*pairs, None)
    zero, c_long, top, root = (
        ctypes.c_long(0),
        ctypes.c_long(int(signal.SIGCHLD)),
        ctypes.c_long(0xFFFFFFFF),
        b"/",
    )
    clone, close_range, three = (
        ctypes.c_long(number),
        ctypes.c_long(_SYS_CLOSE_RANGE),
        ctypes.c_long(3),
    )
    syscall, execve, leave, chdir, setsid = (
        libc.syscall,
        libc.execve,
        libc._exit,
        libc.chdir,
        libc.setsid,
    )
    syscall.restype = ctypes.c_long
    for _ in range(LAUNCH_TRIES):
        child = syscall(clone, zero, zero, zero, zero, zero)
        if child == 0:
            if syscall(clone, c_long, zero, zero, zero, zero) == 0:
                setsid()
                chdir(root)
                syscall(close_range, three, top, zero)
                execve(program, argv, envp)
                leave(127)
            leave(0)
        if child < 0 or _has_left(child):
            return


def _has_left(child: int) -> bool:
    """Whether the intermediate child did its work; a child that is blocked is killed.

    If another thread asked for the GIL while the process was copied, the copy gives the GIL, right
    after its first call, to a thread that it does not have. Then it has no child of its own yet.
    """
    until = time.monotonic() + LAUNCH_S
    while os.waitpid(child, _WCLONE | os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, _WCLONE)
            return False
        time.sleep(0.002)
    return True
