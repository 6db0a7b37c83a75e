"""Asynchronous, functional and monitored collectives."""

import json
import queue
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

CASES = {
    "promised": {
        "story": "Two collectives in flight; rank 1 waits for a result that nobody computes.",
        "expected": ["not-in-collective 1"],
        "place": "promised",
    },
    "functional": {
        "story": "Functional collectives; rank 0 waits at an empty queue.",
        "expected": ["not-in-collective 0"],
        "place": "functional",
        "world": 2,
    },
    "watched": {
        "story": "A monitored barrier, which rank 2 does not reach.",
        "expected": ["not-in-collective 2"],
        "place": "watched",
    },
    "calm": {
        "story": "Collectives in flight while the ranks compute.",
        "expected": [],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def promised(rank):
    """Two collectives in flight; one rank waits for a result that nobody makes."""
    left, right = torch.zeros(512), torch.zeros(256)
    pool = ThreadPoolExecutor(1)
    for step in range(100_000):
        first = dist.all_reduce(left, async_op=True)
        if step == 60 and rank == 1:
            mark()
            Future().result()
        pool.submit(sum, range(100)).result()
        second = dist.all_reduce(right, async_op=True)
        time.sleep(0.02)
        first.wait()
        second.wait()


def functional(rank):
    """Functional collectives."""
    x = torch.ones(64)
    mail = queue.Queue()
    for step in range(100_000):
        x = funcol.wait_tensor(funcol.all_reduce(x, "avg", dist.group.WORLD))
        shards = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
        time.sleep(0.02 + 0.0 * float(shards[0]))
        if step == 60 and rank == 0:
            mark()
            mail.get()


def watched(rank):
    """A monitored barrier that one rank never reaches."""
    x = torch.ones(64)
    for step in range(100_000):
        dist.all_reduce(x)
        time.sleep(0.03)
        if step % 20 == 19:
            if step == 79 and rank == 2:
                mark()
                time.sleep(1e6)
            dist.monitored_barrier(timeout=timedelta(minutes=5))


def calm(rank):
    """Healthy: collectives in flight while the rank computes."""
    x = torch.ones(512)
    for _ in range(60):
        work = dist.all_reduce(x, async_op=True)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        work.wait()
        x = funcol.wait_tensor(funcol.all_reduce(x, "avg", dist.group.WORLD))
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank())
