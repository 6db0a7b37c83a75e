"""Other ways to write a training loop: closures, generators, coroutines, threads, callbacks, hooks,
and functions of autograd that communicate.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import queue
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "with-closure": {
        "story": "The closure of L-BFGS stands on rank 1.",
        "expected": ["not-in-collective 1"],
        "place": "closure",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "as-generator": {
        "story": "A generator of rank 2 waits for a value before it hands on.",
        "expected": ["not-in-collective 2"],
        "place": "numbers",
        "cause": [
            r"\bqueue\b",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(puts?|fills?|feeds?)\b",
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(filled|fed)\b",
            r"\b(look|see|check|find)\b.{0,50}\b(producer|feeder|source|queue|other end)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "in-coroutine": {
        "story": "The training of rank 0 is a coroutine that awaits a future that nobody sets.",
        "expected": ["not-in-collective 0"],
        "place": "@loop",
        "cause": [r"\basyncio\b|\bcoroutine|\bevent loop\b|\bawaits?\b"],
        "cure": [
            r"\ball_tasks\b|PYTHONASYNCIODEBUG|\basyncio (ps|pstree)\b",
            r"\bwait_for\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(look|see|check|find|print|list|which|what)\b.{0,60}\b(tasks?|coroutine)\b",
            r"\b(look|see|check|find|print|list|which|what)\b.{0,60}\b(await\w*|future)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
        ],
    },
    "in-thread": {
        "story": (
            "Each rank trains in a thread; rank 1's waits for a semaphore, its main thread only "
            "joins."
        ),
        "source": "pytorch/pytorch#82091",
        "expected": ["not-in-collective 1"],
        "place": "forever",
        "cause": [
            r"\bsemaphore\b",
            r"\block\b",
            r"\bacquir",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(who|which|what|should|must)\b.{0,40}\breleas",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "in-executor": {
        "story": "A task of a pool of one waits for another task of it, on rank 2.",
        "expected": ["not-in-collective 2"],
        "place": "nested",
        "cause": [
            r"\bpool\b|\bexecutor\b|\bconcurrent.futures\b|\bfutures?\b",
            r"\bdeadlock",
            r"\b(task|thread)\b.{0,60}\bwaits? for\b.{0,40}\b(task|itself|pool|thread)\b",
        ],
        "cure": [
            r"\bmax_workers\b",
            r"\b(more|second|another|larger|own|separate) (workers?|threads?|pool|executor)\b",
            r"\b(not|never|avoid|instead)\b.{0,50}\b(same pool|submit\w*|result|in the pool)\b",
            r"\b(look|see|check|find)\b.{0,60}\b(pool|executor|tasks?|future|workers?)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "by-callback": {
        "story": "A callback of rank 0 waits for a metrics service.",
        "source": "wandb/wandb#9871",
        "expected": ["not-in-collective 0"],
        "place": "report",
        "cause": [
            r"\bsockets?\b|\brecv|\bTCP\b|\bnetwork\b",
            r"\b(answers?|repl(y|ies)|respon(d|ds|se))\b",
        ],
        "cure": [
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"settimeout|\btime-?outs? (on|for|to) (the|its|this|each) (call|socket|request)",
            r"\bthe (server|service|peer|endpoint|remote)|\b(other|far|remote) (end|side)",
            r"\bss -|\blsof\b|\btcpdump\b|\bstrace\b",
        ],
    },
    "backward-hook": {
        "story": "A hook on a gradient of rank 1 waits, inside of backward.",
        "expected": ["not-in-collective 1"],
        "place": "look",
        "cause": [
            r"\b(a|the|its|gradient|tensor) hook\b",
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "communication-hook": {
        "story": "The DDP communication hook of rank 0 waits.",
        "expected": ["not-in-collective 0"],
        "place": "hook",
        "cause": [
            r"\b(a|the|its|comm|communication) hook\b|\bcomm_hook",
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "optimizer-hook": {
        "story": "A hook after the optimizer's step of rank 1 waits for a lock.",
        "expected": ["not-in-collective 1"],
        "place": "save",
        "cause": [r"\block\b", r"\bacquir", r"\bdeadlock"],
        "cure": [
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"\breleas(e|es|ed|ing)\b|\bunlock",
            r"\bRLock|re-?entrant",
            r"py-spy|\bgdb\b|\bstacks? of (all|its|the other|every)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "own-function": {
        "story": "The backward of a custom autograd function reads a pipe on rank 2.",
        "expected": ["not-in-collective 2"],
        "place": "backward",
        "cause": [
            r"\bpipe\b|pipe_(read|wait)",
            r"\b(wait|block|stuck|hang)\w*.{0,40}\bread",
            r"\breads? (from|a|on)\b",
        ],
        "cure": [
            r"\b(other|write|writing) (end|side)|\bwriter\b|\bwho (writes|should write)",
            r"\blsof\b|/proc/\S+/fd|\bstrace\b",
            r"\b(look|see|check|find)\b.{0,60}\b(pipe|file|disk|mount|storage|NFS|source|fd)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "fine-closure": {"story": "L-BFGS with several calls a step.", "expected": []},
    "fine-coroutine": {
        "story": "A coroutine trains in a thread while another one serves a socket.",
        "expected": [],
    },
    "fine-thread": {
        "story": "The training runs in a thread, the main thread joins it.",
        "expected": [],
    },
    "long-collection": {
        "story": "A full garbage collection on each rank, at different times.",
        "expected": [],
    },
    "many-retries": {
        "story": "Rank 0 fails to reach a service for four seconds and goes on.",
        "expected": [],
        "tolerated": ["straggler 0"],
    },
    "imports-much": {
        "story": "Rank 1 imports many modules in the middle of the run.",
        "expected": [],
        "tolerated": ["not-in-collective 1"],
    },
}

AT = 70


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Hooks:
    """What a trainer calls around each step."""

    def __init__(self):
        self.after = []

    def add(self, function):
        self.after.append(function)
        return function


class Work:
    def __init__(self, optimizer=torch.optim.SGD):
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(torch.nn.Linear(16, 16))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-3)
        self.number = 0

    def forward_backward(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(4, 16)).square().mean()
        loss.backward()
        return loss

    def step(self):
        self.forward_backward()
        self.optimizer.step()
        self.number += 1
        time.sleep(0.03)

    def forever(self, rank, act):
        while True:
            if self.number == AT and self.rank == rank:
                mark()
                act()
            self.step()


# -- loops


def with_closure():
    """L-BFGS calls the loss by itself; it stands in there."""
    work = Work(torch.optim.LBFGS)

    def closure():
        work.number += 1
        time.sleep(0.01)
        if work.number == 400 and work.rank == 1:
            mark()
            threading.Event().wait()
        return work.forward_backward()

    while True:
        work.optimizer.step(closure)


def as_generator():
    """A loop of generators, each of which hands on; one waits for a value."""
    work = Work()

    def numbers():
        count = 0
        while True:
            if count == AT and work.rank == 2:
                mark()
                queue.SimpleQueue().get()
            yield count
            count += 1

    def losses(source):
        for _ in source:
            work.step()
            yield work.number

    for _ in losses(numbers()):
        pass


def in_coroutine():
    """The training is a coroutine; a task that it awaits is never done."""
    work = Work()

    async def run():
        while True:
            if work.number == AT and work.rank == 0:
                mark()
                await asyncio.get_running_loop().create_future()
            work.step()
            await asyncio.sleep(0)

    asyncio.run(run())  # place: loop


def in_thread():
    """The training runs in a thread; the main thread only joins it."""
    work = Work()
    gate = threading.Semaphore(0)
    thread = threading.Thread(target=work.forever, args=(1, gate.acquire), name="trainer")
    thread.start()
    thread.join()


def in_executor():
    """Each step is a task of a pool; one task waits for a second one in the same pool of one."""
    work = Work()
    pool = ThreadPoolExecutor(1)

    def nested():
        return pool.submit(sum, (1, 2)).result()

    while True:
        if work.number == AT and work.rank == 2:
            mark()
            pool.submit(nested).result()
        pool.submit(work.step).result()


def by_callback():
    """A callback of the trainer waits for a metrics service."""
    work, hooks = Work(), Hooks()
    server = socket.create_server(("127.0.0.1", 0))

    @hooks.add
    def report(number):
        if number == AT and work.rank == 0:
            mark()
            with socket.create_connection(server.getsockname()) as there:
                there.recv(1)

    while True:
        work.step()
        for hook in hooks.after:
            hook(work.number)


# -- in torch's own calls


def backward_hook():
    """A hook on a parameter's gradient waits on one rank, inside of backward."""
    work = Work()

    def look(gradient):
        if work.number == AT and work.rank == 1:
            mark()
            threading.Condition().acquire()
            threading.Event().wait()
        return gradient

    work.model.module.bias.register_hook(look)
    work.forever(None, None)


