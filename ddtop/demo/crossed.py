"""Two groups of the same two ranks, for gradients and for metrics: at one step one of the two takes
them in the other order.

torchrun --nproc-per-node 4 crossed.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

STEP_S, LOGS_FIRST_AT = 0.03, 60
PAIR = (0, 1)


def main() -> None:
    """All ranks reduce together; the pair reduces gradients, then metrics, by itself."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients, metrics = dist.new_group(list(PAIR)), dist.new_group(list(PAIR))
    values = torch.zeros(64)
    for step in range(1_000_000):
        dist.all_reduce(values)
        if rank in PAIR:
            logs_first = rank == PAIR[1] and step == LOGS_FIRST_AT
            for group in (metrics, gradients) if logs_first else (gradients, metrics):
                dist.all_reduce(values, group=group)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
