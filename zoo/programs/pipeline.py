"""Stages that hand tensors on, by send and recv and in batches."""

import json
import os
import queue
import socket
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "ring": {
        "story": "Each rank of a ring receives first.",
        "source": "pytorch/pytorch#172668",
        "expected": ["wait-cycle 0,1,2"],
        "place": "ring",
        "cause": [
            r"\bcircular|\ba (circle|cycle|ring)\b|\bdeadlock|\beach other\b",
            r"\bwaits? for (rank )?\d[\s\S]{0,80}\bwaits? for (rank )?\d|\d ?-> ?\d",
            r"\b(each|every|all)\b.{0,60}\bwaits?\b.{0,40}\b(next|other|another|for)\b",
            r"\b(each|every|all|both|everybody)\b.{0,60}\b(recv|receiv\w+)\b",
        ],
        "cure": [
            r"\bisend|\birecv|batch_isend|non-?blocking|\bsendrecv",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(order|cycle|circle)\b",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(sends?|recvs?)\b",
            r"\bsends?\b.{0,30}\bfirst\b|\bfirst\b.{0,20}\bsends?\b|\bodd\b.{0,40}\beven\b",
        ],
        "launcher": "plain",
    },
    "push": {
        "story": "Two neighbours send 64 MB to each other before they receive.",
        "source": "NVIDIA/nccl#479",
        "expected": ["wait-cycle 0,1"],
        "place": "push",
        "cause": [
            r"\bcircular|\ba (circle|cycle|ring)\b|\bdeadlock|\beach other\b",
            r"\bwaits? for (rank )?\d[\s\S]{0,80}\bwaits? for (rank )?\d|\d ?-> ?\d",
            r"\b(each|every|all)\b.{0,60}\bwaits?\b.{0,40}\b(next|other|another|for)\b",
            r"\b(each|every|all|both|everybody|two)\b.{0,40}\bsends?\b",
            r"\b(neither|nobody|none|before)\b.{0,40}\b(recv|receiv\w+)\b",
        ],
        "cure": [
            r"\bisend|\birecv|batch_isend|non-?blocking|\bsendrecv",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(order|cycle|circle)\b",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(sends?|recvs?)\b",
            r"\b(recv|receives?|receiving)\b.{0,30}\bfirst\b|\bodd\b.{0,40}\beven\b",
        ],
        "world": 2,
    },
    "label": {
        "story": "Rank 1 receives with another tag than rank 0 sends with.",
        "source": "mpi4py/mpi4py#148",
        "expected": ["unmatched-p2p 0,1", "unmatched-p2p 1"],
        "place": "label",
        "cause": [r"\btags?\b", r"\b(not|never|no|nothing|different)\b.{0,30}\bmatch"],
        "cure": [
            r"\b(compare|check|same|equal|match|agree|fix|use|look)\w*\b.{0,60}\btags?\b",
            r"\btags?\b.{0,40}\b(must|should|agree|match|same|equal)\b|ANY_TAG",
            r"\b(compare|check)\b.{0,50}\b(arguments|both (calls|sides|ends|ranks))\b",
        ],
        "launcher": "plain",
        "world": 2,
    },
    "neighbour": {
        "story": "The last stage receives from rank 0 instead of its neighbour.",
        "source": "meta-pytorch/torchrec#4472",
        "expected": ["unmatched-p2p 2", "wait-cycle 0,1,2"],
        "place": "neighbour",
        "cause": [
            r"\bcircular|\ba (circle|cycle|ring)\b|\bdeadlock|\beach other\b",
            r"\bwaits? for (rank )?\d[\s\S]{0,80}\bwaits? for (rank )?\d|\d ?-> ?\d",
            r"\b(each|every|all)\b.{0,60}\bwaits?\b.{0,40}\b(next|other|another|for)\b",
            r"\b(never|not|no|nobody|nothing)\b.{0,40}\b(sends?|sent|sending)\b",
            r"\b(wrong|another|other)\b.{0,20}\b(peer|source|sender|partner|rank)\b",
        ],
        "cure": [
            r"\b(check|compare|correct|fix|look)\b.{0,60}\b(src|source|peer|dst)\b",
            r"\b(check|compare|correct|fix|look)\b.{0,60}\b(arguments?|partner|sends?)\b",
            r"\b(src|source|peer|sender)\b.{0,40}\b(wrong|should|must)\b",
            r"\bmatching (send|recv)",
        ],
    },
    "branch": {
        "story": "Rank 0 goes to an all_reduce that the others do not call, in place of a send.",
        "source": "NVIDIA/nccl#584",
        "expected": ["unmatched-p2p 1"],
        "place": ["branch", "relay_on"],
        "cause": [
            r"\brank 0\b.{0,80}\ball_?reduce\b|\ball_?reduce\b.{0,80}\b(rank 0|alone|others)\b",
            r"\b(never|not|no|nobody|nothing)\b.{0,40}\b(sends?|sent|sending)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
            r"\b(check|look|see|why)\b.{0,60}\b(branch|condition|rank 0|sender|sends?)\b",
            r"\b(let|make|must|should|needs? to)\b.{0,40}\bsend\b|\bmatching send",
        ],
        "launcher": "plain",
    },
    "dozes": {
        "story": "A middle stage waits at an empty queue.",
        "expected": ["not-in-collective 1"],
        "place": "dozes",
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
    "batch-stands": {
        "story": "A ring of batched sends and receives, in which rank 2 sleeps.",
        "expected": ["not-in-collective 2"],
        "place": "batches",
        "cause": [
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps)\b|\bin (a |its )?sleep\b",
            r"\b(wait|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(why|remove|shorten|replace|drop)\b.{0,40}\bsleeps?\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "world": 4,
    },
    "uneven-stages": {
        "story": "The middle stage takes longest; the others wait by design.",
        "expected": [],
    },
    "batches": {
        "story": "All ranks exchange with both neighbours at once.",
        "expected": [],
        "launcher": "plain",
        "world": 4,
    },
    "orders": {
        "story": (
            "Workers wait in recv for orders; the master waits for a request on a socket, "
            "and none comes."
        ),
        "expected": [],
        "launcher": "plain",
    },
    "desk": {
        "story": "Workers wait in a broadcast, the master at a queue.",
        "expected": [],
    },
}

