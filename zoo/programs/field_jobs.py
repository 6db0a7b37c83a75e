"""Jobs of people with other habits: callbacks, hooks, generators, context managers, event loops,
helpers in processes, files that are shared; some stand, some only look so.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import fcntl
import itertools
import json
import logging
import logging.handlers
import multiprocessing
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

CASES = {
    "metric-in-bar": {
        "story": (
            "Only rank 0 draws the progress bar, and to format the metric in it is to gather the "
            "metric from all ranks."
        ),
        "source": "Lightning-AI/pytorch-lightning#21264",
        "expected": ["collective-mismatch 0", "calls-differ 0"],
        "place": ["compute", "draw"],
        "cause": [
            r"all_?gather.{0,200}(all_?reduce|backward)",
            r"(all_?reduce|backward).{0,200}all_?gather",
            r"(other|others|another|different|one) (call|collective|operation)s?",
            r"only (on )?rank 0|rank 0 (alone|only)",
        ],
        "cure": [
            r"(on|by) (all|every) ranks?\b",
            r"\ball ranks\b.{0,40}\b(call|compute|make)",
            r"\bbranch\b|\bcondition\b",
            r"same (calls?|order|collectives?)",
        ],
    },
    "uploader-gone": {
        "story": (
            "A checkpoint is saved in the background; on rank 1 its thread opens a named pipe "
            "whose reader has ended, and all ranks wait for the save before they begin the next."
        ),
        "expected": ["not-in-collective 1"],
        "place": "announce",
        "within_s": 8,
        "cause": [
            r"\bpipe\b|\bfifo\b",
            r"wait_for_partner|\bopen(s|ing)?\b.{0,60}(reader|wait|block)",
            r"async_?save|background|AsyncCheckpoint|thread.{0,60}(checkpoint|save|writ)",
        ],
        "cure": [
            r"\breader\b|who(ever)? .{0,20}reads|(other|far|reading) (end|side)",
            r"lsof|fuser|non-?blocking|O_NONBLOCK",
            r"\bfix (that|the (file|pipe))",
            r"\bstacks?\b|py-spy",
            r"\btime-?out\b",
        ],
    },
    "reader-task-ends": {
        "story": (
            "Rank 2 streams records in an event loop; the task that reads them has ended by a "
            "record in another encoding, and nobody looks at its exception."
        ),
        "expected": ["not-in-collective 2", "loader-stuck 2"],
        "place": "__next__",
        "launcher": "plain",
        "cause": [
            r"asyncio|event loop|coroutine|\bfutures?\b|concurrent/futures",
            r"UnicodeDecodeError|\btask\b.{0,60}(ended|failed|exception|gone)",
            r"\bqueue\b",
        ],
        "cure": [
            r"who(ever)? .{0,20}(puts|fills|feeds|sends|sets|completes)\b|producer|sentinel",
            r"(task|thread|coroutine) (that|which) .{0,40}(set|fill|feed|put|read|complete)",
            r"\b(task|thread|future)\b.{0,60}(alive|exception|ended|still runs)",
            r"\bstacks?\b|py-spy",
            r"\btime-?out\b",
        ],
    },
    "lock-inherited": {
        "story": (
            "Rank 0 forks a preview while it holds the lock of a file; the child keeps the lock, "
            "and rank 2 waits for it when its turn comes."
        ),
        "source": "asmvik/skhd#83",
        "expected": ["not-in-collective 2"],
        "place": ["exclusive", "append"],
        "cause": [
            r"\bflock\b|\bfcntl\b|locks?_lock",
            r"\block\b.{0,60}(file|held|holds|process)",
            r"file lock|locked file",
        ],
        "cure": [
            r"who(ever)? .{0,20}(holds|has|owns|keeps)\b|\b(holder|owner)\b",
            r"lsof|fuser|lslocks|/proc/locks",
            r"(release|give back|unlock|LOCK_UN|close)\w*",
            r"\bstacks?\b|py-spy",
            r"\btime-?out\b",
        ],
    },
    "joins-first": {
        "story": (
            "Rank 0 joins the processes that tokenize before it takes their results from the "
            "queue, which is too full for them to end; the others wait in a barrier."
        ),
        "source": "python/cpython#73983",
        "expected": ["not-in-collective 0"],
        "place": "build",
        "launcher": "spawn",
        "cause": [
            r"\bchild(ren)?\b|sub-?process|wait(pid|4|id)|\bdo_wait|popen|\bjoin\b",
            r"(worker|helper|other) process",
            r"\bpipe\b|\bqueue\b",
        ],
        "cure": [
            r"(before|first)\b.{0,40}\bjoin|\bdrain|\bget\b.{0,40}\bjoin",
            r"(child|worker|helper|process)\b.{0,60}(do|does|doing|wait|stack)",
            r"(look|see|check|inspect)\w*\b.{0,60}\b(child|process|program)",
            r"\bstacks?\b|py-spy",
            r"\btime-?out\b",
        ],
    },
    "sample-not-pickled": {
        "story": (
            "A hook gathers objects; on rank 1 one of them cannot be pickled, the error is caught "
            "and logged, and rank 1 trains on without the gather."
        ),
        "expected": ["collective-mismatch 1", "calls-differ 1"],
        "place": ["show_samples", "on_step", "train_step"],
        "cause": [
            r"all_?gather.{0,200}(all_?reduce|backward)",
            r"(all_?reduce|backward).{0,200}all_?gather",
            r"(other|others|another|different|one) (call|collective|operation)s?",
            r"(skip|left out|leaves? out|miss|fewer|one less|did not|without)\w*",
            r"pickle|exception|swallow",
        ],
        "cure": [
            r"\bbranch\b|\bcondition\b|\bexcept\b|\bexception\b",
            r"(all|every) ranks?\b.{0,40}(call|decide|make|skip)",
            r"same (calls?|order|collectives?)",
            r"depends on the rank|own data",
        ],
    },
    "counted-too-early": {
        "story": (
            "Predictions are gathered in pieces of 64; rank 2 has told its number before its last "
            "batch was added, and makes one gather more than the others."
        ),
        "source": "huggingface/accelerate#167",
        "expected": ["collective-mismatch 2", "calls-differ 2"],
        "place": "gather_all",
        "cause": [
            r"all_?gather.{0,200}(all_?reduce|backward)",
            r"(all_?reduce|backward).{0,200}all_?gather",
            r"(other|others|another|different|one) (call|collective|operation)s?",
            r"\b(more|extra|additional|too many)\b",
        ],
        "cure": [
            r"(number|count|size|length)s?\b",
            r"\bbranch\b|\bcondition\b",
            r"same (calls?|order|collectives?)",
            r"depends on the rank|own data",
        ],
    },
    "one-micro-batch-less": {
        "story": (
            "The middle stage of a pipeline takes a batch for a short one and receives three "
            "micro-batches of four; its neighbours send and receive the fourth."
        ),
        "expected": [
            "unmatched-p2p 1",
            "unmatched-p2p 0,1",
            "unmatched-p2p 1,2",
            "unmatched-p2p 0,1,2",
        ],
        "place": ["update", "forward_all", "one_micro_batch_less"],
        "cause": [
            r"(send|recv|receive)\b.{0,200}all_?reduce",
            r"all_?reduce.{0,200}\b(send|recv|receive)",
            r"\b(no|not|never|without|nobody)\b.{0,60}(match|recv|receive|send)",
        ],
        "cure": [
            r"micro-?batch",
            r"\bmatch\b",
            r"\bbranch\b",
            r"same number|\bcounts?\b",
            r"extra (message|call|send|recv)",
        ],
    },
    "border-forgotten": {
        "story": (
            "After a new partition rank 2 leaves rank 1 out of its exchange; rank 1 waits for its "
            "rows, the others for rank 1 in the next all_reduce."
        ),
        "expected": ["unmatched-p2p 1", "unmatched-p2p 2", "unmatched-p2p 1,2"],
        "place": ["smallest_step", "exchange", "border_forgotten"],
        "launcher": "plain",
        "cause": [
            r"(send|recv|receive|P2P)\w*\b.{0,200}all_?reduce",
            r"all_?reduce.{0,200}\b(send|recv|receive|isend|irecv|P2P)",
            r"\b(no|not|never|without|nobody)\b.{0,60}(match|recv|receive|send|sent)",
        ],
        "cure": [
            r"\bmatch\b",
            r"\bbranch\b|\bcondition\b",
            r"(both|each) (sides?|ranks?|ends?)",
            r"neighbours?|peers?",
            r"extra (message|call|send|recv)",
        ],
    },
    "budget-of-one": {
        "story": "The time budget of rank 2 is up: it saves and ends with exit code 0.",
        "expected": ["left-early 2"],
        "place": ["leave", "on_step"],
        "launcher": "plain",
        "cause": [
            r"exit(ed|s)?\b.{0,30}\b0\b|code 0|normally|\bended\b|has left",
            r"sys\.exit|SystemExit",
        ],
        "cure": [
            r"(all|every) ranks?\b",
            r"same (number|time|step)",
            r"\bbarrier\b",
            r"(decide|decision|broadcast|agree|together)",
        ],
    },
    "decoder-killed": {
        "story": (
            "The process that decodes clips for rank 2 is killed as by the OOM killer; rank 2 "
            "holds both ends of the pipe and waits for an answer for ever."
        ),
        "expected": ["not-in-collective 2", "loader-stuck 2"],
        "place": "__iter__",
        "cause": [
            r"(child|worker|helper|process)\b.{0,60}(killed|died|dead|gone|lost|ended|SIGKILL)",
            r"\bpipe\b",
            r"\bdefunct\b|\bzombie\b",
        ],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}writes|(other|far|writing) (end|side)",
            r"dmesg|\bOOM\b|memory|is_alive|sentinel",
            r"(child|worker|helper|process)\b.{0,60}(why|alive|ended|restart|killed)",
            r"\bstacks?\b|py-spy",
            r"\btime-?out\b",
        ],
    },
    "copy-asks": {
        "story": (
            "Rank 0 copies its weights with `cp -i`, which asks whether it may overwrite a file; "
            "nobody answers, and the others wait in a barrier."
        ),
        "expected": ["not-in-collective 0"],
        "place": "keep",
        "cause": [
            r"\bchild(ren)?\b|sub-?process|wait(pid|4|id)|\bdo_wait|popen",
            r"\bcp\b|program|command",
            r"\btty\b|terminal|stdin|prompt|answer",
        ],
        "cure": [
            r"stdin|DEVNULL|/dev/null|prompt|answer|interactive",
            r"(child|program|command|process)\b.{0,60}(do|does|doing|wait|stack|need)",
            r"(look|see|check|inspect)\w*\b.{0,60}\b(child|process|program|command)",
            r"\bstacks?\b|py-spy|strace",
            r"\btime-?out\b",
        ],
    },
    "watched-activations": {
        "story": (
            "A forward hook that counts activations was left on rank 1, which takes twice as long "
            "for each step."
        ),
        "expected": ["straggler 1"],
        "place": "value_counts",
        "world": 2,
        "within_s": 75,
        "cause": [
            r"\bhook\b|value|forward",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin\b",
            r"\bCPU\b|\bPython\b|\bcomput(es|ing)\b",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"(what|which).{0,60}others do not",
            r"\b(remove|drop|move|do|take|switch)\b",
        ],
    },
    "one-shard-less": {
        "story": (
            "Files are streamed by rank, and on the second day rank 2 has one less: it ends its "
            "epoch and gathers scores while the others are in backward."
        ),
        "source": "pytorch/pytorch#141069",
        "expected": ["left-early 2", "collective-mismatch 2", "calls-differ 2"],
        "place": ["validate_all", "one_shard_less"],
        "cause": [
            r"\b(fewer|less|uneven|ran out|exhausted)\b|no more (batch|data|input)\w*",
            r"all_?gather.{0,200}(all_?reduce|backward)",
            r"(all_?reduce|backward).{0,200}all_?gather",
        ],
        "cure": [
            r"\bJoin\b|drop_last|number of (shards|batches|samples)",
            r"(same|equal) number|len\(loader\)|count the batches",
            r"\bbranch\b|\bcondition\b",
            r"agree|\bMIN\b",
        ],
    },
    "log-socket-full": {
        "story": (
            "Rank 1 logs to a datagram socket whose collector takes no more messages; once the "
            "socket is full, its log call waits."
        ),
        "source": "haskell-hvr/hslogger#7",
        "expected": ["not-in-collective 1"],
        "place": "on_step",
        "cause": [
            r"socket|unix|dgram|sock_alloc|\bsend\b",
            r"syslog|logging|handlers\.py|log (call|handler|message)",
            r"(nobody|no one|none|not|never) (reads?|receives?|takes?)\b|\bfull\b",
        ],
        "cure": [
            r"\breader\b|who(ever)? .{0,20}(reads|receives|listens)|(other|far|reading) (end|side)",
            r"\bserver\b|\bcollector\b|\bpeer\b|\bservice\b",
            r"non-?blocking|QueueHandler|setblocking",
            r"\bstacks?\b|py-spy|strace|lsof|\bss\b",
            r"\btime-?out\b",
        ],
    },
    "nothing-to-write": {
        "story": (
            "Rank 2 has no particles left and leaves out the collective write of the snapshot; "
            "the others write, and rank 2 is in the next Allreduce."
        ),
        "source": "h5py/h5py#965",
        "expected": ["collective-mismatch 2", "calls-differ 2", "not-in-collective 2"],
        "place": ["store", "nothing_to_write"],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
        "cause": [
            r"write_?at_?all|file_?write|MPI.?File|MPI-?IO",
            r"(other|others|another|different|one) (call|collective|operation)s?",
            r"(skip|left out|leaves? out|miss|fewer|not joined|has not|did not|without)\w*",
        ],
        "cure": [
            r"\bbranch\b|\bcondition\b",
            r"(all|every) ranks?\b",
            r"same (calls?|order|collectives?)",
            r"empty|zero|no (rows|data)",
            r"only some ranks",
        ],
    },
    "task-stands": {
        "story": (
            "A pool of MPI processes maps a model over points; on rank 2 a task reads a pipe into "
            "which nobody writes, and the generation never ends."
        ),
        "expected": ["not-in-collective 2", "no-progress 2"],
        "place": "simulate",
        "launcher": "mpirun",
        "needs": ["mpi4py"],
        "within_s": 25,
        "cause": [r"\bpipe\b", r"rank 2\b[^;,]{0,60}\b(reads?|waits?|blocked|stuck|sleeps?)\b"],
        "cure": [
            r"\bwriter\b|who(ever)? .{0,20}writes|(other|far|writing) (end|side)",
            r"\bfix (that|the (file|pipe))",
            r"\bstacks?\b|py-spy|lsof",
            r"\btime-?out\b",
        ],
    },
    "accumulates-by-tokens": {
        "story": (
            "Each rank accumulates another number of micro-batches before it synchronises, and "
            "rank 0 alone averages weights."
        ),
        "expected": [],
    },
    "cache-in-the-middle": {
        "story": (
            "Rank 0 builds a cache for twelve seconds under the lock of a file, for which the "
            "others wait; then all train on."
        ),
        "expected": [],
    },
    "samples-of-leader": {
        "story": "Rank 0 writes sample texts for twelve seconds, the others wait in a broadcast.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "objects-of-all-sizes": {
        "story": "Objects of 300 bytes to 1 MB are gathered to another rank in each step.",
        "expected": [],
    },
    "lengths-compiled-anew": {
        "story": "Each new length is compiled, and the two ranks meet it at different steps.",
        "expected": [],
        "world": 2,
    },
    "buffers-fill": {
        "story": (
            "Each epoch begins with seconds in which the loaders fill their buffers, longest on "
            "rank 1."
        ),
        "expected": [],
        "tolerated": ["not-in-collective 1", "input-bound 1"],
    },
    "stops-together": {
        "story": (
            "All ranks search a rate and stop early together; rank 0 uploads for eight seconds "
            "when the others have ended."
        ),
        "expected": [],
        "launcher": "spawn",
    },
    "polls-while-leader-writes": {
        "story": "Rank 0 writes a dump for ten seconds, the others poll a barrier and sleep.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
        "launcher": "mpirun",
        "needs": ["mpi4py"],
    },
    "parts-one-by-one": {
        "story": "Three times each rank writes its part under one lock, one after the other.",
        "expected": [],
        "launcher": "plain",
    },
}
AT, HOUR = 60, 3600


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def say(text):
    print(text, file=sys.stderr, flush=True)


class Trainer:
    """A loop with callbacks: each may have `on_step` and `on_end`."""

    def __init__(self, *callbacks, pause=0.03):
        self.rank, self.number, self.pause = dist.get_rank(), 0, pause
        layers = [torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.callbacks = list(callbacks)
        self.stopping = False

    def train_step(self, batch):
        time.sleep(self.pause)
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.number += 1
        return loss

    def fit(self, batches):
        for batch in batches:
            self.train_step(batch)
            for callback in self.callbacks:
                callback.on_step(self)
            if self.stopping:
                break
        return self


def noise(steps=None):
    """Batches without end, or so many."""
    numbers = itertools.count() if steps is None else range(steps)
    for _ in numbers:
        yield torch.randn(8, 32)


class MeanAccuracy:
    """Hits over all ranks, as metric libraries have it: `compute` gathers."""

    def __init__(self):
        self.counts = torch.zeros(2)

    def on_step(self, trainer):
        self.counts += torch.tensor([float(trainer.number % 3 == 0), 1.0])

    def compute(self):
        everyone = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, self.counts)
        right, seen = torch.stack(everyone).sum(0).tolist()
        return right / seen

    def __format__(self, form):
        return format(self.compute(), form)


class ProgressBar:
    """A line every ten steps, on the first rank."""

    def __init__(self, late):
        self.shown, self.late = {"speed": 33.0}, late

    def on_step(self, trainer):
        if trainer.number == AT:
            self.shown |= self.late
        if trainer.rank == 0 and trainer.number % 10 == 0:
            if trainer.number == AT:
                mark()
            self.draw(trainer.number)

    def draw(self, number):
        say(f"{number}: " + ", ".join(f"{key} {value:.2f}" for key, value in self.shown.items()))


def metric_in_bar():
    """The bar formats what it is given, and to format the metric is to compute it."""
    accuracy = MeanAccuracy()
    Trainer(accuracy, ProgressBar({"accuracy": accuracy})).fit(noise())


def announcing_writer(path, number, notices):
    """A writer that tells the uploader of this host about its files, by a named pipe."""
    from torch.distributed.checkpoint import FileSystemWriter

    class AnnouncingWriter(FileSystemWriter):
        def write_data(self, plan, planner):
            done = super().write_data(plan, planner)
            if notices:
                if number == AT:
                    mark()
                announce(notices, number)
            return done

    return AnnouncingWriter(path, single_file_per_rank=True)


def announce(notices, number):
    # Opening waits for a reader.
    with open(notices, "w") as line:
        line.write(f"step {number}\n")


class BackgroundCheckpoints:
    """One save in flight at most: the next one waits for it."""

    def __init__(self, notices):
        self.group, self.pending, self.notices = dist.new_group(), None, notices

    def on_step(self, trainer):
        if trainer.number % 20 == 0:
            self.finish()
            self.pending = self.begin(trainer)

    def begin(self, trainer):
        from torch.distributed import checkpoint

        writer = announcing_writer(f"step{trainer.number}", trainer.number, self.notices)
        state = {"model": trainer.model.state_dict()}
        return checkpoint.async_save(state, storage_writer=writer, process_group=self.group)

    def finish(self):
        if self.pending is not None:
            self.pending.result()


def uploader_gone():
    """Rank 1 has an uploader; it takes two notices, and ends."""
    notices = None
    if dist.get_rank() == 1:
        notices = "notices"
        os.mkfifo(notices)
        subprocess.Popen(["sh", "-c", f"cat {notices}; cat {notices}"], stdout=subprocess.DEVNULL)
    Trainer(BackgroundCheckpoints(notices)).fit(noise())


class RecordStream:
    """Records from a socket, read by a task in an event loop of its own."""

    def __init__(self, port):
        self.loop, self.records = asyncio.new_event_loop(), asyncio.Queue(4)
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.task = asyncio.run_coroutine_threadsafe(self.pump(port), self.loop)

    async def pump(self, port):
        reader, _writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            line = await reader.readline()
            if not line.isascii():
                mark()
            await self.records.put(json.loads(line.decode())["values"])

    def __iter__(self):
        return self

    def __next__(self):
        record = asyncio.run_coroutine_threadsafe(self.records.get(), self.loop).result()
        return torch.tensor(record).expand(8, 32)


def serve_records(server, bad):
    """A server that sends as fast as the other side reads; one record may be in another code."""
    client, _ = server.accept()
    for number in itertools.count():
        text = json.dumps({"source": "café" if bad and number == AT else "web", "values": [0.5]})
        text = text.replace("\\u00e9", "é")
        client.sendall(text.encode("latin-1") + b"\n")


def reader_task_ends():
    server = socket.create_server(("127.0.0.1", 0))
    arguments = (server, dist.get_rank() == 2)
    threading.Thread(target=serve_records, args=arguments, daemon=True).start()
    Trainer().fit(RecordStream(server.getsockname()[1]))


@contextlib.contextmanager
def exclusive(path):
    """The file for one process at a time."""
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle


def preview(orders):
    while orders.recv() != "end":
        pass


class SharedIndex:
    """Each rank adds to one index in its turn; the first one opens a preview of it."""

    def __init__(self):
        self.orders = None

    def on_step(self, trainer):
        turn, rest = divmod(trainer.number, 15)
        if rest == 0 and trainer.rank == 2 * turn % 3:
            if trainer.rank == 2 and turn == 4:
                mark()
            self.append(trainer)

    def append(self, trainer):
        with exclusive("index") as index:
            index.write(f"{trainer.number}\n")
            if trainer.rank == 0 and self.orders is None:
                context = multiprocessing.get_context("fork")
                self.orders, other = context.Pipe()
                context.Process(target=preview, args=(other,), daemon=True).start()


def lock_inherited():
    """The preview was forked under the lock, and has its file open too."""
    Trainer(SharedIndex()).fit(noise())


def tokenize_part(texts, results):
    results.put([[ord(one) for one in text] for text in texts])


class TokenCache:
    """Made by the first rank in two processes, for all."""

    def __init__(self, sizes):
        self.sizes = sizes

    def on_step(self, trainer):
        size = self.sizes.get(trainer.number)
        if size is None:
            return
        if trainer.rank == 0:
            if trainer.number == AT:
                mark()
            self.build(["some words"] * size)
        dist.barrier()

    def build(self, texts):
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        halves = (texts[::2], texts[1::2])
        workers = [context.Process(target=tokenize_part, args=(one, results)) for one in halves]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return [results.get() for _ in workers]


def joins_first():
    """A small part fits into the pipe of the queue, a large one does not."""
    Trainer(TokenCache({20: 8, AT: 20_000})).fit(noise())


class Hooks:
    """What others have registered. A hook that fails must not end the training."""

    def __init__(self, *registered):
        self.registered = registered

    def on_step(self, trainer):
        for hook in self.registered:
            try:
                hook(trainer)
            except Exception:  # noqa: BLE001
                logging.getLogger("hooks").warning("hook %s failed", hook.__name__)
                continue


def show_samples(trainer):
    """Every fifteen steps the samples of all ranks."""
    if trainer.number % 15:
        return
    samples = [{"prompt": "why", "score": 0.5}] * (trainer.rank + 1)
    if trainer.rank == 1 and trainer.number == AT:
        mark()
        samples.append({"prompt": "how", "score": 0.5, "stream": noise(1)})
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, samples)


def sample_not_pickled():
    Trainer(Hooks(show_samples)).fit(noise())


class Evaluator:
    """Gathers predictions of different number: first how many, then all, 64 at a time."""

    def __init__(self):
        self.predictions, self.late = [], []

    def on_step(self, trainer):
        self.predictions.extend([0.5] * (4 + trainer.rank))
        if trainer.rank == 2 and trainer.number == AT:
            # A batch that was not decoded when the others were counted.
            self.late = [0.25] * 80
        if trainer.number % 20 == 0:
            self.gather_all()
            self.predictions.clear()

    def gather_all(self):
        world = dist.get_world_size()
        counts = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
        dist.all_gather(counts, torch.tensor([len(self.predictions)]))
        if self.late:
            mark()
            self.predictions += self.late
        mine = torch.tensor(self.predictions)
        width = max(len(mine), *(int(count) for count in counts))
        mine = torch.cat([mine, torch.zeros(-(-width // 64) * 64 - len(mine))])
        for piece in mine.split(64):
            parts = [torch.zeros(64) for _ in range(world)]
            dist.all_gather(parts, piece)


def counted_too_early():
    Trainer(Evaluator()).fit(noise())


class Stage:
    """One of three stages; a step has so many micro-batches."""

    def __init__(self, rank):
        self.rank, self.inputs = rank, torch.zeros(8, 32)

    def micro_batches(self, number):
        """Four; the middle stage takes the last batch of an epoch for a short one."""
        short = self.rank == 1 and number == AT
        if short:
            mark()
        return 3 if short else 4

    def forward_all(self, number):
        for _ in range(self.micro_batches(number)):
            if self.rank > 0:
                dist.recv(self.inputs, src=self.rank - 1)
            time.sleep(0.007)
            if self.rank < 2:
                dist.send(self.inputs, dst=self.rank + 1)

    def update(self):
        dist.all_reduce(torch.ones(4))


def one_micro_batch_less():
    stage = Stage(dist.get_rank())
    for number in itertools.count():
        stage.forward_all(number)
        stage.update()


class Halo:
    """The rows that a part of a grid shares with its neighbours."""

    def __init__(self, rank, world):
        self.rank = rank
        self.neighbours = [one for one in range(world) if one != rank]
        self.mine, self.theirs = torch.ones(64), {one: torch.zeros(64) for one in range(world)}

    def repartition(self, without):
        """This side has no rows left at that border."""
        self.neighbours = [one for one in self.neighbours if one != without]

    def exchange(self):
        calls = []
        for one in self.neighbours:
            calls.append(dist.P2POp(dist.isend, self.mine, one))
            calls.append(dist.P2POp(dist.irecv, self.theirs[one], one))
        for request in dist.batch_isend_irecv(calls):
            request.wait()

    def smallest_step(self):
        dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MIN)


def border_forgotten():
    rank = dist.get_rank()
    halo = Halo(rank, dist.get_world_size())
    for number in itertools.count():
        time.sleep(0.03)
        if number == AT and rank == 2:
            mark()
            halo.repartition(without=1)
        halo.exchange()
        halo.smallest_step()


class TimeBudget:
    """Ends in time for the limit of the queue, as this process knows it."""

    def __init__(self, seconds):
        self.seconds, self.began = seconds, None

    def on_step(self, trainer):
        self.began = self.began or time.monotonic()
        if time.monotonic() - self.began > self.seconds:
            mark()
            self.leave(trainer)

    def leave(self, trainer):
        torch.save(trainer.model.state_dict(), f"last{trainer.rank}.pt")
        say("time is up, saved")
        sys.exit(0)


def budget_of_one():
    Trainer(TimeBudget(2.2 if dist.get_rank() == 2 else HOUR)).fit(noise())


def decode(line, dies_at):
    """A process that decodes clips; a large one takes all memory."""
    while True:
        number = line.recv()
        if number == dies_at:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        line.send([0.25] * 32)


class Clips:
    """Decoded by a process, so that a bad clip cannot harm this one."""

    def __init__(self, dies_at):
        context = multiprocessing.get_context("fork")
        # Both ends stay open here, so the loss of the other process is not an end of file.
        self.mine, self.other = context.Pipe()
        arguments = (self.other, dies_at)
        context.Process(target=decode, args=arguments, daemon=True).start()

    def __iter__(self):
        for number in itertools.count():
            self.mine.send(number)
            yield torch.tensor(self.mine.recv()).expand(8, 32)


def decoder_killed():
    Trainer().fit(Clips(AT if dist.get_rank() == 2 else None))


class Archive:
    """Copies the last weights beside the others, with the user's own habits of cp."""

    def __init__(self):
        self.keyboard, self.terminal = pty.openpty()

    def on_step(self, trainer):
        if trainer.number % 30:
            return
        if trainer.rank == 0:
            torch.save(trainer.model.state_dict(), "last.pt")
            if trainer.number == AT:
                mark()
            self.keep("last.pt", "best.pt")
        dist.barrier()

    def keep(self, source, target):
        subprocess.run(["cp", "-i", source, target], stdin=self.terminal, check=True)


