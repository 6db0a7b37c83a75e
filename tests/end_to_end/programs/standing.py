"""Ranks without torch: rank 1 stands in the way that is named, all others wait in a loop. Says
`ready` when it is there.
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
    # A read is taken up again after a signal; libc's sleep() would end early.
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
    """Stands in its destructor, when the interpreter takes the modules down."""

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
    """Handlers of its own, and faulthandler on a signal of its own: each writes one line for
    each signal it gets.
    """
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=False)
    ready()
    while True:
        time.sleep(0.05)


if os.environ["RANK"] == "1":
    # Not before everybody has been seen: what freezes in its first moments has not yet said who it
    # is.
    while not Path("go").exists():
        time.sleep(0.02)
    globals()[CASE]()
else:
    while True:
        time.sleep(0.05)
