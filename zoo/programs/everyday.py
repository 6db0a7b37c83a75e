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
        "cause": [
            r"(child|worker|pool|helper|process)\b.{0,60}(killed|died|dead|gone|lost|SIGKILL"
            r"|replaced)",
            r"pool\.py|\bpool\b|multiprocessing",
        ],
        "cure": [
            r"ProcessPoolExecutor|concurrent\.futures|BrokenProcessPool|dmesg|OOM|map_async",
            r"(look|see|check)\w*\b.{0,60}(worker|child|process(?! group)|pool|memory)",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "regular-expression": {
        "story": "A regular expression of rank 1 backtracks for ever, and keeps the GIL.",
        "expected": ["not-in-collective 1", "interpreter-frozen 1"],
        "place": "split_words",
        "cause": [
            r"regular expression|regex|backtrack|\bre\.(match|search)",
            r"\bGIL\b|interpreter('s)? lock",
            r"(is|still|keeps) (computing|running|busy|working)|comput(es|ing)\b",
            r"CPU.{0,40}(\d\d ?%|time|second)|\d\d ?% .{0,20}CPU|(a|one|its|full) (core|CPU)\b",
        ],
        "cure": [
            r"regular expression|regex|backtrack|\bre2\b|atomic|possessive",
            r"(loop|call|pattern|input)\b.{0,60}(end|bound|limit|shorten|simplif)",
            "perf (top|record)",
            "--native",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "database-locked": {
        "story": "Rank 0 writes its metrics into a database that another process has locked.",
        "expected": ["not-in-collective 0"],
        "place": "record",
        "cause": [
            r"sqlite|database|\.db\b",
            r"\block(ed|s)?\b|flock|/proc/locks",
            r"rank 0\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
            "nanosleep",
        ],
        "cure": [
            r"lsof|fuser|/proc/locks|busy_timeout|\bWAL\b|lslocks",
            "own (database|file)|commit|roll ?back",
            r"who(ever)? .{0,20}(holds|has|owns|keeps)\b|\b(holder|owner) of",
            "RLock|re-?entrant",
            r"(release|give back|give up|free)\w* .{0,20}\block\b",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "output-not-read": {
        "story": "Nobody reads the pipe to which rank 1 prints.",
        "expected": ["not-in-collective 1"],
        "place": "report",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"(nobody|no one|none|not|never) reads?\b|no reader",
            r"writ\w+.{0,60}(full|block)",
        ],
        "cure": [
            r"\breader\b|who(ever)? .{0,20}(reads|read|drains)\b",
            "(other|far|reading|read) (end|side)",
            r"(read|drain|empty|consume)\w* (it|the pipe|(its|the|this) output|stdout)",
            "redirect|(in)?to a file|/dev/null|lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "two-culprits": {
        "story": "Ranks 1 and 3 of five stand at once, each at another place.",
        "expected": ["not-in-collective 1,3"],
        "place": ["reads_shard", "wants_lock"],
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"\block\b|acquire",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            r"who(ever)? .{0,20}(holds|has|owns|keeps)\b|\b(holder|owner) of",
            "RLock|re-?entrant",
            r"(release|give back|give up|free)\w* .{0,20}\block\b",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "world": 5,
    },
    "first-collective": {
        "story": "Rank 1 does not come to the first collective of the training.",
        "expected": ["not-in-collective 1"],
        "place": "prepare",
        "cause": [
            r"\bevent\b",
            r"threading\.py",
            r"\b(lock|condition|semaphore)\b|acquire",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
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
    },
    "condition-not-notified": {
        "story": "A thread of rank 0 was to notify a condition, and has ended.",
        "expected": ["not-in-collective 0"],
        "place": "next_batch",
        "cause": [
            r"\bcondition\b|notif",
            r"threading\.py|\block\b|acquire",
            r"rank 0\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
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
    },
    "loads-from-pipe": {
        "story": "Rank 2 unpickles its state from a pipe in which half of it has come.",
        "expected": ["not-in-collective 2"],
        "place": "load_state",
        "cause": [
            "(?<!broken )pipe(?!line)",
            "pickle|truncated|incomplete|half of",
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
    },
    "two-models": {
        "story": "Rank 1 leaves out the backward of the second of two models; gloo may abort it.",
        "expected": ["collective-mismatch 1", "not-in-collective 1", "rank-killed 1"],
        "cause": [
            r"(skip|left out|leaves? out|miss|omit|fewer|behind|did not|never|without)\w*"
            r".{0,60}(backward|gradient|reduce|collective|model|call|bucket|step)",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
            r"(different|differing|other|unequal|not the same|mismatch\w*) (size|shape|number"
            r"|length)s?",
            r"(size|shape|numel|length|bytes|MB|elements|values)\b.{0,60}(differ|against"
            r"|mismatch|vs)",
            "preamble|EnforceNotMet|gloo.{0,80}(abort|terminat|enforce|size)",
        ],
        "cure": [
            "both models|find_unused_parameters|zero loss|every backward",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
            "same (size|shape|number|length|count|element)s?",
            r"(check|compare|print|log|look)\w*.{0,60}(shape|size|numel|length)",
        ],
    },
    "handler-of-usr1": {
        "story": "A handler of rank 1 waits for a reply that the interrupted code would give.",
        "expected": ["not-in-collective 1"],
        "place": "on_usr1",
        "cause": [
            "signal handler|handler of|SIGUSR1|(in|by|from) (a|its|the) handler",
            r"\bqueue\b|queue\.py|queues\.py",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"handler\b.{0,80}(flag|short|return|not|never)",
            r"(not|never)\b.{0,40}(wait|block).{0,30}handler",
            "set a flag|set_wakeup_fd|SimpleQueue",
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
    },
    "future-of-loop": {
        "story": "Rank 0 waits in a thread for the loop of asyncio that it blocks itself.",
        "expected": ["not-in-collective 0"],
        "place": "publish",
        "cause": [
            r"asyncio|event loop|coroutine|\bfuture\b|futures",
            r"threading\.py|condition\b",
            r"rank 0\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"\bawait\b|wrap_future|to_thread|run_in_executor|(another|other|own) thread",
            r"(not|never)\b.{0,30}block\w* .{0,30}loop|result\(.{0,10}timeout",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "waits-for-child": {
        "story": "Rank 1 joins a forked child, which waits for the parent's lock.",
        "expected": ["not-in-collective 1"],
        "place": "evaluate",
        "cause": [
            r"\bchild|sub-?process|\bfork|wait(pid|4|id)|\bdo_wait|popen",
        ],
        "cure": [
            r"\bspawn|forkserver|\bspawned",
            r"join\(.{0,10}timeout",
            r"(release|outside|before|without)\b.{0,40}\b(lock|fork)",
            r"(look|see|check|inspect|ask)\w*\b.{0,60}\b(child|process(?! group)|program"
            r"|command)",
            "(child|program|command).{0,60}(look|stack|doing|waits|py-spy|strace)",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "last-barrier": {
        "story": "After the training rank 2 does not come to the last barrier.",
        "expected": ["not-in-collective 2"],
        "place": "upload",
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"(nobody|no one|none|not|never) reads?\b|no reader",
            r"writ\w+.{0,60}(full|block)",
        ],
        "cure": [
            r"\breader\b|who(ever)? .{0,20}(reads|read|drains)\b",
            "(other|far|reading|read) (end|side)",
            r"(read|drain|empty|consume)\w* (it|the pipe|(its|the|this) output|stdout)",
            "redirect|(in)?to a file|/dev/null|lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
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
