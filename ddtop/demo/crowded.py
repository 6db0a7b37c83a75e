"""DDP on ranks that may all use one CPU only: a launcher's binding that was meant for one rank a
node.

torchrun --nproc-per-node 4 crowded.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

FEATURES, BATCH = 512, 1024


def main() -> None:
    """Train until stopped."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    images, labels = torch.randn(BATCH, FEATURES), torch.arange(BATCH) % 10
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
