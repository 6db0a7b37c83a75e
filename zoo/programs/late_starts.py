"""A rank that does not join at the start, for each way in which a program makes its ranks: fork,
spawn, a pool, plain children, threads of a launcher.
"""

import concurrent.futures
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time

CASES = {
    "forked": {
        "story": "Rank 2, forked by the program, waits for a license before it joins.",
        "expected": ["late-to-init 2"],
        "place": "wait_for_license",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"rank 2\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "own",
    },
    "spawned": {
        "story": "Rank 0, a spawned child, waits for a license before it joins.",
        "expected": ["late-to-init 0"],
        "place": "wait_for_license",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"rank 0\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "own",
    },
    "forked-by-context": {
        "story": "Rank 1, a forked child of multiprocessing, does not come to the start.",
        "expected": ["late-to-init 1"],
        "place": "wait_for_license",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "own",
    },
    "fork-server": {
        "story": "Rank 2, from a fork server, does not come to the start.",
        "expected": ["late-to-init 2"],
        "place": "wait_for_license",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"rank 2\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "own",
    },
    "pooled": {
        "story": "Rank 1, a task of a process pool, does not come to the start.",
        "source": "ray-project/ray#20847",
        "expected": ["late-to-init 1"],
        "place": "wait_for_license",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "own",
    },
    "by-argument": {
        "story": "Rank 2, a plain child whose number is an argument, does not come to the start.",
        "expected": ["late-to-init 2"],
        "place": "wait_for_license",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"rank 2\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "own",
    },
    "indexing": {
        "story": "One forked rank reads its corpus for eight seconds before it joins.",
        "expected": [],
        "launcher": "own",
    },
    "pool-indexing": {"story": "The same in a spawned child.", "expected": [], "launcher": "own"},
}

RANKS = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def wait_for_license():
    mark()
    into, _out = os.pipe()
    os.read(into, 1)


def index_corpus(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sorted(range(20_000), key=lambda n: -n)


def member(rank, port, odd, seconds=0.0):
    import torch
    import torch.distributed as dist

    if rank == odd:
        wait_for_license()
    if rank == 1 and seconds:
        index_corpus(seconds)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    values = torch.zeros(50)
    for _ in range(120):
        dist.all_reduce(values)
        time.sleep(0.03)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_os_fork(odd=1, seconds=0.0):
    import torch.distributed  # noqa: F401

    port = free_port()
    children = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            member(rank, port, odd, seconds)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def by_context(name, odd, seconds=0.0):
    context = multiprocessing.get_context(name)
    port = free_port()
    children = [
        context.Process(target=member, args=(rank, port, odd, seconds)) for rank in range(RANKS)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()


def forked():
    by_os_fork(2)


def spawned():
    by_context("spawn", 0)


def forked_by_context():
    by_context("fork", 1)


def fork_server():
    by_context("forkserver", 2)


def pooled():
    """A pool of processes, one task a rank."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    with concurrent.futures.ProcessPoolExecutor(RANKS, mp_context=context) as pool:
        for one in [pool.submit(member, rank, port, 1) for rank in range(RANKS)]:
            one.result()


def by_argument():
    """Plain children whose number is an argument, not a variable."""
    port = free_port()
    children = [
        subprocess.Popen([sys.executable, __file__, "child", str(rank), str(port)])
        for rank in range(RANKS)
    ]
    waiters = [threading.Thread(target=child.wait) for child in children]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()


def indexing():
    """Healthy: one rank reads its corpus for eight seconds before it joins."""
    by_context("fork", None, 8.0)


def pool_indexing():
    """Healthy: the same in spawned children."""
    by_context("spawn", None, 6.0)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        member(int(sys.argv[2]), int(sys.argv[3]), 2)
    else:
        globals()[sys.argv[1]]()