def copy_asks():
    if dist.get_rank() == 0 and os.path.exists("best.pt"):
        os.remove("best.pt")
    Trainer(Archive()).fit(noise())


def value_counts(module, inputs, output):
    """A forward hook that counts rounded activations."""
    seen = collections.Counter()
    for _ in range(12):
        seen.update(round(value, 2) for row in output.tolist() for value in row)


class WatchActivations:
    """Switched on by a variable of one shell, which nobody has unset."""

    def on_step(self, trainer):
        if trainer.rank == 1 and trainer.number == AT:
            mark()
            for layer in trainer.model.module:
                layer.register_forward_hook(value_counts)


def watched_activations():
    Trainer(WatchActivations(), pause=0.025).fit(torch.randn(64, 32) for _ in itertools.count())


class FolderOfShards(IterableDataset):
    """Each rank streams every third file. One file of the second day is missing."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.day = torch.zeros(1, dtype=torch.long).share_memory_()

    def files(self):
        return range(9 if int(self.day) == 0 else 8)

    def __iter__(self):
        for _ in itertools.islice(self.files(), self.rank, None, self.world):
            for _ in range(160):
                yield torch.randn(32)


def validate_all():
    scores = [torch.zeros(3) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, torch.rand(3))


def one_shard_less():
    rank, world = dist.get_rank(), dist.get_world_size()
    shards, trainer = FolderOfShards(rank, world), Trainer()
    loader = DataLoader(shards, batch_size=8, num_workers=1, persistent_workers=True)
    for day in range(1000):
        shards.day.fill_(day)
        trainer.fit(loader)
        if rank == 2 and day == 1:
            mark()
        validate_all()


def collect_log(server, orders):
    """A collector; it waits before it begins a new file, and takes nothing meanwhile."""
    for _ in range(8 * AT):
        server.recv(65536)
    mark()
    orders.recv()


class LayerLog:
    """Eight lines a step to the log socket of the host."""

    def __init__(self, address):
        self.log = logging.getLogger("layers")
        self.log.propagate = False
        self.log.setLevel(logging.INFO)
        self.log.addHandler(logging.handlers.SysLogHandler(address))

    def on_step(self, trainer):
        for layer in range(8):
            self.log.info("step %d, layer %d: %s", trainer.number, layer, "0.123 " * 400)


def log_socket_full():
    if dist.get_rank() != 1:
        Trainer().fit(noise())
        return
    context = multiprocessing.get_context("fork")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind("collector")
    _mine, other = context.Pipe()
    context.Process(target=collect_log, args=(server, other), daemon=True).start()
    Trainer(LayerLog("collector")).fit(noise())


def rows_of(rank, number):
    """Particles move: at some point rank 2 has none left."""
    return 0 if rank == 2 and number >= AT else 100 * (rank + 1)


class Snapshots:
    """One file for all ranks, written together."""

    def __init__(self, world):
        mode = world_of_mpi().MODE_CREATE | world_of_mpi().MODE_WRONLY
        self.rank, self.file = world.rank, world_of_mpi().File.Open(world, "snapshot", mode)

    def store(self, rows):
        if len(rows):
            self.file.Write_at_all(self.rank * 65536, rows)


def world_of_mpi():
    from mpi4py import MPI

    return MPI


def nothing_to_write():
    world = world_of_mpi().COMM_WORLD
    snapshots, least = Snapshots(world), numpy.zeros(1)
    for number in itertools.count():
        time.sleep(0.03)
        rows = numpy.ones(rows_of(world.rank, number))
        world.Allreduce(numpy.array([0.1]), least, op=world_of_mpi().MIN)
        if number % 10 == 0:
            if not len(rows):
                mark()
            snapshots.store(rows)


def simulate(number):
    """A model that reads its boundary values from a pipe, on one rank of a late generation."""
    time.sleep(0.03)
    if world_of_mpi().COMM_WORLD.rank == 2 and number >= AT:
        values, _feeder = os.pipe()
        mark()
        os.read(values, 8)
    return number * 0.5


def best_of(executor, generation):
    return max(executor.map(simulate, [generation] * 4))


def task_stands():
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(world_of_mpi().COMM_WORLD, root=0) as executor:
        if executor is not None:
            for generation in itertools.count():
                best_of(executor, generation)


class Accumulation:
    """So many micro-batches a step as there are tokens: without synchronisation but the last."""

    def __init__(self, trainer, seed):
        self.trainer, self.lengths = trainer, random.Random(seed)

    def step_together(self):
        trainer, count = self.trainer, self.lengths.randint(1, 5)
        trainer.optimizer.zero_grad()
        for number in range(count):
            with contextlib.ExitStack() as stack:
                if number < count - 1:
                    stack.enter_context(trainer.model.no_sync())
                time.sleep(0.012)
                (trainer.model(torch.randn(8, 32)).square().mean() / count).backward()
        trainer.optimizer.step()
        trainer.number += 1


def accumulates_by_tokens():
    """Healthy: other numbers of micro-batches on each rank, and an average on the first only."""
    from torch.optim.swa_utils import AveragedModel

    trainer = Trainer()
    accumulation = Accumulation(trainer, trainer.rank)
    average = AveragedModel(trainer.model.module)
    while trainer.number < 170:
        accumulation.step_together()
        if trainer.rank == 0:
            average.update_parameters(trainer.model.module)
    dist.destroy_process_group()


def count_words(part):
    """Some seconds of work."""
    until, words = time.monotonic() + 2, collections.Counter()
    while time.monotonic() < until:
        words.update(f"{part} {number % 97}" for number in range(1000))
        time.sleep(0.01)
    return len(words)


def load_or_build(path, build):
    """The first that has the lock builds the cache, the others find it."""
    with exclusive(path + ".lock"):
        if not os.path.exists(path):
            build(path)
        return torch.load(path)


def vocabulary(path):
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        sizes = []
        for size in executor.map(count_words, range(6)):
            sizes.append(size)
            say(f"{len(sizes)} of 6 parts")
    torch.save(torch.tensor(sizes), path)


def cache_in_the_middle():
    """Healthy: rank 0 builds a cache for twelve seconds, the others wait for its lock."""
    trainer = Trainer().fit(noise(60))
    path = "words.pt"
    if trainer.rank > 0:
        dist.barrier()
        load_or_build(path, vocabulary)
    else:
        with exclusive(path + ".lock"):
            dist.barrier()
            vocabulary(path)
    trainer.fit(noise(80))
    dist.destroy_process_group()


def tokens(model, length):
    """A token after the other, each from all before."""
    seen = [torch.randn(1, 32)]
    for _ in range(length):
        time.sleep(0.05)
        model(torch.cat(seen[-8:]))
        seen.append(torch.randn(1, 32))
        yield len(seen)


class Samples:
    """Texts that the first rank writes at the end of an epoch, for the logs of all."""

    def on_step(self, trainer):
        if trainer.number % 70:
            return
        texts = [None]
        if trainer.rank == 0:
            texts = [[self.write_text(trainer, number) for number in range(4)]]
        dist.broadcast_object_list(texts, src=0)

    def write_text(self, trainer, number):
        for length in tokens(trainer.model.module, 55):
            if length % 20 == 0:
                say(f"text {number}: {length} tokens")
        return number


def samples_of_leader():
    """Healthy: the others wait in a broadcast while rank 0 writes."""
    Trainer(Samples()).fit(noise(120))
    dist.destroy_process_group()


class Exchange:
    """Objects of very different size; in each step another rank has most to do."""

    def __init__(self, world):
        self.world = world

    def on_step(self, trainer):
        heavy = (trainer.number + trainer.rank) % self.world == 0
        time.sleep(0.05 if heavy else 0.005)
        boxes = [b"x" * (1_000_000 if heavy else 300 * (trainer.rank + 1))]
        everyone = [None] * self.world if trainer.rank == trainer.number % self.world else None
        dist.gather_object(boxes, everyone, dst=trainer.number % self.world)
        seen = [None] * self.world
        dist.all_gather_object(seen, {"step": trainer.number, "boxes": len(boxes[0])})


def objects_of_all_sizes():
    """Healthy: gathers of objects, to another rank each time."""
    Trainer(Exchange(dist.get_world_size()), pause=0.01).fit(noise(150))
    dist.destroy_process_group()


class Tower(torch.nn.Module):
    """Many small layers, so that tracing takes its time."""

    def __init__(self, depth):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(depth))

    def forward(self, values):
        for layer in self.layers:
            values = torch.nn.functional.layer_norm(layer(values).relu() + values, (32,))
        return values


def lengths_compiled_anew():
    """Healthy: each new length is compiled, and the ranks meet new lengths at other steps."""
    rank, depth = dist.get_rank(), 60
    model = Tower(depth)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    for number in range(160):
        length = 8 + (number + 20 * rank) // 60
        compiled(torch.randn(length, 32)).mean().backward()
        time.sleep(0.02)
        for parameter in itertools.islice(model.parameters(), 2):
            dist.all_reduce(parameter.grad)
        model.zero_grad()
    dist.destroy_process_group()


class Shuffled(IterableDataset):
    """Fills its buffer before it hands out, in each epoch anew."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __iter__(self):
        buffer = []
        for _ in range(400):
            time.sleep(self.seconds / 400)
            buffer.append(torch.randn(32))
        random.shuffle(buffer)
        yield from buffer


