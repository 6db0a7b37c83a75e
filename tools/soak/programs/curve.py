"""A training whose losses are the same each time, to the last bit: `curve.py FILE SECONDS STEPS`.

It ends after so many seconds, or after so many steps without any pause where STEPS is not 0. Rank 0
writes each loss as a hexadecimal number, so that two files can be compared byte by byte.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

LOOK_EVERY = 10
PAUSE_S = 0.4


def is_over(end: float) -> bool:
    """Rank 0 decides, and all ranks get the same answer."""
    over = torch.tensor([float(dist.get_rank() == 0 and time.monotonic() > end)])
    dist.all_reduce(over)
    return bool(over)


def train(path: Path, seconds: float, most: int) -> None:
    """Train, and forget the model."""
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1000 + rank)
    end = time.monotonic() + seconds
    with path.open("w", buffering=1) if rank == 0 else open("/dev/null", "w") as file:
        for step in range(most or 10**9):
            if step % LOOK_EVERY == 0 and is_over(end) and not most:
                break
            if not most:
                time.sleep(PAUSE_S)
            rows = torch.randn(16, 32, generator=data)
            loss = (model(rows).squeeze(1) - rows.sum(1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            file.write(f"{total.item().hex()}\n")


def main(path: Path, seconds: float, most: int) -> None:
    """Train, then end. A model that outlives its process group can deadlock in torch: it ends
    gloo's thread while it holds the GIL that this thread wants.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    train(path, seconds, most)
    gc.collect()
    dist.destroy_process_group()
    print("finished", flush=True)


main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
