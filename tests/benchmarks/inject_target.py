"""A process that does one thing until a file appears: `inject_target.py KIND FOLDER`.

It prints a digest of what it has computed. The digest is the same in each run of a kind. The file
`ready` says that it has begun, the file `go` that it may end.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[2])
GO = FOLDER / "go"


def until_go(work: Callable[[int], object]) -> str:
    """Run rounds of 4 numbers until `go` exists. Their digest must never differ."""
    found: set[str] = set()
    while not GO.exists():
        digest = hashlib.sha256()
        for number in range(4):
            digest.update(repr(work(number)).encode())
        found.add(digest.hexdigest()[:16])
    return ",".join(sorted(found))


def allocate(number: int) -> object:
    """malloc and free of all sizes, with the GIL."""
    return [len(bytearray(n * 97)) for n in range(number, number + 400)][-3:]


def allocate_in_c(number: int) -> object:
    """malloc and free of the C library, called without the GIL."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    for size in range(1 << 12, 1 << 15, 1 << 12):
        libc.free(libc.malloc(size + number))
    return number


def compile_regex(number: int) -> object:
    """The C library compiles a pattern: one call that does little but malloc and free, no GIL."""
    libc = ctypes.CDLL(None)
    compiled = ctypes.create_string_buffer(256)
    for _ in range(20):
        error = libc.regcomp(compiled, b"(((ab|cd)*(ef|gh)+[a-z]{1,40})*(x|y|z){1,40}q)+", 1)
        libc.regfree(compiled)
    return number, error


def hold_gil(number: int) -> object:
    """0.2 s inside C with the GIL held."""
    return sum(range(10_000_000)) + number


def drop_gil(number: int) -> object:
    """0.1 s inside C without the GIL."""
    return hashlib.pbkdf2_hmac("sha256", b"x", str(number).encode(), 50_000).hex()


def spin(number: int) -> object:
    """Python only."""
    found = number
    for at in range(20_000):
        found = (found * 31 + at) % 1_000_003
    return found


def in_worker() -> str:
    """A forked worker puts batches into a queue. The worker is the target."""
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue(4)

    def fill() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        number = 0
        while True:
            queue.put(hashlib.sha256(bytes(4096 + number % 64)).hexdigest())
            number += 1

    worker = context.Process(target=fill, daemon=True)
    worker.start()
    (FOLDER / "pid").write_text(str(worker.pid))
    number, wrong = 0, 0
    (FOLDER / "ready").touch()
    while not GO.exists():
        got = queue.get(timeout=60)
        wrong += got != hashlib.sha256(bytes(4096 + number % 64)).hexdigest()
        number += 1
    for _ in range(20):
        queue.get(timeout=60)
    worker.terminate()
    worker.join()
    return f"wrong {wrong}"


def in_gloo() -> str:
    """Rank 0 waits in all_reduce for rank 1, which comes when `go` exists."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=rank, world_size=2)
    tensor = torch.arange(1000.0) * (rank + 1)
    dist.all_reduce(tensor)
    if rank == 0:
        (FOLDER / "ready").touch()
    else:
        while not GO.exists():
            time.sleep(0.05)
    dist.all_reduce(tensor)
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]


LOOPS: dict[str, Callable[[int], object]] = {
    "malloc": allocate,
    "malloc-c": allocate_in_c,
    "regcomp": compile_regex,
    "c-gil": hold_gil,
    "c-no-gil": drop_gil,
    "spin": spin,
    "stopped": spin,
    "threads": spin,
}


def main() -> None:
    """Do what KIND says."""
    kind = sys.argv[1]
    if kind == "worker":
        print(in_worker())
        return
    if kind == "gloo":
        print(in_gloo())
        return
    if kind == "threads":
        for _ in range(4):
            threading.Thread(target=until_go, args=(allocate,), daemon=True).start()
    (FOLDER / "ready").touch()
    print(until_go(LOOPS[kind]))


if __name__ == "__main__":
    main()
