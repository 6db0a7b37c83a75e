"""Four ranks in rows and columns."""

import json
import subprocess
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "crossed": {
        "story": "Ranks 0 and 1 use two groups of the same members in opposite order.",
        "source": "NVIDIA/nccl#783",
        "expected": ["wait-cycle 0,1"],
        "place": "crossed",
        "cause": [
            r"(opposite|different|other|reverse\w*|crossed|not the same) order",
            r"order\b.{0,60}(differ|opposite|reverse|other)|each other|circular|dead-?lock",
        ],
        "cure": [
            r"(same|one|fixed|global|agreed) order|in order\b|consistent|re-?order|swap",
            r"sort\w* the groups",
            "use_local_synchronization ?= ?False|without use_local_synchronization",
        ],
        "world": 4,
    },
    "converts": {
        "story": (
            "Rank 3 waits for a program; its row waits for it, and their columns wait for them."
        ),
        "expected": ["not-in-collective 3"],
        "place": "converts",
        "cause": [
            r"\bchild|sub-?process|\bfork|wait(pid|4|id)|\bdo_wait|popen",
            "(program|command) .{0,40}(end|finish|run|wait)",
        ],
        "cure": [
            r"(kill|end|stop)\b.{0,40}(child|program|sub-?process)",
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
        "world": 4,
    },
    "left-out": {
        "story": "A rank outside the group leaves out a new_group, and numbers differ from there.",
        "expected": ["collective-mismatch 2"],
        "place": "left_out",
        "cause": [
            r"new_group|(mak|creat|made)\w*.{0,40}\bgroup|number of groups",
            "group.{0,60}(skip|left out|miss|not made|not created)",
            "(skip|left out|miss).{0,60}group",
        ],
        "cure": [
            r"new_group.{0,80}(all|every|member)|(all|every)\b.{0,80}new_group|non-?members?",
            "use_local_synchronization",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
        ],
        "world": 4,
    },
    "other-shape": {
        "story": "One rank reads another shape for the mesh from its configuration.",
        "expected": ["collective-mismatch 3"],
        "place": "other_shape",
        "cause": [
            r"\bmesh",
            "new_group|(different|other|not the same) .{0,20}(group|member|shape)",
            r"(shape|group|member)s?\b.{0,60}(differ|not the same|unequal)",
        ],
        "cure": [
            "same .{0,20}(shape|mesh|config|group|member|order|argument)",
            r"(compare|check|print|look|log)\w*\b.{0,60}(config|mesh|shape|(?<!process )group"
            r"|member)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
        ],
        "world": 4,
    },
    "local-crossed": {
        "story": "Two ranks make two local groups that they share in opposite order.",
        "expected": ["wait-cycle 0,1"],
        "place": "local_crossed",
        "cause": [
            r"(opposite|different|other|reverse\w*|crossed|not the same) order",
            r"order\b.{0,60}(differ|opposite|reverse|other)|each other|circular|dead-?lock",
        ],
        "cure": [
            r"(same|one|fixed|global|agreed) order|in order\b|consistent|re-?order|swap",
            r"sort\w* the groups",
            "use_local_synchronization ?= ?False|without use_local_synchronization",
        ],
        "world": 4,
    },
    "local-late": {
        "story": "Groups are made by their members only, and one rank is late for each.",
        "expected": [],
        "world": 4,
    },
    "later": {
        "story": "A group is made in the middle of the run, for some ranks only.",
        "expected": [],
        "world": 4,
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def crossed(row, column, everyone):
    """Two groups of the same two ranks, in opposite order."""
    first = dist.new_group([0, 1])
    second = dist.new_group([0, 1])
    x = torch.ones(32)
    for step in range(100_000):
        dist.all_reduce(x, group=everyone)
        time.sleep(0.02)
        if step == 80:
            mark()
        turned = step == 80 and dist.get_rank() == 1
        order = (second, first) if turned else (first, second)
        if dist.get_rank() in (0, 1):
            for group in order:
                dist.all_reduce(x, group=group)


def converts(row, column, everyone):
    """One rank waits for a program; its row waits for it, their columns for them."""
    x = torch.ones(32)
    for step in range(100_000):
        dist.all_reduce(x, group=row)
        dist.all_reduce(x, group=column)
        time.sleep(0.02)
        if step == 80 and dist.get_rank() == 3:
            mark()
            tool = [sys.executable, "-c", "import os; r, w = os.pipe(); os.read(r, 1)"]
            subprocess.run(tool, check=True)


def trains(steps, group=None):
    x = torch.ones(32)
    for _ in range(steps):
        dist.all_reduce(x, group=group)
        time.sleep(0.02)


def left_out(row, column, everyone):
    """`if rank in ...`: a rank that is not a member does not call new_group."""
    trains(80)
    rank = dist.get_rank()
    if rank == 2:
        mark()
    else:
        dist.new_group([0, 1])
    both = dist.new_group([1, 2, 3])
    if rank > 0:
        trains(100_000, both)
    trains(100_000)


def other_shape(row, column, everyone):
    """One rank makes a mesh of one row, the others of two."""
    from torch.distributed.device_mesh import init_device_mesh

    trains(80)
    last = dist.get_rank() == 3
    if last:
        mark()
    mesh = init_device_mesh("cpu", (1, 4) if last else (2, 2), mesh_dim_names=("dp", "tp"))
    trains(100_000, mesh.get_group("tp"))


def local_crossed(row, column, everyone):
    """Only members make these groups, in opposite order."""
    trains(80)
    rank = dist.get_rank()
    members = [[0, 1], [0, 1, 2]]
    if rank == 1:
        mark()
        members.reverse()
    for ranks in members:
        if rank in ranks:
            dist.new_group(ranks, use_local_synchronization=True)
    trains(100_000)


def local_late(row, column, everyone):
    """Healthy: each member of a local group comes to it, one of them seconds later."""
    trains(40)
    rank = dist.get_rank()
    for late, parts in ((1, [[0, 1], [2, 3]]), (2, [[0, 2], [1, 3]]), (3, [[0, 3], [1, 2]])):
        if rank == late:
            time.sleep(3.5)
        for ranks in parts if rank else parts[::-1]:
            if rank in ranks:
                dist.new_group(ranks, use_local_synchronization=True)
        trains(40)


def later(row, column, everyone):
    """Healthy: a group made in the middle of the run, for some ranks only."""
    x = torch.ones(32)
    for step in range(300):
        dist.all_reduce(x, group=row)
        time.sleep(0.02)
        if step == 100:
            fresh = dist.new_group([1, 2, 3])
        if step > 100 and dist.get_rank() > 0:
            dist.all_reduce(x, group=fresh)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    globals()[sys.argv[1]](rows[rank // 2], columns[rank % 2], dist.group.WORLD)


if __name__ == "__main__":
    main()
