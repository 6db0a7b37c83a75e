"""A loop of all_reduce in which ranks 1 and 2 wait elsewhere from time to time, each until it is
released.

The folder of the first argument has the named pipes that release them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(sys.argv[1])
BETWEEN = 20


def in_child() -> None:
    """Wait until the child is ended."""
    subprocess.Popen(["sleep", "3600"]).wait()


def in_spawn() -> None:
    """Wait until the child has its standard input. vfork keeps the parent in state D until then."""
    library = ctypes.CDLL(None)
    actions, pid = ctypes.create_string_buffer(1024), ctypes.c_int()
    library.posix_spawn_file_actions_init(actions)
    library.posix_spawn_file_actions_addopen(
        actions, 0, str(HERE / "spawn").encode(), os.O_RDONLY, 0
    )
    words = (ctypes.c_char_p * 2)(b"true", None)
    library.posix_spawn(
        ctypes.byref(pid), b"/bin/true", actions, None, words, (ctypes.c_char_p * 1)(None)
    )


def in_pipe() -> None:
    """Wait until the pipe is written to."""
    descriptor = os.open(HERE / "pipe", os.O_RDWR)
    os.read(descriptor, 1)


def in_lock() -> None:
    """Wait until another thread, which reads a named pipe, releases the lock."""
    lock = threading.Lock()
    lock.acquire()

    def release() -> None:
        with open(HERE / "lock", "rb") as pipe:
            pipe.read(1)
        lock.release()

    threading.Thread(target=release, daemon=True).start()
    with lock:
        pass


def in_input() -> None:
    """Wait until a line comes."""
    os.dup2(os.open(HERE / "input", os.O_RDWR), 0)
    input("go on? ")


def in_save() -> None:
    """Write a big checkpoint, again and again, until the named file exists."""
    numbers = torch.ones(4_000_000)
    while not (HERE / "saved").exists():
        torch.save(numbers, HERE / "checkpoint.pt")


WAYS = {1: (in_child, in_pipe, in_lock, in_input), 2: (in_spawn, in_save)}


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    numbers = torch.ones(1000)
    ways = {BETWEEN * (at + 1): way for at, way in enumerate(WAYS.get(dist.get_rank(), ()))}
    for step in range(1_000_000):
        time.sleep(0.02)
        ways.get(step, lambda: None)()
        dist.all_reduce(numbers)


main()