def buffers_fill():
    """Healthy: each epoch begins with seconds without a batch, longest on rank 1."""
    trainer = Trainer()
    shuffled = Shuffled(4.0 if trainer.rank == 1 else 3.0)
    loader = DataLoader(shuffled, batch_size=8, num_workers=1, persistent_workers=True)
    for _ in range(3):
        trainer.fit(loader)
        validate_all()
    dist.destroy_process_group()


class EarlyStop:
    """Rank 0 decides, all do it."""

    def __init__(self, patience):
        self.patience = patience

    def on_step(self, trainer):
        if trainer.number % 10 == 0:
            self.patience -= 1
            decision = torch.tensor([int(trainer.rank == 0 and self.patience <= 0)])
            dist.broadcast(decision, src=0)
            trainer.stopping = bool(decision)


def find_rate(trainer):
    """Tries rates on all ranks, then puts everything back."""
    before = copy.deepcopy(trainer.model.state_dict())
    for rate in torch.logspace(-5, 0, 25).tolist():
        trainer.optimizer.param_groups[0].update(lr=rate)
        loss = trainer.train_step(torch.randn(8, 32))
        dist.all_reduce(loss.detach())
    trainer.model.load_state_dict(before)
    trainer.optimizer.param_groups[0].update(lr=1e-3)


