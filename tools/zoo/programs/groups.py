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
        "world": 4,
    },
    "converts": {
        "story": (
            "Rank 3 waits for a program; its row waits for it, and their columns wait for them."
        ),
        "expected": ["not-in-collective 3"],
        "place": "converts",
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
