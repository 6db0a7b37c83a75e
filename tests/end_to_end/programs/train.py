"""A loop of all_reduce and optimizer steps, and what goes wrong in it on rank 1."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

FAULT_STEP = 20


def wait_for_licence() -> None:
    """Sleep for ever."""
    os.read(os.pipe()[0], 1)


def misbehave(fault: str, numbers: torch.Tensor) -> None:
    """What rank 1 does at FAULT_STEP instead of all_reduce."""
    if fault == "stands":
        wait_for_licence()
    elif fault == "raises":
        raise ValueError("bad sample 7")
    elif fault == "lingers":
        threading.Thread(target=time.sleep, args=(3600,)).start()
        raise KeyError("lost")
    elif fault == "exits":
        os._exit(7)
    elif fault == "leaves":
        sys.exit(0)
    elif fault == "broadcasts":
        dist.broadcast(numbers, 0)
    elif fault == "freezes":
        # Any signal would end the sleep, so a look that sends one ends the fault.
        ctypes.PyDLL(None).sleep(3600)


def main(fault: str, steps: int) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weights], lr=0.01)
    rank = dist.get_rank()
    for step in range(steps):
        time.sleep(0.02)
        weights.grad = torch.ones(1000)
        if step == FAULT_STEP and fault == "differs":
            # The tensor is so large that gloo accepts the smaller side; small tensors of different
            # size make it abort.
            dist.all_reduce(torch.ones(4_000_000 * (1 + rank)))
        elif step == FAULT_STEP and rank == 1 and fault != "none":
            misbehave(fault, weights.grad)
        else:
            dist.all_reduce(weights.grad)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
