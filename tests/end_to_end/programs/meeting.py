"""Ranks that meet, and one that first waits for a line in a named pipe: `meeting.py PIPE`, or
`meeting.py PIPE STORE` by mp.spawn.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ddtop


def ask_for_licence(pipe: str) -> None:
    """Wait for permission to begin."""
    Path(pipe).read_bytes()


def work(rank: int, size: int, pipe: str, store: str | None) -> None:
    """One rank. The last one waits for permission first."""
    torch.set_num_threads(1)
    if pipe and rank == size - 1:
        ask_for_licence(pipe)
    if store is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    numbers = torch.ones(10)
    for _ in range(1_000_000):
        time.sleep(0.02)
        dist.all_reduce(numbers)
        numbers.fill_(1)
        ddtop.step()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        mp.spawn(work, args=(3, sys.argv[1], sys.argv[2]), nprocs=3)
    else:
        work(
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
            sys.argv[1] if len(sys.argv) > 1 else "",
            None,
        )
