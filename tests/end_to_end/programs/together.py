"""All ranks sum the same numbers, step after step. The ranks that the file of the first argument
lists stop instead.

The sum goes through all hosts where the second argument is "all", else only through the ranks of
this host. With a third argument they finish together after so many seconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LOOK_EVERY = 10


def wait_for_licence() -> None:
    """Sleep for ever."""
    os.read(os.pipe()[0], 1)


def is_over(end: float) -> bool:
    """Rank 0 decides, and all ranks get the same answer."""
    over = torch.tensor([float(dist.get_rank() == 0 and time.monotonic() > end)])
    dist.all_reduce(over)
    return bool(over)


def main(orders: Path, reach: str, seconds: float | None) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group, _ = (
        dist.new_subgroups(int(os.environ["LOCAL_WORLD_SIZE"])) if reach == "host" else (None, None)
    )
    weights = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weights], lr=0.01)
    begun = time.monotonic()
    for step in range(10**9):
        time.sleep(0.02)
        if (
            step % LOOK_EVERY == 0
            and orders.exists()
            and str(dist.get_rank()) in orders.read_text().split()
        ):
            wait_for_licence()
        weights.grad = torch.ones(1000)
        dist.all_reduce(weights.grad, group=group)
        optimizer.step()
        if seconds is not None and step % LOOK_EVERY == 0 and is_over(begun + seconds):
            print("finished", step, flush=True)
            break
    dist.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else None)
