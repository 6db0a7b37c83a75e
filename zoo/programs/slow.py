"""Training that moves: with a rank that is late at most steps, with other things that cost time,
and with none.
"""

import ctypes
import gc
import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CASES = {
    "in-backward": {
        "story": "Rank 1 sleeps 0.2 s in each backward.",
        "expected": ["straggler 1"],
        "place": "in_backward",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps|sleeping)\b|\bin (a |its )?sleep\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
            r"\bin (its|the|a) (custom )?(backward|autograd|hook)\b",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\b(sleeps?|pause|wait)\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
        ],
        "world": 4,
        "within_s": 40.0,
    },
    "a-fifth": {
        "story": "Rank 0 takes a fifth longer than the others.",
        "source": "intelligent-machine-learning/dlrover#678",
        "expected": ["straggler 0"],
        "place": "a_fifth",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps|sleeping)\b|\bin (a |its )?sleep\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\b(sleeps?|pause|wait)\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
        ],
        "world": 2,
        "within_s": 75.0,
    },
    "busy-forward": {
        "story": "Rank 2 computes 40 ms more in Python before each forward.",
        "source": "deepspeedai/DeepSpeed#1617",
        "expected": ["straggler 2"],
        "place": ["occupied", "busy_forward"],
        "cause": [
            r"\bcomput(es|ing|ation)\b|\bbusy\b|\bPython code\b|\bCPU.bound\b",
            r"\b(on|of) (the |a )?(CPU|core)\b|\bCPU time\b|% CPU\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b|\bperf\b",
            r"\b(vectori[sz]e|precompute|speed up|faster|optimi[sz]e (it|the|this))\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
            r"\bbalance\b",
        ],
        "within_s": 40.0,
    },
    "in-between": {
        "story": "Rank 1 sleeps between backward and the optimizer.",
        "expected": ["straggler 1"],
        "place": "in_between",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps|sleeping)\b|\bin (a |its )?sleep\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
            r"\bbetween\b.{0,20}\bbackward\b.{0,30}\boptimizer\b",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\b(sleeps?|pause|wait)\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
        ],
        "world": 2,
        "within_s": 40.0,
    },
    "holds-the-lock": {
        "story": "Rank 1 is 40 ms in C code that holds the GIL, in each step.",
        "source": "pytorch/pytorch#116798",
        "expected": ["straggler 1"],
        "place": "holds_the_lock",
        "cause": [
            r"\bGIL\b|\binterpreter('s)? lock\b",
            r"\b(native|C) (code|call|function|extension)\b|\bctypes\b",
            r"\busleep\b|nanosleep|\b(asleep|sleeps|sleeping)\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
        ],
        "cure": [
            r"\breleas\w*\b.{0,20}\bGIL\b|\bwithout the GIL\b|\bnogil\b|\bCDLL\b",
            r"py-spy|\bprofil(e|er|ing)\b|\bperf\b|\bgdb\b|--native\b|--gil\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
        ],
        "within_s": 40.0,
    },
    "cleans-up": {
        "story": "Rank 0 collects garbage in each step, over many objects.",
        "source": "pytorch/torchtitan#148",
        "expected": ["straggler 0"],
        "place": "cleans_up",
        "cause": [r"\bgarbage\b|\bgc\b"],
        "cure": [
            r"gc\.(freeze|disable|set_threshold)",
            r"\bless often\b|\brarely\b|\bnot (in|at) (each|every) step\b|\bevery \w+ steps\b",
            r"\b(remove|drop|without|fewer|avoid)\b.{0,40}\b(gc\.collect|collections?|objects)\b",
            r"\b(all|every) ranks?\b.{0,40}\b(same (step|time)|at once|together)\b",
        ],
        "world": 2,
        "within_s": 40.0,
    },
    "two-of-four": {
        "story": "Two of four ranks are late in each step.",
        "source": "horovod/horovod#2026",
        "expected": ["straggler 0,3"],
        "place": "two_of_four",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps|sleeping)\b|\bin (a |its )?sleep\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\b(sleeps?|pause|wait)\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
        ],
        "world": 4,
        "within_s": 40.0,
    },
    "takes-turns": {
        "story": "Rank 0 is late at first, then rank 2.",
        "expected": ["straggler 2"],
        "place": "takes_turns",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps|sleeping)\b|\bin (a |its )?sleep\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\b(sleeps?|pause|wait)\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
        ],
        "within_s": 60.0,
    },
    "own-data": {
        "story": "The data of rank 1 is slower to read.",
        "source": "ultralytics/yolov5#5681",
        "expected": ["straggler 1"],
        "place": ["own_data", "__getitem__"],
        "cause": [
            r"\bdata ?(load\w*|sets?|fetch\w*)\b|__getitem__",
            r"\b(input|batch(es)?|data|sample|reads?)\b.{0,40}\b(slow\w*|late|longer|wait\w*)\b",
        ],
        "cure": [
            r"\bnum_workers\b|\bprefetch|\bmore workers\b|\bcach(e|ing)\b",
            r"\blocal (disk|copy|SSD)\b|\biostat\b",
            r"\b(look|check|compare|see|profile)\b.{0,60}\b(disk|storage|data|mount)\b",
            r"\b(look|check|compare|see|profile)\b.{0,60}\b(files?|dataset|__getitem__)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
        ],
        "within_s": 40.0,
    },
    "before-barrier": {
        "story": "No optimizer and no steps; rank 0 comes late to each barrier.",
        "expected": ["straggler 0"],
        "place": "before_barrier",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps|sleeping)\b|\bin (a |its )?sleep\b",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (its|the) (own )?(function|code)",
            r"\b(ms|s|%|late|longer|slower|time)\b.{0,60}\bin (own|this) (own )?(function|code)",
            r"\bbefore (the|each|its|every) barrier\b",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|\bprofil(e|er|ing)\b",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\b(sleeps?|pause|wait)\b",
            r"\b(move|do|take)\b.{0,40}\b(out of|outside|thread|all ranks|every rank)\b",
        ],
        "within_s": 40.0,
    },
    "one-by-one": {
        "story": "Each gradient is reduced on its own, and small.",
        "expected": ["sync-bound 0,1,2"],
        "place": "one_by_one",
        "cause": [
            r"\b(small|tiny)\b",
            r"\b(many|one by one|separate(ly)?|on its own)\b.{0,40}\b(all_?reduce|collective|call)",
            r"\b(many|one by one|separate(ly)?|on its own)\b.{0,40}\b(tensor|gradient)",
            r"\b(latency|overhead)\b",
            r"\b\d+ (all_?reduces?|collectives|calls|reductions)\b.{0,20}\b(a|per) step\b",
            r"\b\d+ (all_?reduces?|collectives|calls|reductions)\b.{0,20}\b(each|every) step\b",
        ],
        "cure": [
            r"\bbucket|\bcoalesc|\bflatten|\bfus(e|ed|ing)\b|\bDDP\b|\bDistributedDataParallel\b",
            r"\b(one|single|larger|fewer)\b.{0,40}\b(all_?reduces?|collectives?|calls?|buffers?)\b",
            r"\basync_op\b|\boverlap",
        ],
        "within_s": 60.0,
    },
    "on-one-core": {
        "story": "All ranks are bound to one core.",
        "source": "pytorch/pytorch#101850",
        "expected": ["cpu-oversubscribed 0,1,2"],
        "cause": [
            r"\baffinity\b|\b(pinned|bound) to\b|\b(one|same|single) (core|CPU)\b",
            r"\bshar\w+.{0,20}\b(core|CPU)",
            r"\bmore (threads|ranks|processes) than (cores|CPUs)\b",
            r"\bwait\w* for (a |the )?(CPU|core)\b",
        ],
        "cure": [
            r"\btaskset\b|\bnumactl\b|\bcpuset\b|cpus-per-task|\b(cpu-)?bind(ing|-to)?\b",
            r"\bsched_setaffinity\b",
            r"\b(change|set|check|widen|reset|remove|fix|look)\b.{0,50}\b(affinity|mask|binding)\b",
            r"\b(give|let|pin|start)\b.{0,40}\b(more|own|other|different) (cores?|CPUs?)\b",
        ],
        "within_s": 60.0,
    },
    "all-read-all": {
        "story": "Each rank reads the whole data set: no DistributedSampler.",
        "expected": ["sampler-not-distributed 0,1"],
        "cause": [
            r"\bDistributedSampler\b|\bRandomSampler\b",
            r"\b(same|whole)\b.{0,30}\b(data ?set|data|samples|rows|records|indices)\b",
            r"\b(entire|all the)\b.{0,30}\b(data ?set|data|samples|rows|records|indices)\b",
        ],
        "cure": [
            r"\bDistributedSampler\b",
            r"\bsplit_dataset_by_node\b|\bSubset\b|\[rank::",
            r"\b(split|divide|partition|shard)\b.{0,40}\b(data|dataset|samples|ranks)\b",
        ],
        "world": 2,
        "within_s": 40.0,
    },
    "same-order": {
        "story": "set_epoch is not called, so each epoch has the same order.",
        "expected": ["epoch-not-set 0,1"],
        "cause": [
            r"\bset_epoch\b",
            r"\bsame (order|shuffle|permutation|sequence|batches|samples)\b",
        ],
        "cure": [
            r"\bcall\w*\b.{0,40}\bset_epoch\b|\bset_epoch\((?!\))",
            r"\b(add|use|needs?)\b.{0,40}\bset_epoch\b",
        ],
        "world": 2,
        "within_s": 40.0,
    },
    "even": {
        "story": "All ranks are equally fast.",
        "expected": [],
    },
    "lengths-differ": {
        "story": "The time of a step varies at random, on each rank.",
        "source": "huggingface/transformers#47340",
        "expected": [],
    },
    "checks-often": {
        "story": "Rank 0 validates every 40 steps, the others wait.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "stumbles": {
        "story": "One step of four seconds on rank 1.",
        "expected": [],
        "launcher": "plain",
    },
    "writes-now-and-then": {
        "story": "Rank 0 prints and waits a little at each tenth step.",
        "expected": [],
    },
    "own-part": {
        "story": "Each rank has files of its own, and an ordinary loader.",
        "expected": [],
        "world": 2,
    },
    "new-order": {
        "story": "set_epoch is called as it should be.",
        "expected": [],
        "launcher": "plain",
        "world": 2,
    },
}

