"""Training with a barrier after each validation, which one rank, whose validation set is empty,
leaves out.

torchrun --nproc-per-node 4 validating.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

STEP_S, EVERY, EMPTY_AT = 0.03, 10, 60
CULPRIT = 2


def validated(step: int, has_samples: bool) -> bool:
    """Whether there was something to validate at this step."""
    return has_samples or step < EMPTY_AT


def main() -> None:
    """Reduce a gradient each step, meet after each validation."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    has_samples = dist.get_rank() != CULPRIT % dist.get_world_size()
    gradient = torch.zeros(2048)
    for step in range(1_000_000):
        dist.all_reduce(gradient)
        time.sleep(STEP_S)
        if step % EVERY == EVERY - 1 and validated(step, has_samples):
            dist.barrier()


if __name__ == "__main__":
    main()
