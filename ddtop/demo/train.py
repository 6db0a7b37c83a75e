"""A small DDP training on gloo with a DataLoader, and one fault of the user's choosing: real
processes, real faults.

torchrun --nproc-per-node 4 train.py --fault not-in-collective
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULTS = (
    "healthy",
    "not-in-collective",
    "rank-crashed",
    "rank-killed",
    "rank-stopped",
    "interpreter-frozen",
    "input-bound",
)
FEATURES, SAMPLES, BATCH = 64, 4096, 16
STEP_S, STEPS_BEFORE, LIFE_S = 0.03, 60, 3600.0


class Images(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]  # torch is Any here
    """Random samples that take `seconds` each to load."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.seconds:
            time.sleep(self.seconds)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(FEATURES, generator=generator), torch.tensor(index % 10)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> None:
    """Forward, backward with its all_reduce, optimizer."""
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def wait_for_licence() -> None:
    """What the rank does instead of its collective: it waits for something that never comes."""
    read_end, _write_end = os.pipe()
    os.read(read_end, 1)


def decode_in_c() -> None:
    """A C extension that reads without giving the interpreter's lock back."""
    read_end, _write_end = os.pipe()
    ctypes.PyDLL(None).read(read_end, ctypes.create_string_buffer(1), ctypes.c_size_t(1))


def check_loss(loss: float) -> None:
    """Stop at once where training has become pointless."""
    if math.isnan(loss):
        raise ValueError("the loss is nan")


def misbehave(fault: str) -> None:
    """The fault of the rank that has it."""
    if fault == "not-in-collective":
        wait_for_licence()
    elif fault == "rank-crashed":
        check_loss(float("nan"))
    elif fault == "interpreter-frozen":
        decode_in_c()
    elif fault == "rank-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "rank-stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    """Train until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="healthy")
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    culprit = 2 % dist.get_world_size()
    slow = fault == "input-bound"
    dataset = Images(0.008 if slow else 0.0)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, batch_size=BATCH, sampler=sampler, num_workers=1, persistent_workers=True
    )
    network = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 10))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, until = 0, time.monotonic() + LIFE_S
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            if step == STEPS_BEFORE and dist.get_rank() == culprit:
                misbehave(fault)
            train_step(model, optimizer, images, labels)
            time.sleep(STEP_S)
            step += 1
        if time.monotonic() > until:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
