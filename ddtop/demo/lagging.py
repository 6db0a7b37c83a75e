"""DDP whose model penalises gradients in its own backward, and one rank that does more there than
the others.

torchrun --nproc-per-node 4 lagging.py
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

FEATURES, BATCH = 64, 16
STEP_S, EXTRA_S, LATE_FROM = 0.02, 0.2, 60
CULPRIT = 1


class Penalty(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """The identity; its backward looks at the gradient, on one rank for long."""

    extra_s = 0.0

    @staticmethod
    def forward(_context: Any, values: torch.Tensor) -> torch.Tensor:
        """The same values."""
        return values.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The same gradient, after a look at its neighbours."""
        compare_with_neighbours(Penalty.extra_s)
        return gradient


def compare_with_neighbours(seconds: float) -> None:
    """A search that takes longer the more it finds."""
    time.sleep(seconds)


class Network(nn.Module):  # type: ignore[misc]
    """Two layers with the penalty between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Ten numbers an image."""
        return self.last(Penalty.apply(torch.relu(self.first(images))))


def main() -> None:
    """Train until stopped."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == CULPRIT % dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(BATCH, FEATURES), torch.arange(BATCH) % 10
    for step in range(1_000_000):
        if slow and step == LATE_FROM:
            Penalty.extra_s = EXTRA_S
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
