"""Everyday mistakes: pools, pipes, regular expressions, databases, two ranks at fault."""

import asyncio
import ctypes
import json
import multiprocessing
import os
import pickle
import queue
import re
import signal
import sqlite3
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "pool-lost-worker": {
        "story": "A process of rank 2's pool was killed; the pool never gives its result.",
        "source": "python/cpython#66587",
        "expected": ["not-in-collective 2"],
        "place": "tokenize",
    },
    "regular-expression": {
        "story": "A regular expression of rank 1 backtracks for ever, and keeps the GIL.",
        "expected": ["not-in-collective 1", "interpreter-frozen 1"],
        "place": "split_words",
    },
    "database-locked": {
        "story": "Rank 0 writes its metrics into a database that another process has locked.",
        "expected": ["not-in-collective 0"],
        "place": "record",
    },
    "output-not-read": {
        "story": "Nobody reads the pipe to which rank 1 prints.",
        "expected": ["not-in-collective 1"],
        "place": "report",
    },
    "two-culprits": {
        "story": "Ranks 1 and 3 of five stand at once, each at another place.",
        "expected": ["not-in-collective 1,3"],
        "place": ["reads_shard", "wants_lock"],
        "world": 5,
    },
    "first-collective": {
        "story": "Rank 1 does not come to the first collective of the training.",
        "expected": ["not-in-collective 1"],
        "place": "prepare",
    },
    "condition-not-notified": {
        "story": "A thread of rank 0 was to notify a condition, and has ended.",
        "expected": ["not-in-collective 0"],
        "place": "next_batch",
    },
    "loads-from-pipe": {
        "story": "Rank 2 unpickles its state from a pipe in which half of it has come.",
        "expected": ["not-in-collective 2"],
        "place": "load_state",
    },
    "two-models": {
        "story": "Rank 1 leaves out the backward of the second of two models; gloo may abort it.",
        "expected": ["collective-mismatch 1", "not-in-collective 1", "rank-killed 1"],
    },
    "handler-of-usr1": {
        "story": "A handler of rank 1 waits for a reply that the interrupted code would give.",
        "expected": ["not-in-collective 1"],
        "place": "on_usr1",
    },
    "future-of-loop": {
        "story": "Rank 0 waits in a thread for the loop of asyncio that it blocks itself.",
        "expected": ["not-in-collective 0"],
        "place": "publish",
    },
    "waits-for-child": {
        "story": "Rank 1 joins a forked child, which waits for the parent's lock.",
        "expected": ["not-in-collective 1"],
        "place": "evaluate",
    },
    "last-barrier": {
        "story": "After the training rank 2 does not come to the last barrier.",
        "expected": ["not-in-collective 2"],
        "place": "upload",
    },
    "rollouts": {
        "story": "Rank 0 collects samples for three seconds in each step, the others wait.",
        "expected": [],
    },
    "longer-and-longer": {
        "story": "A curriculum: each step takes longer than the one before.",
        "expected": [],
    },
    "downloads-first": {
        "story": "Rank 0 writes the data set for ten seconds before the first step.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "traces-exported": {
        "story": "Each rank exports a long trace in the middle of the run.",
        "expected": [],
    },
    "pool-works": {
        "story": "Rank 2 maps its samples in a pool of processes for some seconds.",
        "expected": [],
        "tolerated": ["not-in-collective 2"],
    },
    "stopped-for-a-moment": {
        "story": "Rank 1 is stopped for a second, as by a checkpoint of its container.",
        "expected": [],
    },
    "uneven-then-even": {
        "story": "Rank 0 has twice the work in the first epoch, then it is balanced.",
        "expected": [],
        "tolerated": ["straggler 0"],
    },
}
AT = 70


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Training:
    """A small model, and the number of its step."""

    def __init__(self):
        self.rank, self.number = dist.get_rank(), 0
        self.model = DistributedDataParallel(torch.nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, seconds=0.02):
        time.sleep(seconds)
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 16)).mean().backward()
        self.optimizer.step()
        self.number += 1

    def until(self, rank, stand):
        """Train, then `stand` on this rank."""
        while self.number < 100_000:
            self.step()
            if self.number == AT and self.rank == rank:
                mark()
                stand()


def double(number):
    return 2 * number