class SumOverRanks(torch.autograd.Function):
    """An all_reduce in forward and in backward, as tensor parallel layers have."""

    turn = 0

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        SumOverRanks.turn += 1
        if SumOverRanks.turn == AT and dist.get_rank() == 2:
            mark()
            os.read(os.pipe()[0], 1)
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def own_function():
    """A custom autograd function whose backward communicates."""
    net = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    while True:
        optimizer.zero_grad()
        SumOverRanks.apply(net(torch.ones(2, 16))).sum().backward()
        optimizer.step()
        time.sleep(0.03)


def communication_hook():
    """A DDP communication hook that writes a log stands."""
    work = Work()
    calls = [0]

    def hook(state, bucket):
        calls[0] += 1
        if calls[0] == AT and work.rank == 0:
            mark()
            threading.Event().wait()
        return (
            dist.all_reduce(bucket.buffer(), async_op=True)
            .get_future()
            .then(lambda done: done.value()[0])
        )

    work.model.register_comm_hook(None, hook)
    work.forever(None, None)


def optimizer_hook():
    """A hook after the optimizer's step saves under a lock that is taken."""
    work = Work()
    gate = threading.RLock()
    taker = threading.Thread(target=lambda: (gate.acquire(), time.sleep(1e6)), daemon=True)
    taker.start()
    time.sleep(0.2)

    def save(optimizer, args, kwargs):
        if work.number == AT and work.rank == 1:
            mark()
            with gate:
                pass

    work.optimizer.register_step_post_hook(save)
    work.forever(None, None)


