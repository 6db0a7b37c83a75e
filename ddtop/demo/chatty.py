"""Gradients averaged by hand, one all_reduce a parameter, and a metric for each layer: many small
collectives a step.

torchrun --nproc-per-node 4 chatty.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

LAYERS, FEATURES, STEP_S = 24, 32, 0.002


def main() -> None:
    """Train until stopped."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.randn(8, FEATURES)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            dist.all_reduce(parameter.grad.norm())
        optimizer.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
