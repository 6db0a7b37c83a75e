"""Python objects go round; the ranks come from mp.spawn."""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CASES = {
    "asks": {
        "story": "Rank 0 asks a question on stdin, and nobody answers.",
        "source": "wandb/wandb#1771",
        "expected": ["not-in-collective 0"],
        "place": "confirm",
        "cause": [
            r"\bstdin\b|\bstandard input\b|\bkeyboard\b|\bprompts?\b|\bterminal\b",
            r"\binput\(",
            r"\bpipe\b|pipe_(read|wait)",
        ],
        "cure": [
            "/dev/null",
            r"\b(answer|reply)\b|--yes\b|non-?interactive|\bdo not ask",
            r"\b(no|not|never|without|instead of|avoid)\b.{0,40}\b(prompt|input|ask)",
            r"\b(no|not|never|without|instead of|avoid)\b.{0,40}\b(stdin|question)",
            r"\b(write|close|writer|other end|write end|who)\b.{0,40}\b(pipe|stdin|writes?)\b",
        ],
        "launcher": "own",
    },
    "throws": {
        "story": "Rank 1 raises a KeyError in a function that parses a broadcast object.",
        "expected": ["rank-crashed 1"],
        "place": "parse",
        "cause": [r"\bKeyError\b", r"\bexception\b|\brais(ed|es)\b|\btraceback\b"],
        "cure": [
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            r"\.get\(",
            r"\b(check|fix|look|see|correct|catch|handle)\b.{0,60}\b(key|line|object)\b",
            r"\b(check|fix|look|see|correct|catch|handle)\b.{0,60}\b(error|exception|function)\b",
        ],
        "launcher": "own",
    },
    "exchange": {
        "story": "Objects are broadcast and gathered, and all ends well.",
        "expected": [],
        "launcher": "own",
    },
}

RANKS = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def confirm():
    into, _out = os.pipe()
    os.dup2(into, 0)
    sys.stdin = os.fdopen(0)
    return input("overwrite? ")


def parse(record):
    return record["missing"]


def body(rank, port, shape):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for step in range(160 if shape == "exchange" else 100_000):
        plan = [{"step": step, "names": list("abc")}] if rank == 0 else [None]
        dist.broadcast_object_list(plan, src=0)
        found = [None] * RANKS
        if shape == "asks" and step == 60 and rank == 0:
            mark()
            confirm()
        if shape == "throws" and step == 60 and rank == 1:
            mark()
            parse(plan[0])
        dist.all_gather_object(found, {"rank": rank, "loss": float(torch.rand(()))})
        time.sleep(0.03)


def start(shape):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(body, args=(port, shape), nprocs=RANKS)


if __name__ == "__main__":
    start(sys.argv[1])