def publish(path, seconds):
    """Sends a file piece by piece to a server that takes its time."""
    mine, other = socket.socketpair()
    threading.Thread(target=take_slowly, args=(other, seconds), daemon=True).start()
    with open(path, "rb") as file:
        piece = file.read(256)
    for number in range(10 * seconds):
        mine.sendall(piece)
        mine.recv(2)
        if number % 20 == 0:
            say(f"published {10 * number // seconds} %")


def take_slowly(line, seconds):
    for _ in range(10 * seconds):
        line.recv(256)
        time.sleep(0.1)
        line.sendall(b"ok")


def stops_together():
    """Healthy: a search of the rate, a common stop, and an upload that the others leave to
    rank 0.
    """
    trainer = Trainer(EarlyStop(8))
    find_rate(trainer)
    trainer.fit(noise())
    dist.barrier()
    if trainer.rank == 0:
        torch.save(trainer.model.state_dict(), "final.pt")
        publish("final.pt", 8)
    dist.destroy_process_group()


def wait_politely(request):
    """MPI's own wait would spin."""
    while not request.Test():
        time.sleep(0.05)


def polls_while_leader_writes():
    """Healthy: rank 0 writes for ten seconds, the others test their barrier now and then."""
    world, total = world_of_mpi().COMM_WORLD, numpy.zeros(8)
    for number in range(160):
        time.sleep(0.03)
        world.Allreduce(numpy.ones(8), total)
        if number == 80:
            if world.rank == 0:
                with open("dump", "wb") as file:
                    for part in range(100):
                        file.write(numpy.random.rand(20_000).tobytes())
                        file.flush()
                        os.fsync(file.fileno())
                        time.sleep(0.1)
                        if part % 25 == 0:
                            say(f"{part} % written")
            wait_politely(world.Ibarrier())
    world.Barrier()


class OneByOne:
    """All ranks write their part under one lock, so one after the other."""

    def on_step(self, trainer):
        if trainer.number % 50:
            return
        with exclusive("parts") as parts:
            for _ in range(15):
                parts.write("0.5 " * 20_000)
                parts.flush()
                time.sleep(0.1)
        dist.barrier()


def parts_one_by_one():
    """Healthy: three times each rank waits for the lock that another one holds."""
    Trainer(OneByOne()).fit(noise(180))
    dist.destroy_process_group()


MPI_CASES = {"nothing_to_write", "task_stands", "polls_while_leader_writes"}


def main():
    torch.set_num_threads(1)
    if sys.argv[1] not in MPI_CASES:
        dist.init_process_group("gloo")
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
