"""Ranks that end, or get stuck, in C."""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

CASES = {
    "bad-pointer": {
        "story": "Rank 2 reads a bad address: SIGSEGV.",
        "expected": ["rank-killed 2"],
        "launcher": "plain",
        "arguments": ["2"],
    },
    "gives-up": {
        "story": "Rank 1 calls abort.",
        "expected": ["rank-killed 1"],
        "launcher": "plain",
        "world": 2,
        "arguments": ["1"],
    },
    "held": {
        "story": "Rank 1 is stopped by SIGSTOP.",
        "source": "open-mpi/ompi#526",
        "expected": ["rank-stopped 1"],
        "launcher": "plain",
        "arguments": ["1"],
    },
    "gone": {
        "story": "Rank 0 is killed by SIGKILL.",
        "source": "NVIDIA/nccl#585",
        "expected": ["rank-killed 0"],
        "launcher": "plain",
        "arguments": ["0"],
    },
    "in-c": {
        "story": "Rank 2 blocks in C code that holds the GIL.",
        "source": "pytorch/pytorch#112518",
        "expected": ["interpreter-frozen 2"],
        "place": "in_c",
        "launcher": "plain",
        "arguments": ["2"],
    },
    "own-lock": {
        "story": "Rank 1 acquires a lock twice.",
        "expected": ["not-in-collective 1"],
        "place": "own_lock",
        "launcher": "plain",
        "arguments": ["1"],
    },
    "quits": {
        "story": "Rank 2 ends with os._exit(3), without a traceback.",
        "expected": ["rank-crashed 2"],
        "launcher": "plain",
        "arguments": ["2"],
    },
    "feeder": {
        "story": (
            "On rank 1 the thread that feeds the training raises; the main thread waits for it."
        ),
        "expected": ["rank-crashed 1", "not-in-collective 1"],
        "place": ["produce", "main"],
        "launcher": "plain",
        "arguments": ["1"],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def bad_pointer():
    mark()
    ctypes.string_at(8)


def gives_up():
    mark()
    os.abort()


def held():
    mark()
    os.kill(os.getpid(), signal.SIGSTOP)


def gone():
    mark()
    os.kill(os.getpid(), signal.SIGKILL)


def in_c():
    mark()
    into, _out = os.pipe()
    ctypes.PyDLL(None).read(into, ctypes.create_string_buffer(1), 1)


def own_lock():
    gate = threading.Lock()
    gate.acquire()
    mark()
    with gate:
        pass


def quits():
    mark()
    os._exit(3)


def produce(out):
    for number in range(90):
        out.put(number)
        time.sleep(0.03)
    mark()
    raise KeyError("shard-7")


def main():
    shape, culprit = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    mine = dist.get_rank() == culprit
    items = queue.Queue()
    if shape == "feeder" and mine:
        threading.Thread(target=produce, args=(items,), daemon=True).start()
    state = torch.zeros(128)
    began = time.monotonic()
    while True:
        if shape == "feeder" and mine:
            items.get()
        if shape != "feeder" and mine and time.monotonic() > began + 3:
            globals()[shape]()
        gathered = [torch.zeros(128) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, state)
        dist.all_reduce(state)
        time.sleep(0.03)


if __name__ == "__main__":
    main()
