"""A training whose ranks Slurm numbers. Rank 1 sleeps after a few steps, and the others wait.

With a second argument all ranks train.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    """`port`: where the ranks meet, on this host."""
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    address = f"tcp://127.0.0.1:{sys.argv[1]}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    for step in range(10**9):
        if rank == 1 and step == 20 and len(sys.argv) == 2:
            time.sleep(3600)
        dist.all_reduce(torch.ones(8))
        time.sleep(0.02)


main()
