"""Collectives with a root, sub-groups in a ring, and models with buffers."""

import json
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "collects": {
        "story": "Rank 0 gathers; rank 2 sleeps in place of sending, and rank 1 has long gone on.",
        "expected": ["not-in-collective 2"],
        "place": "collects",
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
    },
    "hands-out": {
        "story": "The root of a scatter does not come.",
        "expected": ["not-in-collective 1"],
        "place": "hands_out",
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
        "launcher": "plain",
    },
    "sums-up": {
        "story": "Rank 1 leaves out a reduction to rank 0 and goes on with a broadcast.",
        "expected": ["collective-mismatch 1"],
        "place": "sums_up",
        "cause": [
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\breduce\b[\s\S]{0,160}\bbroadcast\b|\bbroadcast\b[\s\S]{0,160}\breduce\b",
            r"\b(left|leaves) out\b|\bskip(s|ped)\b|\bomit",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
        ],
    },
    "triangle": {
        "story": "Three groups of two ranks, and each rank begins with another group.",
        "source": "meta-pytorch/torchrec#4149",
        "expected": ["wait-cycle 0,1,2"],
        "place": "triangle",
        "cause": [
            r"\bcircular|\ba (circle|cycle|ring)\b|\bdeadlock|\beach other\b",
            r"\bwaits? for (rank )?\d[\s\S]{0,80}\bwaits? for (rank )?\d|\d ?-> ?\d",
            r"\b(each|every|all)\b.{0,60}\bwaits?\b.{0,40}\b(next|other|another|for)\b",
            r"\b(different|another|other|opposite)\b.{0,20}\b(order|groups?)\b",
            r"\border\b.{0,40}\bgroups?\b|\bgroups?\b.{0,40}\border\b",
        ],
        "cure": [
            r"\bsame order\b|\b(one|fixed|global|sorted|common) order\b",
            r"\border\b.{0,40}\b(all|every)\b",
            r"\basync_op\b|\basynchronous",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(order|cycle|circle)\b",
            r"\b(change|swap|reverse|alternate|break)\b.{0,50}\b(sends?|recvs?)\b",
        ],
    },
    "evaluates-alone": {
        "story": (
            "Rank 0 evaluates with the wrapped model, whose buffers are broadcast; the "
            "others are in a barrier."
        ),
        "source": "pytorch/pytorch#54059",
        "expected": ["collective-mismatch 0"],
        "place": "evaluates_alone",
        "cause": [
            r"\bsync_(module_)?buffers|\bbuffers\b",
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\bbroadcast\b[\s\S]{0,160}\bbarrier\b|\bbarrier\b[\s\S]{0,160}\bbroadcast\b",
            r"\b(DDP|DistributedDataParallel|wrapped)\b.{0,60}\b(alone|only|one rank|rank 0)\b",
        ],
        "cure": [
            r"\b(model|ddp|net)\.module\b|\bunwrapped\b|\bunderlying\b|\b(inner|bare) model\b",
            "broadcast_buffers",
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
        ],
    },
    "inner-mismatch": {
        "story": "In a group of two ranks, one calls a barrier and the other an all_reduce.",
        "expected": [
            "collective-mismatch 2,3",
            "collective-mismatch 3",
            "rank-killed 2",
            "rank-killed 3",
        ],
        "place": "inner_mismatch",
        "cause": [
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\bbarrier\b[\s\S]{0,160}\ball_?reduce\b|\ball_?reduce\b[\s\S]{0,160}\bbarrier\b",
            r"\bSIGABRT\b|\bsignal 6\b|\bpreamble\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            "TORCH_DISTRIBUTED_DEBUG",
        ],
        "world": 4,
    },
    "odd-one-asleep": {
        "story": "The ranks work in pairs; one sleeps, and only its partner waits at first.",
        "expected": ["not-in-collective 3"],
        "place": "odd_one_asleep",
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
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def collects(rank, size):
    """Rank 0 gathers; one rank sleeps instead of sending, those before it have long gone on."""
    mine = torch.ones(32)
    for step in range(100_000):
        if step == 70 and rank == 2:
            mark()
            time.sleep(1e6)
        dist.gather(mine, [torch.zeros(32) for _ in range(size)] if rank == 0 else None, dst=0)
        dist.broadcast(mine, src=0)
        time.sleep(0.02)


def hands_out(rank, size):
    """The root of a scatter does not come."""
    mine = torch.ones(32)
    for step in range(100_000):
        if step == 70 and rank == 1:
            mark()
            time.sleep(1e6)
        dist.scatter(mine, [torch.ones(32) for _ in range(size)] if rank == 1 else None, src=1)
        dist.all_reduce(mine)
        time.sleep(0.02)


def sums_up(rank, size):
    """A reduction to rank 0 that one rank leaves out, going on with a broadcast."""
    mine = torch.ones(100_000)
    for step in range(100_000):
        if step == 70 and rank == 1:
            mark()
        else:
            dist.reduce(mine, dst=0)
        dist.broadcast(mine[:16].clone(), src=0)
        time.sleep(0.02)


def triangle(rank, size):
    """Three groups of two, each rank begins with another."""
    groups = [dist.new_group([first, (first + 1) % 3]) for first in range(3)]
    mine = torch.ones(64)
    for step in range(100_000):
        order = [rank, (rank - 1) % 3] if step == 50 else sorted([rank, (rank - 1) % 3])
        if step == 50:
            mark()
        for number in order:
            dist.all_reduce(mine, group=groups[number])
        time.sleep(0.03)


def evaluates_alone(rank, size):
    """Rank 0 evaluates with the wrapped model, whose buffers are broadcast; the others are at
    the barrier.
    """
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16))
    model = torch.nn.parallel.DistributedDataParallel(net)
    rows = torch.randn(8, 16)
    for step in range(100_000):
        model(rows).sum().backward()
        time.sleep(0.02)
        if step % 50 == 49:
            if rank == 0:
                mark()
                model(rows)
            dist.barrier()


def inner_mismatch(rank, size):
    """Two of four ranks reduce another number of values in their own group."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    everyone = torch.ones(8)
    for step in range(100_000):
        dist.all_reduce(everyone)
        if step == 50 and rank == 3:
            mark()
            dist.barrier(group=pair)
        else:
            dist.all_reduce(everyone, group=pair)
        time.sleep(0.03)


def odd_one_asleep(rank, size):
    """Work in pairs, one rank stands, and only its partner waits at first."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    values = torch.ones(8)
    for step in range(100_000):
        for _ in range(20):
            if step == 8 and rank == 3:
                mark()
                time.sleep(1e6)
            dist.all_reduce(values, group=pair)
            time.sleep(0.02)
        if step % 100 == 99:
            dist.all_reduce(values)


def main():
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    main()
