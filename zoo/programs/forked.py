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
        "cause": [
            r"\bqueue\b|queue\.py|queues\.py",
            "(?<!broken )pipe(?!line)",
            r"multiprocessing|\bparent\b.{0,60}(send|put|answer)",
        ],
        "cure": [
            r"parent\b.{0,60}(send|put|writ|doing|stack|answer)",
            r"(look|see|check)\w*\b.{0,60}\bparent",
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            r"who(ever)? .{0,20}(puts|fills|feeds|sends|produces)\b|producer|sentinel",
            "thread (that|which) .{0,30}(fill|feed|put|produce|fetch)",
            r"get\(.{0,10}timeout|get_nowait|nowait",
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
    "breaks": {
        "story": "Rank 2, a forked process, raises an IndexError.",
        "expected": ["rank-crashed 2"],
        "place": "member",
        "cause": [
            "IndexError",
            r"exception|traceback|\braise[sd]\b|uncaught",
        ],
        "cure": [
            r"(look|read|see|find|scroll|search|check|fix)\w*\b.{0,80}(traceback|exception"
            r"|stderr|log\b)",
            "(traceback|exception).{0,40}(above|says|in (its|the) (log|output|stderr))",
            "TORCHELASTIC_ERROR_FILE|@record|error file|--redirects|--log-dir",
        ],
        "launcher": "own",
    },
    "helper-holds": {
        "story": "Rank 0 joins a thread that waits for ever.",
        "expected": ["not-in-collective 0"],
        "place": "member",
        "cause": [
            r"thread.{0,60}(join|wait|end|asleep|stand)|join\w*.{0,40}thread",
            r"\bevent\b",
            r"threading\.py",
            r"\b(lock|condition|semaphore)\b|acquire",
            r"rank 0\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\bthread|join\(.{0,10}timeout|daemon",
            r"who(ever)? .{0,20}(sets?|notif\w+|releases?|wakes?)\b",
            "thread (that|which|of it that) .{0,30}(set|notif|release|wake)",
            r"(set|notif\w+|release|wake)\w* (it|the (event|lock|condition))",
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