STEPS_BEFORE = 80


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def occupied(seconds):
    """Computes in Python."""
    until, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        number += 1
    return number


class Identity(torch.autograd.Function):
    hook = None

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        if Identity.hook is not None:
            Identity.hook()
        return gradient


class Rows(Dataset):
    def __init__(self, rank, size, late=None):
        self.rank, self.size, self.late, self.files = (
            rank,
            size,
            late,
            [f"{rank}/{number}" for number in range(size)],
        )

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.late is not None:
            self.late()
        return torch.full((24,), float(index % 7))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(24, 48), torch.nn.Linear(48, 3)

    def forward(self, rows):
        return self.outer(Identity.apply(torch.relu(self.inner(rows))))


class Loop:
    """Steps of about `pace` seconds; `extra` is called at the places that a shape names."""

    def __init__(self, pace=0.03):
        self.rank, self.size, self.pace, self.number = (
            dist.get_rank(),
            dist.get_world_size(),
            pace,
            0,
        )
        self.model = DistributedDataParallel(Model())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.extra = {}

    def at(self, place):
        if place in self.extra:
            self.extra[place]()

    def step(self, rows):
        self.at("before")
        loss = self.model(rows).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.at("between")
        self.optimizer.step()
        time.sleep(self.pace)
        self.at("after")
        self.number += 1

    def runs(self, steps):
        rows = torch.randn(8, 24)
        for _ in range(steps):
            self.step(rows)


