"""Ranks that wait for something outside the job: a lock file, a key, a service, an event loop."""

import asyncio
import fcntl
import json
import os
import pathlib
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "shared-cache": {
        "story": "Rank 0 holds a file lock over a barrier, rank 2 wants it before the barrier.",
        "expected": ["not-in-collective 2"],
        "place": "shared_cache",
    },
    "wants-key": {
        "story": "Rank 1 waits for a key of the store that nobody sets.",
        "expected": ["not-in-collective 1"],
        "place": "wants_key",
    },
    "reports": {
        "story": "A web service takes rank 0's connection and never answers.",
        "source": "wandb/wandb#9871",
        "expected": ["not-in-collective 0"],
        "place": "reports",
        "launcher": "plain",
    },
    "looped": {
        "story": "Rank 2 awaits an event in asyncio that nobody sets.",
        "expected": ["not-in-collective 2"],
        "place": ["looped", "job", "main"],
    },
    "polls": {
        "story": "Rank 1 looks again and again for a file that nobody writes.",
        "source": "NVIDIA/Megatron-LM#907",
        "expected": ["not-in-collective 1"],
        "place": "polls",
        "launcher": "plain",
    },
    "paused": {
        "story": "Rank 0 waits for a signal.",
        "expected": ["not-in-collective 0"],
        "place": "paused",
    },
    "only-one-ended": {
        "story": "SIGTERM to rank 2 alone.",
        "expected": ["rank-killed 2"],
        "launcher": "plain",
    },
    "too-much": {
        "story": "Rank 1 allocates more memory than there can be, and raises MemoryError.",
        "source": "mosaicml/composer#1690",
        "expected": ["rank-crashed 1"],
        "place": "too_much",
    },
    "exits-two": {
        "story": "Rank 0 ends with exit code 2, without an exception.",
        "expected": ["rank-crashed 0"],
    },
}

LOCK = "cache.lock"


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def shared_cache(rank):
    """Rank 0 holds a lock over a barrier, rank 2 wants it first."""
    with open(LOCK, "a") as file:
        if rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if rank == 2:
            mark()
            fcntl.flock(file, fcntl.LOCK_EX)
        pathlib.Path(LOCK).unlink(missing_ok=True)
        dist.barrier()


def wants_key(rank):
    """One rank waits for a key of the store that nobody sets."""
    if rank == 1:
        mark()
        dist.distributed_c10d._get_default_store().wait(["best-epoch"])


def reports(rank):
    """A service takes the connection and never answers."""
    if rank == 0:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen()
        client = socket.create_connection(server.getsockname())
        client.sendall(b"GET /run HTTP/1.1\r\n\r\n")
        mark()
        client.recv(4096)


def looped(rank):
    """A coroutine that nobody wakes."""

    async def job():
        mark()
        await asyncio.Event().wait()

    if rank == 2:
        asyncio.run(job())


def polls(rank):
    """Looks for a file again and again that nobody writes."""
    if rank == 1:
        mark()
        while not os.path.exists("finished.flag"):
            time.sleep(0.2)


def paused(rank):
    """Waits for a signal."""
    if rank == 0:
        mark()
        signal.pause()


def only_one_ended(rank):
    """SIGTERM to one rank alone."""
    if rank == 2:
        mark()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def too_much(rank):
    """An allocation that cannot be."""
    if rank == 1:
        mark()
        bytearray(1 << 60)


def exits_two(rank):
    """An exit code, no exception."""
    if rank == 0:
        mark()
        sys.exit(2)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.zeros(1000)
    for step in range(100_000):
        dist.all_reduce(gradient)
        time.sleep(0.03)
        if step == 70:
            globals()[sys.argv[1]](rank)


if __name__ == "__main__":
    main()
