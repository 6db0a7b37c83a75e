"""Ways in which batches come to a training, and stop coming on one rank."""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

CASES = {
    "kept-workers": {
        "story": "Accumulation and persistent workers; a worker of rank 1 reads a pipe.",
        "source": "pytorch/pytorch#87995",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"worker.{0,80}\b(asleep|sleep|block|wait|stuck|stand|stood|read|hang)",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\b(worker|Dataset|__getitem__|sample)",
            "num_workers ?= ?0|num_workers=0",
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
        "world": 2,
    },
    "locked-worker": {
        "story": "A worker of rank 1 waits for a lock that nobody gives back.",
        "source": "pytorch/pytorch#1355",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            r"\block\b",
            "dead-?lock|RLock|re-?entrant",
            r"worker.{0,80}\b(asleep|sleep|block|wait|stuck|stand|stood|read|hang)",
            r"worker.{0,120}(futex|threading\.py)",
        ],
        "cure": [
            r"\bspawn|forkserver|multiprocessing_context",
            r"(look|see|check|inspect)\w*\b.{0,60}\b(worker|Dataset|__getitem__|sample)",
            "num_workers ?= ?0|num_workers=0",
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
    "stopped-worker": {
        "story": "A worker of rank 1 is stopped by a signal.",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            "worker.{0,80}(stopped|suspend|SIGSTOP)",
            "SIGSTOP|SIGTSTP|SIGTTOU|do_signal_stop|Ctrl-Z",
            r"(stopped|suspended|frozen|held|paused) by|suspend|state T\b|\bT \(",
        ],
        "cure": [
            r"SIGCONT|kill -(s )?(SIG)?CONT|\bfg\b",
            "who(ever)? .{0,20}(stopped|sent|suspend)",
        ],
        "world": 2,
    },
    "in-main-process": {
        "story": "Rank 1 reads a sample in its main thread, from a pipe.",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"read\w* (a|its|the) (sample|batch)",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\b(Dataset|__getitem__|sample)",
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
        "world": 2,
    },
    "prefetching-thread": {
        "story": "A thread of rank 1 should fetch batches ahead, and stands.",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            r"\bqueue\b|queue\.py|queues\.py",
            r"(thread|producer)\b.{0,60}(asleep|wait|stand|stuck|block|sleep)",
            r"\bevent\b",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\bthread",
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
        "world": 2,
    },
    "streamed": {
        "story": "Rank 1 streams its samples from a socket that falls silent.",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            r"socket|recv|wait\w* .{0,30}network|connection|sk_wait|unix_stream|skb_|\bpeer\b",
        ],
        "cure": [
            r"\b(peer|server|sender|service)\b|\bss -",
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
        "world": 2,
    },
    "slow-sampler": {
        "story": "The sampler of rank 1 waits for the next indices.",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"\bsampler",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\bsampler|\bservice\b",
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
        "world": 2,
    },
    "slow-collate": {
        "story": "The collate function of rank 1 waits for a lock.",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "cause": [
            r"\block\b",
            "dead-?lock|RLock|re-?entrant",
            r"acquire|threading\.py",
            "collate",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\bcollate",
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
        "world": 2,
    },
    "first-batch": {"story": "The first batches take seconds.", "expected": [], "world": 2},
    "new-workers": {
        "story": "Workers are started anew in each short epoch.",
        "expected": [],
        "world": 2,
    },
    "uneven-samples": {
        "story": "Some samples take a hundred times longer than others.",
        "expected": [],
        "world": 2,
    },
}

STOP_AT = 400


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def my_turn(index):
    return int(os.environ["RANK"]) == 1 and index >= STOP_AT


class Rows(Dataset):
    """`stand`: what the odd rank does at one of its samples."""

    def __init__(self, stand, count=100_000):
        self.stand, self.count = stand, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.stand is not None and my_turn(index):
            self.stand()
        return torch.full((16,), float(index % 7))


class Lines(IterableDataset):
    """Read from a producer over a socket."""

    def __iter__(self):
        source, sink = socket.socketpair()
        number = 0
        while True:
            if not my_turn(number * 8):
                sink.send(b"x")
            elif my_turn(number * 8) and not my_turn(number * 8 - 8):
                mark()
            source.recv(1)
            number += 1
            yield torch.full((16,), float(number % 7))


def at_pipe():
    mark()
    into, _out = os.pipe()
    os.read(into, 1)


def at_lock():
    mark()
    gate = threading.Lock()
    gate.acquire()
    gate.acquire()


def stops_itself():
    mark()
    os.kill(os.getpid(), signal.SIGSTOP)


class Engine:
    """Accumulates four batches a step, as the trainers of frameworks do."""

    def __init__(self, accumulate=4):
        self.model = DistributedDataParallel(torch.nn.Linear(16, 16))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.accumulate = accumulate

    def fit(self, batches, steps=100_000):
        for number, rows in enumerate(batches):
            last = number % self.accumulate == self.accumulate - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                self.model(rows).square().mean().backward()
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()
            time.sleep(0.02)
            if number == steps:
                return


def loader(data, **more):
    sampler = DistributedSampler(data, shuffle=False)
    return DataLoader(data, batch_size=4, sampler=sampler, **more)


def kept_workers():
    """Persistent workers, accumulation; a worker stands in a pipe."""
    Engine().fit(loader(Rows(at_pipe), num_workers=2, persistent_workers=True))


def locked_worker():
    """A worker waits for a lock that nobody gives back."""
    Engine(1).fit(loader(Rows(at_lock), num_workers=1))


def stopped_worker():
    """A worker is stopped by a signal."""
    Engine(2).fit(loader(Rows(stops_itself), num_workers=2))


def in_main_process():
    """No workers: the sample is read in the training's own thread."""
    Engine().fit(loader(Rows(at_pipe)))


def prefetching_thread():
    """A thread of the program fetches batches ahead, into a queue."""
    ahead = queue.Queue(8)

    def fetch():
        for number in range(100_000):
            if my_turn(number * 4):
                mark()
                threading.Event().wait()
            ahead.put(torch.full((4, 16), float(number % 7)))

    threading.Thread(target=fetch, daemon=True).start()
    Engine(1).fit(iter(ahead.get, None))


def streamed():
    """An iterable dataset in the main process, fed by a socket."""
    Engine(1).fit(DataLoader(Lines(), batch_size=4))


def slow_sampler():
    """The sampler itself asks a service for the next indices."""

    class Asks:
        def __iter__(self):
            for index in range(100_000):
                if my_turn(index):
                    at_pipe()
                yield [4 * index + one for one in range(4)]

    Engine(1).fit(DataLoader(Rows(None, 1_000_000), batch_sampler=Asks(), num_workers=0))


def slow_collate():
    """The function that puts a batch together waits."""

    def collate(rows):
        if my_turn(int(collate.count)):
            at_lock()
        collate.count += 4
        return torch.stack(rows)

    collate.count = 0
    Engine(1).fit(loader(Rows(None), collate_fn=collate))


class SlowRows(Rows):
    def __getitem__(self, index):
        if index < 16:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                sorted(range(1000))
        return torch.full((16,), float(index % 7))


def first_batch():
    """Healthy: the first batches take seconds, while the dataset's cache is built."""
    Engine().fit(loader(SlowRows(None), num_workers=1), 240)


def new_workers():
    """Healthy: workers are started anew in each short epoch, with accumulation."""
    engine = Engine(2)
    for epoch in range(5):
        data = loader(Rows(None, 240), num_workers=2)
        data.sampler.set_epoch(epoch)
        engine.fit(data)


def uneven_samples():
    """Healthy: some samples take a hundred times longer than others."""

    class Uneven(Rows):
        def __getitem__(self, index):
            time.sleep(0.2 if index % 49 == 0 else 0.002)
            return torch.full((16,), float(index % 7))

    Engine(1).fit(loader(Uneven(None), num_workers=2), 250)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
