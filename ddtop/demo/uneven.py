"""A DDP training whose shards are not equally long: one rank runs out of batches, says nothing, and
leaves.

torchrun --nproc-per-node 4 uneven.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

FEATURES, BATCH, STEP_S = 32, 8, 0.03
LONG_SHARD, SHORT_SHARD = 1_000_000, 80
CULPRIT = 2


def batches(count: int) -> Iterator[torch.Tensor]:
    """The shard of one rank."""
    for _ in range(count):
        yield torch.randn(BATCH, FEATURES)


def main() -> None:
    """One epoch; nobody has agreed on how many steps it has."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    short = dist.get_rank() == CULPRIT % dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches(SHORT_SHARD if short else LONG_SHARD):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
