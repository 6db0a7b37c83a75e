"""Process groups that a program makes by hand, beside the default group or after it: for weights
between a trainer and its engine, for an evaluation in other processes, for a second phase.
"""

import ctypes
import datetime
import json
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

CASES = {
    "links-in-other-order": {
        "story": (
            "Ranks 0 and 1 join the groups of the policy and of the reward model in opposite order."
        ),
        "source": "vllm-project/vime#329",
        "expected": ["wait-cycle 0,1"],
        "place": "connect",
        "cause": [
            r"\bcycle\b",
            r"wait(s|ing)? for each other",
            r"(opposite|different|another|other|same) order",
        ],
        "cure": [
            r"in the same order",
            r"same order on (all|both|every)",
            r"order of the (calls|groups)",
        ],
    },
    "engine-keeps-lock": {
        "story": (
            "The engine, rank 2, does not come to the broadcast of the weights: a thread that "
            "writes to a client who no longer reads keeps the lock."
        ),
        "source": "huggingface/trl#6797",
        "expected": ["not-in-collective 2"],
        "place": ["take_weights", "stream"],
        "cause": [r"\block\b", r"\bmutex\b", r"\bpipe\b"],
        "cure": [
            r"fix (that|the lock)",
            r"(holds?|holder of|owns|owner of|releases?) .{0,30}\block\b",
            r"\block\b.{0,60}(held|holds|holder|release|timeout)",
            r"\b(reads|other end)\b.{0,60}\b(pipe|open)\b",
            r"\bstacks\b",
        ],
    },
    "engine-job-stands": {
        "story": (
            "A trainer shares a group with an engine, which is a job of its own. A rank of the "
            "engine waits for prompts, so the trainer's rank 0 waits in the broadcast."
        ),
        "source": "sgl-project/sglang#4096",
        "expected": ["waits-for-job 0"],
        "place": "push_weights",
        "launcher": "own",
        "world": 2,
        "within_s": 14,
        "cause": [
            r"(another|other|second|different) job",
            r"\bengine\b",
            r"job .{0,60}(stands|does not move|no progress|hangs)",
        ],
        "cure": [
            r"(diagnose|look at|see|check|inspect).{0,60}(other|that|another) job",
            r"(diagnose|stacks|attach) \S+",
            r"\btimeout\b",
        ],
    },
    "second-world-differs": {
        "story": (
            "The ranks leave the first world and make a second one over a store of their own; "
            "there rank 2 gathers its best weights where the others wait in a barrier."
        ),
        "source": "pytorch/pytorch#55967",
        "expected": ["collective-mismatch 2"],
        "place": "keep_best",
        "cause": [
            r"different (collectives|calls|operations)",
            r"all_?gather.{0,200}barrier",
            r"barrier.{0,200}all_?gather",
        ],
        "cure": [
            r"\bbranch\b",
            r"\bcondition\b",
            r"depends on the rank",
            r"(decide|decision).{0,40}(same|broadcast|together)",
            r"same (calls|order)",
        ],
    },
    "evaluation-world": {
        "story": (
            "Rank 0 evaluates in two processes with a world of their own; one of them waits for "
            "its data, the other for it, and rank 0 for both."
        ),
        "expected": ["not-in-collective 0"],
        "place": "evaluate",
        "cause": [
            r"\bchild(ren)?\b",
            r"\bsubprocess",
            r"(another|other|helper|worker) process",
            r"\bpipe\b",
        ],
        "cure": [
            r"child process",
            r"what .{0,40}(child|process|worker).{0,40}(do|wait)",
            r"(stack|py-spy|look|see|diagnose).{0,60}(child|process|worker|pid)",
            r"fix that",
        ],
    },
    "weights-now-and-then": {
        "story": "The engine waits six seconds in a group made by hand for the next weights.",
        "source": "huggingface/trl#2923",
        "expected": [],
    },
    "worlds-in-turn": {
        "story": (
            "Three worlds one after the other, each with a file of its own; in each a rank comes "
            "three seconds later, and the last world has one rank less."
        ),
        "expected": [],
    },
}

AT, HOUR = 70, datetime.timedelta(hours=1)


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(steps, group=None):
    gradient = torch.ones(64)
    for _ in range(steps):
        time.sleep(0.03)
        dist.all_reduce(gradient, group=group)


def own_store(port, host):
    """A store beside the one of the launcher; the process with `host` opens it."""
    return dist.TCPStore("127.0.0.1", port, None, host, HOUR, wait_for_workers=False)


def join(store, name, rank, world):
    """A group that is not a part of the default one, as between a trainer and its engine."""
    group, _ = c10d._new_process_group_helper(
        world, rank, [], "gloo", dist.PrefixStore(name, store), group_name=name, timeout=HOUR
    )
    c10d._world.pg_group_ranks[group] = {one: one for one in range(world)}
    return group


def agreed_port():
    """A port that rank 0 has chosen for all."""
    port = [free_port()]
    dist.broadcast_object_list(port, src=0)
    return port[0]


def connect(store, names, rank):
    return {name: join(store, name, rank, 2) for name in names}


def links_in_other_order(rank):
    """One side goes through its table as it is written, the other sorts the names."""
    port = agreed_port()
    store = own_store(port, True) if rank == 0 else None
    train(AT)
    if rank < 2:
        store = store or own_store(port, False)
        names = ["reward", "policy"]
        if rank == 1:
            mark()
            names = sorted(names)
        connect(store, names, rank)
    train(100_000)


def stream(lock, into):
    """Answers to a client that has stopped to read, under the lock of the engine."""
    told = False
    while True:
        time.sleep(0.15)
        with lock:
            if not told and not select.select([], [into], [], 0)[1]:
                told = True
                mark()
            os.write(into, b"t" * 4096)


