"""accumulates.py PIPE: gradient accumulation over DDP with several buckets, persistent DataLoader
workers, as trainers set it up.

A worker of rank 1 opens PIPE, a named pipe that nobody writes to, once torch's recorder shows an
open collective on rank 1 although all have completed. This happens after a sixth of all backwards.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ACCUMULATED, WIDTH, SETTLED_S = 2, 384, 0.02


class Tokens(Dataset):
    """Rows of made-up data, until the pipe has to be read."""

    def __init__(self, rank: int, pipe: Path) -> None:
        self.rank, self.pipe = rank, pipe
        self.now = pipe.with_suffix(".now")

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        if self.rank == 1 and self.now.exists():
            self.pipe.read_bytes()
        return torch.full((WIDTH,), float(index % 7))


def lags() -> bool:
    """Whether the recorder shows an open collective of the default group."""
    time.sleep(SETTLED_S)
    status = json.loads(_dump_fr_trace_json(False, False))["pg_status"]["0"]
    return status["last_enqueued_collective"] != status["last_completed_collective"]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Tokens(rank, Path(sys.argv[1]))
    # At most one batch is ready when the worker stops. No all_reduce follows it, so the status
    # stays as it is.
    loader = DataLoader(
        data, batch_size=4, num_workers=1, persistent_workers=True, prefetch_factor=1
    )
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(10)]), bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for number, batch in enumerate(loader):
        if number % ACCUMULATED != ACCUMULATED - 1:
            with model.no_sync():
                model(batch).sum().backward()
            continue
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1 and number > 10 and lags():
            data.now.touch()
            print("lags", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
