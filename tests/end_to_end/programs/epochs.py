"""A DDP loop over epochs with two DataLoader workers a rank: `epochs.py START_METHOD WHAT`.

Once the file `go` is there, on rank 1: WHAT `stopped`: the epoch that begins next finds persistent
workers (`workers` has their pids before); `reads`: a worker opens a named pipe that nobody writes
to.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows that are ready at once."""

    def __init__(self, reads: bool) -> None:
        self.reads = reads

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.reads and Path("go").exists():
            self.read_shard()
        return torch.ones(8)

    def read_shard(self) -> bytes:
        return Path("pipe").read_bytes()


def main(method: str, what: str) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    culprit = dist.get_rank() == 1
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Rows(culprit and what == "reads"),
        4,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    told = False
    while True:
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
        if culprit and what == "stopped" and not told:
            # Between two epochs, for as long as the test needs.
            told = True
            Path("workers.new").write_text(
                " ".join(str(worker.pid) for worker in loader._iterator._workers)
            )
            os.replace("workers.new", "workers")
            while not Path("go").exists():
                time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
