"""A rank that gives orders, and others that carry them out: serving, reinforcement learning,
hyper-parameter search. Between two orders nobody moves, and nothing is wrong; and sometimes it is.
"""

import asyncio
import http.server
import json
import os
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

CASES = {
    "master-in-lock": {
        "story": "After eighty orders the master waits for a lock that it holds itself.",
        "expected": ["not-in-collective 0"],
        "place": "master_in_lock",
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
    "master-in-child": {
        "story": "The master waits for a program that does not end.",
        "expected": ["not-in-collective 0"],
        "place": "master_in_child",
        "cause": [
            r"\bchild(ren)?\b",
            r"\bsubprocess\b|\bwaitpid|\bwait4|do_wait",
            r"\b(program|process|command) (that )?(it|rank 0) (has )?started",
        ],
        "cure": [
            r"\b(look|see|check|find|why|what)\b.{0,60}\b(child|program|subprocess|command)\b",
            r"\b(kill|end|stop|strace|py-spy)\b.{0,40}\b(child|program|\d+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            "timeout=[1-9]",
        ],
    },
    "worker-falls-asleep": {
        "story": "Rank 2 does not carry out its order; the others wait in its all_reduce.",
        "source": "sgl-project/sglang#3836",
        "expected": ["not-in-collective 2"],
        "place": "worker_falls_asleep",
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
    "answer-not-taken": {
        "story": (
            "The workers send their results; rank 0 waits for a request instead of receiving."
        ),
        "expected": ["not-in-collective 0", "unmatched-p2p 0"],
        "place": "answer_not_taken",
        "cause": [
            r"\bqueue\b",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
            r"\b(not|never|no|without)\b.{0,40}\b(recv|receiv\w+)\b",
        ],
        "cure": [
            r"\b(call|post|do|add|needs?|must|should|let)\b.{0,40}\b(irecv|recv|receive)\b",
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(puts?|fills?|feeds?)\b",
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(filled|fed)\b",
            r"\b(look|see|check|find)\b.{0,50}\b(producer|feeder|source|queue|other end)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "feeder-stops": {
        "story": "Rank 0 scatters each batch of a training; its source dries up.",
        "expected": ["not-in-collective 0"],
        "place": "feeder_stops",
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
    "folder-orders": {
        "story": "Rank 0 looks into a spool folder for orders, the others wait in a broadcast.",
        "expected": [],
    },
    "http-orders": {
        "story": "Rank 0 waits for HTTP requests, of which none come.",
        "source": "vllm-project/vllm#5484",
        "expected": [],
    },
    "async-orders": {
        "story": "Rank 0 is an asyncio server that waits at its queue.",
        "expected": [],
    },
    "threaded-orders": {
        "story": "Rank 0 waits at a queue that a thread fills every nine seconds.",
        "expected": [],
    },
    "search-trials": {
        "story": "A search hands out points by send and recv, and thinks in between.",
        "expected": [],
    },
}

IDLE_S, ORDERS = 9, 2


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def carry_out(order):
    """A worker's part: some matrices and a sum over all."""
    x = torch.full((64, 64), float(order))
    for _ in range(20):
        x = torch.mm(x, x) / 64
    total = x.sum()
    dist.all_reduce(total)
    return total


def workers_loop():
    order = [None]
    while True:
        dist.broadcast_object_list(order, src=0)
        if order[0] is None:
            return
        carry_out(order[0])


def give(order):
    dist.broadcast_object_list([order], src=0)
    if order is not None:
        carry_out(order)


def folder_orders(rank):
    """Healthy: rank 0 looks into a spool folder."""
    if rank:
        workers_loop()
        return
    os.makedirs("spool", exist_ok=True)
    for number in range(ORDERS):
        until = time.monotonic() + IDLE_S
        while time.monotonic() < until and not os.listdir("spool"):
            time.sleep(0.25)
        give(number)
    give(None)


def http_orders(rank):
    """Healthy: rank 0 answers HTTP requests, of which none come."""
    if rank:
        workers_loop()
        return
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.timeout = IDLE_S
    for number in range(ORDERS):
        server.handle_request()
        give(number)
    give(None)


def async_orders(rank):
    """Healthy: rank 0 is an asyncio server with a queue."""
    if rank:
        workers_loop()
        return

    async def serve():
        inbox = asyncio.Queue()
        server = await asyncio.start_server(lambda r, w: inbox.put_nowait(r), "127.0.0.1", 0)
        for number in range(ORDERS):
            try:
                await asyncio.wait_for(inbox.get(), IDLE_S)
            except TimeoutError:
                pass
            except asyncio.TimeoutError:
                pass
            give(number)
        server.close()

    asyncio.run(serve())
    give(None)


def threaded_orders(rank):
    """Healthy: a thread takes requests, the main thread waits for it at a queue."""
    if rank:
        workers_loop()
        return
    inbox = queue.Queue()

    def accept():
        for number in range(ORDERS):
            time.sleep(IDLE_S)
            inbox.put(number)
        inbox.put(None)

    threading.Thread(target=accept, daemon=True).start()
    while True:
        order = inbox.get()
        give(order)
        if order is None:
            return


def search_trials(rank):
    """Healthy: a search hands out points by send and recv, and thinks between rounds."""
    point = torch.zeros(4)
    if rank:
        while True:
            dist.recv(point, src=0)
            if point[0] < 0:
                return
            dist.send(point * 2, dst=0)
    for _round in range(ORDERS + 1):
        last = _round == ORDERS
        for peer in range(1, dist.get_world_size()):
            dist.send(torch.full((4,), -1.0 if last else 1.0), dst=peer)
        for peer in range(1, dist.get_world_size() if not last else 1):
            dist.recv(point, src=peer)
        until = time.monotonic() + (0 if last else IDLE_S)
        while time.monotonic() < until:
            time.sleep(0.5)


def burst(count):
    for number in range(count):
        give(number)
        time.sleep(0.03)


def master_in_lock(rank):
    """Between two orders the master waits for a lock that its own logger holds."""
    if rank:
        workers_loop()
        return
    burst(80)
    gate = threading.Lock()
    gate.acquire()
    mark()
    gate.acquire()


def master_in_child(rank):
    """The master starts a program for the next order and waits for it for ever."""
    import subprocess

    if rank:
        workers_loop()
        return
    burst(80)
    mark()
    subprocess.run(["sleep", "100000"], check=True)


def worker_falls_asleep(rank):
    """One worker does not finish its order; the master waits for the answers."""
    order = [None]
    number = 0
    while True:
        if rank == 0:
            order = [number]
        dist.broadcast_object_list(order, src=0)
        number += 1
        if number == 80 and rank == 2:
            mark()
            threading.Event().wait()
        carry_out(order[0])
        time.sleep(0.03)


def answer_not_taken(rank):
    """The workers send their results; the master waits for a request instead of taking them."""
    result = torch.zeros(4_000_000)
    inbox = queue.Queue()
    for number in range(100_000):
        if rank == 0:
            if number == 40:
                mark()
                inbox.get()
            for peer in range(1, dist.get_world_size()):
                dist.recv(result, src=peer)
        else:
            dist.send(result, dst=0)
        time.sleep(0.05)


def feeder_stops(rank):
    """Rank 0 scatters every batch of a training; its own source dries up."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.zeros(4, 8)
    source = queue.Queue()
    for _ in range(80):
        source.put(torch.ones(4, 8))
    for number in range(100_000):
        if rank == 0:
            if number == 80:
                mark()
            rows = source.get()
            dist.scatter(batch, [rows] * dist.get_world_size(), src=0)
        else:
            dist.scatter(batch, src=0)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.03)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
