"""A DDP loop with two DataLoader workers a rank.

Once the file of the first argument is there, the workers of rank 1 take a lock that the rank held
when it forked them.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()


class Rows(Dataset):
    """Rows that are ready at once, as long as the lock is free."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.environ["RANK"] == "1" and os.path.exists(sys.argv[1]):
            with LOCK:
                pass
        return torch.ones(8)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LOCK.acquire()
    for batch in DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


main()
