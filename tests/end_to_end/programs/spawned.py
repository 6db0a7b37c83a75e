"""mp.spawn: the ranks have no RANK in their environment. Only the arguments of init_process_group
have it.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, size: int, store: str, fault: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    numbers = torch.ones(10)
    for step in range(1_000_000):
        if step == 20 and rank == 1 and fault == "raises":
            raise ValueError("bad sample 7")
        time.sleep(0.02)
        dist.all_reduce(numbers)
        numbers.fill_(1)


if __name__ == "__main__":
    mp.spawn(work, args=(2, sys.argv[1], sys.argv[2]), nprocs=2)
