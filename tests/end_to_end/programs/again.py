"""Trains, destroys all groups, makes them anew and trains on; then rank 1 sleeps."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

FOLDER, PAUSE_S = sys.argv[1], float(sys.argv[2])


def joins(name: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{FOLDER}/{name}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def reduces(times: int) -> None:
    for _ in range(times):
        dist.all_reduce(torch.ones(4))
        time.sleep(0.002)


joins("first")
reduces(600)
dist.destroy_process_group()
time.sleep(PAUSE_S)
joins("second")
reduces(300)
if dist.get_rank() == 1:
    time.sleep(120)
dist.all_reduce(torch.ones(4))
