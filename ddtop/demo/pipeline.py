"""Pipeline stages that hand activations on by send and recv, tagged with the micro-batch: one stage
counts one too far.

torchrun --nproc-per-node 4 pipeline.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

STEP_S, SKIPS_AT, SIZE = 0.03, 60, 1024


def forward(activation: torch.Tensor, rank: int, last: int, sent_as: int, expected_as: int) -> None:
    """One micro-batch from the stage before to the stage behind."""
    if rank > 0:
        dist.recv(activation, src=rank - 1, tag=expected_as)
    if rank < last:
        dist.send(activation, dst=rank + 1, tag=sent_as)


def main() -> None:
    """Micro-batches, one after the other; the first stage sends a new one when the last has
    answered.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    activation, done = torch.zeros(SIZE), torch.zeros(1)
    for micro_batch in range(1_000_000):
        skips = rank == 1 and micro_batch == SKIPS_AT
        forward(activation, rank, last, micro_batch, micro_batch + skips)
        if rank == last:
            dist.send(done, dst=0, tag=micro_batch)
        elif rank == 0:
            dist.recv(done, src=last, tag=micro_batch)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