def dies(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def pool_lost_worker():
    training = Training()

    def tokenize():
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(dies, range(8), chunksize=1)

    training.until(2, tokenize)


def regular_expression():
    training = Training()

    def split_words():
        re.match(r"(\w+\s?)+$", "a" * 64 + "!")

    training.until(1, split_words)


def database_locked():
    training = Training()
    path = f"metrics{training.rank}.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("create table if not exists losses (step, loss)")

    def record():
        other.execute("begin exclusive")
        mine = sqlite3.connect(path, timeout=1e6)
        mine.execute("insert into losses values (1, 2)")
        mine.commit()

    training.until(0, record)


def output_not_read():
    training = Training()
    _out, into = os.pipe()

    def report():
        for number in range(100_000):
            os.write(into, b"step %d of many: the loss is small\n" % number)

    training.until(1, report)


def two_culprits():
    training = Training()
    out, _into = os.pipe()
    lock = threading.Lock()
    lock.acquire()

    def reads_shard():
        os.read(out, 1)

    def wants_lock():
        lock.acquire()

    def stand():
        if training.rank == 1:
            mark()
            reads_shard()
        elif training.rank == 3:
            wants_lock()

    while True:
        training.step()
        if training.number == AT:
            stand()


def first_collective():
    rank = dist.get_rank()
    model = torch.nn.Linear(16, 4)
    event = threading.Event()

    def prepare():
        event.wait()

    time.sleep(2.0)
    if rank == 1:
        mark()
        prepare()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
    time.sleep(1e6)


def condition_not_notified():
    training = Training()
    ready = threading.Condition()

    def next_batch():
        threading.Thread(target=lambda: None).start()
        with ready:
            ready.wait()

    training.until(0, next_batch)


def loads_from_pipe():
    training = Training()

    def load_state():
        out, into = os.pipe()
        os.write(into, pickle.dumps(list(range(1000)))[:100])
        pickle.load(os.fdopen(out, "rb"))

    training.until(2, load_state)


def two_models():
    first = DistributedDataParallel(torch.nn.Linear(16, 4))
    second = DistributedDataParallel(torch.nn.Linear(16, 5))
    rank, rows = dist.get_rank(), torch.ones(8, 16)
    for number in range(100_000):
        time.sleep(0.02)
        first(rows).mean().backward()
        if number >= AT and rank == 1:
            if number == AT:
                mark()
            continue
        second(rows).mean().backward()


def handler_of_usr1():
    training = Training()
    replies = queue.Queue()

    def on_usr1(_number, _frame):
        replies.get()

    signal.signal(signal.SIGUSR1, on_usr1)
    training.until(1, lambda: os.kill(os.getpid(), signal.SIGUSR1))


def future_of_loop():
    training = Training()

    async def publish():
        async def answer():
            return 1

        asyncio.run_coroutine_threadsafe(answer(), asyncio.get_running_loop()).result()

    training.until(0, lambda: asyncio.run(publish()))


def waits_for_child():
    training = Training()
    lock = threading.Lock()

    def evaluate():
        with lock:
            child = multiprocessing.get_context("fork").Process(target=lock.acquire)
            child.start()
            child.join()

    training.until(1, evaluate)


def last_barrier():
    training = Training()
    while training.number < AT:
        training.step()

    def upload():
        _mine, other = os.pipe()
        while True:
            os.write(other, b"x" * 4096)

    if training.rank == 2:
        mark()
        upload()


def rollouts():
    training = Training()
    for _ in range(8):
        if training.rank == 0:
            ends = time.monotonic() + 3.0
            while time.monotonic() < ends:
                sum(range(1000))
                time.sleep(0.01)
        weights = torch.ones(100)
        dist.broadcast(weights, 0)
        training.step()


def longer_and_longer():
    training = Training()
    for number in range(40):
        training.step(0.02 + 0.04 * number)


def downloads_first():
    training_rank = dist.get_rank()
    if training_rank == 0:
        ends = time.monotonic() + 10.0
        with open("data.bin", "wb") as file:
            while time.monotonic() < ends:
                file.write(b"x" * 100_000)
                file.flush()
                time.sleep(0.05)
    dist.barrier()
    training = Training()
    for _ in range(300):
        training.step()


def traces_exported():
    training = Training()
    for number in range(400):
        if number == 200:
            ends = time.monotonic() + 7.0
            while time.monotonic() < ends:
                json.dumps(list(range(20_000)))
        training.step()


def pool_works():
    training = Training()
    for number in range(400):
        if number == 200 and training.rank == 2:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                ends = time.monotonic() + 7.0
                while time.monotonic() < ends:
                    pool.map(double, range(20_000))
        training.step()


def stopped_for_a_moment():
    training = Training()
    for number in range(400):
        if number == 200 and training.rank == 1:
            me = os.getpid()
            if os.fork() == 0:
                os.kill(me, signal.SIGSTOP)
                time.sleep(1.0)
                os.kill(me, signal.SIGCONT)
                os._exit(0)
            ctypes.CDLL(None).wait(None)
        training.step()


def uneven_then_even():
    training = Training()
    for number in range(600):
        training.step(0.04 if number < 300 and training.rank == 0 else 0.02)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
