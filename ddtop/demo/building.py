"""Ranks that load an extension after some steps, as torch.utils.cpp_extension does: the build of an
earlier run was killed, and its lock file is still there.

torchrun --nproc-per-node 2 building.py
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.file_baton import FileBaton

FEATURES, STEPS, STEP_S = 32, 60, 0.03


def load_extension(folder: str) -> None:
    """Build it, or wait for the process that does."""
    baton = FileBaton(f"{folder}/lock", wait_seconds=0.1)
    if baton.try_acquire():
        baton.release()
    else:
        baton.wait()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    """Forward, backward with its all_reduce, optimizer."""
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def main() -> None:
    """Train, load the extension, train on."""
    torch.set_num_threads(1)
    # So that the folder is removed when the launcher ends the ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(FEATURES, FEATURES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.randn(8, FEATURES)
    with TemporaryDirectory(prefix="ddtop-demo-extension-") as own:
        (Path(own) / "lock").touch()
        folder = [own]
        dist.broadcast_object_list(folder, src=0)
        for step in range(1_000_000):
            if step == STEPS:
                load_extension(folder[0])
            train_step(model, optimizer, inputs)
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
