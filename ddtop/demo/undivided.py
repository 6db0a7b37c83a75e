"""DDP whose loader gives every rank the whole dataset, or whose sampler shuffles alike in every
epoch.

torchrun --nproc-per-node 4 undivided.py
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, FEATURES, BATCH, STEP_S = 512, 32, 8, 0.03


def main() -> None:
    """Train until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--sampler", action="store_true", help="with a DistributedSampler but without set_epoch"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % 10)
    sampler = DistributedSampler(data) if options.sampler else None
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, shuffle=sampler is None)
    model = nn.parallel.DistributedDataParallel(nn.Linear(FEATURES, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
