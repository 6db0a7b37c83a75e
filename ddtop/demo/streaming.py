"""Training on records that DataLoader workers read; one worker of one rank waits for a shard that
is never delivered.

torchrun --nproc-per-node 4 streaming.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

FEATURES, BATCH, STEP_S, RECORDS = 16, 4, 0.03, 10_000_000
MISSING_AT = 200
CULPRIT = 2


def wait_for_shard() -> None:
    """The upload that should say that the shard is there has died."""
    read_end, _write_end = os.pipe()
    os.read(read_end, 1)


class Records(IterableDataset[torch.Tensor]):  # type: ignore[misc]  # torch is Any here
    """Records of a shard; a worker with an `incomplete` one waits for the rest of it."""

    def __init__(self, incomplete: bool) -> None:
        self.incomplete = incomplete

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        for number in range(RECORDS):
            if self.incomplete and number == MISSING_AT and worker is not None and worker.id == 1:
                wait_for_shard()
            yield torch.full((FEATURES,), float(number))


def main() -> None:
    """Train until stopped."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    incomplete = dist.get_rank() == CULPRIT % dist.get_world_size()
    weight = torch.zeros(FEATURES, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-12)
    for batch in DataLoader(Records(incomplete), batch_size=BATCH, num_workers=2):
        optimizer.zero_grad()
        (batch @ weight).sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
