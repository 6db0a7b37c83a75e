"""A master that calls its worker by RPC; the worker never answers the last call."""

import os
import time

import torch
from torch.distributed import rpc


def add(a, b):
    """A call that gets an answer."""
    return a + b


def annotate(sample):
    """A call that gets none."""
    time.sleep(600)
    return sample


def main():
    """Rank 0 calls, rank 1 serves."""
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    if rank == 0:
        rpc.rpc_sync("worker1", add, args=(torch.ones(2), 1))
        rpc.rpc_sync("worker1", annotate, args=(1,), timeout=0)
    rpc.shutdown()


if __name__ == "__main__":
    main()
