"""Ranks that meet and reduce: what goes wrong on the way there is in the environment that they are
started with.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python meeting.py
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

STEP_S = 0.03


def wait_for_licence() -> None:
    """The licence server does not answer."""
    read_end, _write_end = os.pipe()
    os.read(read_end, 1)


def main() -> None:
    """Meet the others, then reduce a gradient each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--store",
        help="a file through which the ranks meet; without one they meet at"
        " MASTER_ADDR:MASTER_PORT",
    )
    parser.add_argument("--licensed", type=int, help="the rank that asks for a licence first")
    parser.add_argument(
        "--dies-after",
        type=int,
        default=1_000_000,
        help="number of steps after which it dies as if killed",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == options.licensed:
        wait_for_licence()
    method = f"file://{options.store}" if options.store else None
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
    gradient = torch.zeros(1024)
    for _ in range(options.dies_after):
        dist.all_reduce(gradient)
        time.sleep(STEP_S)
    # What the store has written stays behind.
    os._exit(1)


if __name__ == "__main__":
    main()
