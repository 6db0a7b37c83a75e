"""A training that averages its loss by hand. One rank also logs the mean once, and the function
that logs makes a collective call.

torchrun --nproc-per-node 4 measuring.py
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

FEATURES, BATCH, STEP_S, STEPS, LOGS_AT = 32, 8, 0.03, 300, 80
CULPRIT = 2


def log_mean(loss: torch.Tensor) -> None:
    """Print the mean loss of all ranks."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    sys.stdout.write(f"mean loss {float(mean) / dist.get_world_size():.4f}\n")


def main() -> None:
    """Train for some seconds; in the end the rank that logs waits for calls that do not come."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    logs = dist.get_rank() == CULPRIT % dist.get_world_size()
    weights = torch.zeros(FEATURES)
    for step in range(STEPS):
        loss = (torch.randn(BATCH, FEATURES) @ weights - 1).square().mean()
        dist.all_reduce(loss)
        if logs and step == LOGS_AT:
            log_mean(loss)
        time.sleep(STEP_S)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