def take_weights(lock, weights, group):
    with lock:
        dist.broadcast(weights, src=0, group=group)


def engine_keeps_lock(rank):
    """Ranks 0 and 1 train, rank 2 is the engine; 0 and 2 share a group for the weights."""
    trainers = dist.new_group([0, 1])
    port = agreed_port()
    store = own_store(port, True) if rank == 0 else None
    dist.barrier()
    sync = None
    if rank != 1:
        sync = join(store or own_store(port, False), "weights", rank // 2, 2)
    weights, lock = torch.zeros(5000), threading.Lock()
    if rank == 2:
        _out, into = os.pipe()
        threading.Thread(target=stream, args=(lock, into), daemon=True).start()
        while True:
            take_weights(lock, weights, sync)
            time.sleep(0.02)
    while True:
        train(4, trainers)
        if rank == 0:
            dist.broadcast(weights, src=0, group=sync)


def push_weights(weights, group):
    dist.broadcast(weights, src=0, group=group)


def trainer_side(rank, port):
    """Two ranks that train; rank 0 sends the weights to the engine, once there is one."""
    end_with_parent()
    store = own_store(port, True) if rank == 0 else None
    weights, sync = torch.zeros(5000), None
    while True:
        train(6)
        if rank == 0 and sync is None and store.check(["engine0", "engine1"]):
            sync = join(store, "weights", 0, 3)
        if sync is not None:
            push_weights(weights, sync)


def engine_side(rank, port):
    """Two ranks that generate; both take the weights of the trainer."""
    end_with_parent()
    store = own_store(port, False)
    store.set(f"engine{rank}", "ready")
    sync = join(store, "weights", rank + 1, 3)
    weights, prompts = torch.zeros(5000), queue.Queue()
    for _ in range(12):
        prompts.put("why")
    while True:
        dist.broadcast(weights, src=0, group=sync)
        if rank == 1:
            if prompts.empty():
                mark()
            prompts.get()
        train(1)


def end_with_parent():
    """Ask the kernel to kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def engine_job_stands():
    """Starts both jobs, each with its own store and its own ranks from 0."""
    shared, started = free_port(), []
    for role, pause in (("trainer_side", 0), ("engine_side", 5)):
        time.sleep(pause)
        port = free_port()
        for rank in range(2):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            command = [sys.executable, __file__, role, str(shared)]
            environment = os.environ | variables
            if "DDTOP_JOB" in environment:
                # Two jobs have two names.
                environment["DDTOP_JOB"] += f"-{role}"
            started.append(subprocess.Popen(command, env=environment))
    for one in started:
        one.wait()


def keep_best(weights, better):
    if better:
        parts = [torch.zeros_like(weights) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, weights)
    dist.barrier()


def second_world_differs(rank):
    """A first world for the search, a second one for the training."""
    port = agreed_port()
    train(30)
    dist.barrier()
    dist.destroy_process_group()
    store = own_store(port, rank == 0)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("training", store), rank=rank, world_size=3
    )
    weights = torch.full((256,), float(rank))
    for number in range(100_000):
        train(10)
        better = number == 7 and rank == 2
        if better:
            mark()
        keep_best(weights, better)


def evaluator(rank, path, orders):
    """One of two processes that have a world of their own in a file."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    score = torch.ones(1)
    data, _feeder = os.pipe()
    orders.send("ready")
    for number in range(100_000):
        orders.recv()
        if number == 5 and rank == 1:
            mark()
            os.read(data, 1)
        dist.all_reduce(score)
        orders.send(float(score))


def evaluate(lines):
    for line in lines:
        line.send("evaluate")
    return [line.recv() for line in lines]


def evaluation_world(rank):
    """Rank 0 has two processes that evaluate, and asks them every twenty steps."""
    lines, ready = [], False
    if rank == 0:
        context = multiprocessing.get_context("spawn")
        for number in range(2):
            mine, other = context.Pipe()
            arguments = (number, os.path.abspath("evaluation.store"), other)
            context.Process(target=evaluator, args=arguments, daemon=True).start()
            lines.append(mine)
    while True:
        train(20)
        if lines and not ready and all(line.poll() for line in lines):
            ready = all(line.recv() for line in lines)
        elif ready:
            evaluate(lines)


def weights_now_and_then(rank):
    """Healthy: rank 2 waits in the group of the weights, while 0 and 1 train for six seconds."""
    trainers = dist.new_group([0, 1])
    weights, rounds = torch.zeros(5000), 3
    sync = None
    if rank != 1:
        store = dist.FileStore(os.path.abspath("weights.store"), 2)
        sync = join(store, "weights", rank // 2, 2)
    for _ in range(rounds):
        if rank < 2:
            train(190, trainers)
        if sync is not None:
            dist.broadcast(weights, src=0, group=sync)
    dist.barrier()
    dist.destroy_process_group()


def worlds_in_turn(rank):
    """Healthy: each phase has a world of its own, and somebody always comes a little later."""
    train(40)
    dist.barrier()
    dist.destroy_process_group()
    for phase, world in enumerate((3, 3, 2)):
        if rank >= world:
            return
        if rank == (phase + 1) % world:
            time.sleep(3)
        path = os.path.abspath(f"phase{phase}.store")
        store = dist.FileStore(path, world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        train(60)
        dist.barrier()
        dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "engine_job_stands":
        engine_job_stands()
        return
    dist.init_process_group("gloo")
    rest = [int(one) for one in sys.argv[2:]]
    globals()[sys.argv[1]](dist.get_rank(), *rest)


if __name__ == "__main__":
    main()