SIZE = 1024


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def relay_on(activation, rank, last):
    """One micro-batch forwards and its gradient back."""
    if rank > 0:
        dist.recv(activation, src=rank - 1)
    if rank < last:
        dist.send(activation, dst=rank + 1)
        dist.recv(activation, src=rank + 1)
    if rank > 0:
        dist.send(activation, dst=rank - 1)


def ring(rank, last):
    """Everybody receives first."""
    x = torch.zeros(SIZE)
    for step in range(100_000):
        relay_on(x, rank, last)
        time.sleep(0.03)
        if step == 60:
            mark()
            dist.recv(x, src=(rank - 1) % (last + 1))
            dist.send(x, dst=(rank + 1) % (last + 1))


def push(rank, last):
    """Neighbours send large tensors to each other first."""
    x = torch.zeros(SIZE)
    large, there = torch.zeros(16_000_000), torch.zeros(16_000_000)
    for step in range(100_000):
        relay_on(x, rank, last)
        time.sleep(0.03)
        if step == 60:
            mark()
            dist.send(large, dst=1 - rank)
            dist.recv(there, src=1 - rank)


def label(rank, last):
    """The tag differs."""
    x = torch.zeros(SIZE)
    for step in range(100_000):
        tag = step + 1 if rank == 1 and step == 60 else step
        if tag != step:
            mark()
        if rank == 0:
            dist.send(x, dst=1, tag=step)
            dist.recv(x, src=1, tag=step)
        elif rank == 1:
            dist.recv(x, src=0, tag=tag)
            dist.send(x, dst=0, tag=step)
        time.sleep(0.03)


def neighbour(rank, last):
    """The last stage receives from the wrong rank."""
    x = torch.zeros(SIZE)
    for step in range(100_000):
        if rank == last and step == 60:
            mark()
            dist.recv(x, src=0)
            dist.send(x, dst=rank - 1)
        else:
            relay_on(x, rank, last)
        time.sleep(0.03)


def branch(rank, last):
    """The first stage goes to a reduction that the others do not share."""
    x = torch.zeros(SIZE)
    for step in range(100_000):
        if step == 60 and rank == 0:
            mark()
            dist.all_reduce(x)
        relay_on(x, rank, last)
        time.sleep(0.03)


def dozes(rank, last):
    """A middle stage does nothing any more."""
    x = torch.zeros(SIZE)
    for step in range(100_000):
        if step == 60 and rank == 1:
            mark()
            queue.Queue().get()
        relay_on(x, rank, last)
        time.sleep(0.03)


def uneven_stages(rank, last):
    """Healthy: one stage takes long, the others wait by design."""
    x = torch.zeros(SIZE)
    for _ in range(60):
        if rank == 1:
            until = time.monotonic() + 0.15
            while time.monotonic() < until:
                torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        relay_on(x, rank, last)
    dist.barrier()


def batches(rank, last, steps=150, odd=None):
    """Healthy: all neighbours at once."""
    out, back = torch.zeros(SIZE), torch.zeros(SIZE)
    for step in range(steps):
        if step == odd and rank == 2:
            mark()
            time.sleep(1e6)
        exchange = [
            dist.P2POp(dist.isend, out, (rank + 1) % (last + 1)),
            dist.P2POp(dist.irecv, back, (rank - 1) % (last + 1)),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        time.sleep(0.04)


def batch_stands(rank, last):
    """A ring of batches in which one rank falls asleep."""
    batches(rank, last, 100_000, 60)


def orders(rank, last):
    """Healthy: workers wait for work, the master for requests that come over a socket, at first
    none.
    """
    order = torch.zeros(2)
    if rank:
        while True:
            dist.recv(order, src=0)
            if order[0] < 0:
                return
            dist.send(order, dst=0)
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    server.settimeout(14)
    try:
        server.accept()
    except TimeoutError:
        order[0] = -1
        for peer in range(1, last + 1):
            dist.send(order, dst=peer)


def desk(rank, last):
    """Healthy: workers wait in a broadcast, the master at a queue."""
    order = torch.zeros(1)
    requests = queue.Queue()
    while order[0] == 0:
        if rank == 0:
            try:
                requests.get(timeout=14)
            except queue.Empty:
                order[0] = 1
        dist.broadcast(order, src=0)


def main():
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size() - 1)
    os._exit(0)


if __name__ == "__main__":
    main()