def late_from(loop, rank, place, action):
    """From a step on one rank does more at that place."""
    loop.runs(STEPS_BEFORE)
    if loop.rank == rank:
        mark()
        if place == "backward":
            Identity.hook = action
        else:
            loop.extra[place] = action
    loop.runs(100_000)


def in_backward():
    late_from(Loop(0.015), 1, "backward", lambda: time.sleep(0.2))


def a_fifth():
    late_from(Loop(0.047), 0, "after", lambda: time.sleep(0.01))


def busy_forward():
    late_from(Loop(), 2, "before", lambda: occupied(0.04))


def in_between():
    late_from(Loop(), 1, "between", lambda: time.sleep(0.05))


def holds_the_lock():
    pause = ctypes.PyDLL(None).usleep
    late_from(Loop(), 1, "after", lambda: pause(40_000))


def cleans_up():
    kept = [[number] for number in range(800_000)]
    late_from(Loop(), 0, "after", lambda: gc.collect() and kept)


def two_of_four():
    loop = Loop()
    loop.runs(STEPS_BEFORE)
    if loop.rank in (0, 3):
        if loop.rank == 0:
            mark()
        loop.extra["before"] = lambda: time.sleep(0.06)
    loop.runs(100_000)


def takes_turns():
    """Late first, then another."""
    loop = Loop()
    for number in range(100_000):
        if number == STEPS_BEFORE and loop.rank == 2:
            mark()
        slow = (0 if number < STEPS_BEFORE else 2) == loop.rank
        loop.extra["after"] = (lambda: time.sleep(0.025)) if slow else (lambda: None)
        loop.runs(1)