# -- healthy


def fine_closure():
    """Healthy: L-BFGS with eight calls a step."""
    work = Work(torch.optim.LBFGS)
    for _ in range(25):
        work.optimizer.step(lambda: (time.sleep(0.01), work.forward_backward())[1])


def fine_coroutine():
    """Healthy: a coroutine that trains while another one answers a socket."""
    work = Work()

    async def run():
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        while work.number < 100:
            await asyncio.to_thread(work.step)
        server.close()

    asyncio.run(run())


def fine_thread():
    """Healthy: the training runs in a thread, the main thread joins it."""
    work = Work()
    thread = threading.Thread(target=lambda: [work.step() for _ in range(100)])
    thread.start()
    thread.join()


def long_collection():
    """Healthy: a full garbage collection of a second on each rank, not at the same time."""
    work = Work()
    kept = [[number] for number in range(1_500_000)]
    while work.number < 100:
        work.step()
        if work.number % 60 == 20 * work.rank:
            gc.collect()
    del kept


def many_retries():
    """Healthy: one rank fails to reach a service for four seconds, then goes on."""
    work = Work()
    while work.number < 100:
        work.step()
        if work.number == 60 and work.rank == 0:
            for _ in range(8):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", 9), timeout=1)
                time.sleep(0.5)


def imports_much():
    """Healthy: one rank imports many modules in the middle of the run."""
    work = Work()
    for number in range(30):
        with open(f"generated_{work.rank}_{number}.py", "w") as file:
            file.write("\n".join(f"v{line} = [{line}] * 3" for line in range(3000)))
    sys.path.insert(0, os.getcwd())
    while work.number < 100:
        work.step()
        if work.number == 60 and work.rank == 1:
            for number in range(30):
                importlib.import_module(f"generated_1_{number}")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
