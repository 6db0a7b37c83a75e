"""Ranks as forked processes of one program."""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

CASES = {
    "unanswered": {
        "story": "Rank 1 waits for a message of its parent that does not come.",
        "expected": ["not-in-collective 1"],
        "place": "member",
        "launcher": "own",
    },
    "breaks": {
        "story": "Rank 2, a forked process, raises an IndexError.",
        "expected": ["rank-crashed 2"],
        "place": "member",
        "launcher": "own",
    },
    "helper-holds": {
        "story": "Rank 0 joins a thread that waits for ever.",
        "expected": ["not-in-collective 0"],
        "place": "member",
        "launcher": "own",
    },
    "family": {
        "story": "Forked ranks that end well.",
        "expected": [],
        "launcher": "own",
    },
}

RANKS = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def member(rank, port, shape, mailbox):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    dist.init_process_group("gloo")
    values = torch.zeros(50)
    for step in range(200 if shape == "family" else 100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == 70 and rank == 1 and shape == "unanswered":
            mark()
            mailbox.get()
        if step == 70 and rank == 2 and shape == "breaks":
            mark()
            raise IndexError("list index out of range")
        if step == 70 and rank == 0 and shape == "helper_holds":
            mark()
            worker = threading.Thread(target=threading.Event().wait)
            worker.start()
            worker.join()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    box = context.Queue()
    members = [
        context.Process(target=member, args=(rank, number, sys.argv[1], box))
        for rank in range(RANKS)
    ]
    for one in members:
        one.start()
    for one in members:
        one.join()