def own_data():
    loop = Loop()
    late = (lambda: time.sleep(0.01)) if loop.rank == 1 else None
    if loop.rank == 1:
        mark()
    while True:
        for rows in DataLoader(Rows(loop.rank, 800, late), batch_size=8):
            loop.step(rows)


def before_barrier():
    """No optimizer, no steps: rank 0 comes late to a barrier."""
    for number in range(100_000):
        if number == STEPS_BEFORE and dist.get_rank() == 0:
            mark()
        time.sleep(0.02)
        if dist.get_rank() == 0 and number >= STEPS_BEFORE:
            time.sleep(0.05)
        dist.barrier()


def one_by_one():
    """Every parameter on its own, and a number for each."""
    net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(16)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    mark()
    while True:
        net(torch.randn(4, 16)).mean().backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def on_one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    loop = Loop(0.0)
    loop.extra["before"] = lambda: occupied(0.03)
    mark()
    loop.runs(100_000)


def all_read_all():
    loop = Loop(0.02)
    mark()
    while True:
        for rows in DataLoader(Rows(0, 400), batch_size=8, shuffle=True):
            loop.step(rows)


def same_order(sets_epoch=False):
    loop = Loop(0.02)
    data = Rows(0, 400)
    sampler = DistributedSampler(data)
    if not sets_epoch:
        mark()
    for epoch in range(6 if sets_epoch else 100_000):
        if sets_epoch:
            sampler.set_epoch(epoch)
        for rows in DataLoader(data, batch_size=8, sampler=sampler):
            loop.step(rows)


def new_order():
    same_order(sets_epoch=True)


# -- healthy


def even():
    Loop().runs(600)


def lengths_differ():
    loop, chance = Loop(0.01), random.Random(dist.get_rank())
    loop.extra["before"] = lambda: time.sleep(chance.expovariate(1 / 0.03))
    loop.runs(250)


def checks_often():
    """Rank 0 validates every 40 steps, the others wait."""
    loop = Loop()
    for _ in range(9):
        loop.runs(40)
        if loop.rank == 0:
            time.sleep(1.0)
        dist.barrier()


def stumbles():
    """One step of four seconds."""
    loop = Loop()
    loop.runs(150)
    if loop.rank == 1:
        time.sleep(4.0)
    loop.runs(200)


def writes_now_and_then():
    loop = Loop()
    for number in range(450):
        loop.runs(1)
        if loop.rank == 0 and number % 10 == 0:
            print("step", number, flush=True)
            time.sleep(0.02)


def own_part():
    """Each rank has files of its own, and an ordinary loader."""
    loop = Loop(0.02)
    for _ in range(8):
        for rows in DataLoader(Rows(loop.rank, 400), batch_size=8, shuffle=True):
            loop.step(rows)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
