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
        "cause": [
            r"\bfutures?\b",
            r"\bwaits? for (a|the|its) result\b",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(who|which|should|must)\b.{0,50}\b(computes?|sets?|completes?|finish\w*)\b",
            r"\b(look|see|check|find)\b.{0,60}\b(future|executor|pool|task|thread)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "functional": {
        "story": "Functional collectives; rank 0 waits at an empty queue.",
        "expected": ["not-in-collective 0"],
        "place": "functional",
        "cause": [
            r"\bqueue\b",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(puts?|fills?|feeds?)\b",
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(filled|fed)\b",
            r"\b(look|see|check|find)\b.{0,50}\b(producer|feeder|source|queue|other end)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "world": 2,
    },
    "watched": {
        "story": "A monitored barrier, which rank 2 does not reach.",
        "expected": ["not-in-collective 2"],
        "place": "watched",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps)\b|\bin (a |its )?sleep\b",
            r"\b(wait|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\bsleeps?\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
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
