"""Ranks without torch: rank 1 gets stuck in the named way, and all others wait in a loop. Prints
`ready` when it is stuck.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

CASE = sys.argv[1]


def ready() -> None:
    print("ready", flush=True)


def gil() -> None:
    into, _ = os.pipe()
    ready()
    # The kernel restarts a read after a signal; libc's sleep() would end early.
    ctypes.PyDLL(None).read(into, ctypes.create_string_buffer(1), 1)


def child() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as other:
        ready()
        other.wait()


def sleeps() -> None:
    ready()
    time.sleep(3600)


class Blocks:
    """Gets stuck in its destructor, when the interpreter removes the modules."""

    def __del__(self, read=os.read, pipe=os.pipe, write=os.write) -> None:
        write(1, b"ready\n")
        read(pipe()[0], 1)


def leaves() -> None:
    sys.modules["ddtop_test_keeps"] = Blocks()  # type: ignore[assignment]


def lingers() -> None:
    """An uncaught exception, and a thread that keeps the process alive."""
    threading.Thread(target=time.sleep, args=(3600,), name="prefetch").start()
    ready()
    raise ValueError("loss is nan")


def handles() -> None:
    """Handlers of its own, and faulthandler on a signal of its own. Each writes one line for each
    signal that it gets.
    """
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=False)
    ready()
    while True:
        time.sleep(0.05)


if os.environ["RANK"] == "1":
    # All ranks must have been seen first: a process that freezes at once has not yet reported its
    # rank.
    while not Path("go").exists():
        time.sleep(0.02)
    globals()[CASE]()
else:
    while True:
        time.sleep(0.05)
