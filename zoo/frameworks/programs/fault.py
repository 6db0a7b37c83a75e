"""The fault of rank 1: `FAULT` is empty, or one of the faults of `at` and `in_worker`.

`at()` is called from a hook or callback of the user's in every step, so that the stack has the
framework's frames around it. A fault begins `FAULT_AFTER_S` after the first step, or, if that is
"go", when there is a file of that name in `FAULT_FOLDER`. The file "began" there says when it has.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK = int(os.environ.get("FAULT_RANK", "1"))
FAULT = os.environ.get("FAULT", "")
AFTER_S = os.environ.get("FAULT_AFTER_S", "15")
FOLDER = Path(os.environ.get("FAULT_FOLDER", "/nonexistent"))
STEP_S = 0.05
EVERY = 20
"""Steps between two barriers of the user's own, which the fault `skip` leaves out."""
TRAINS = 6
"""After so many steps the file "trains-RANK" says that this rank trains."""
_state = {"steps": 0, "began": 0.0}


def at(rank: int) -> None:
    """One step of the user's own; the fault of the rank that has one.

    `sleep`: it sleeps here. `raise`: it raises here. `skip`: it leaves out a collective that the
    others call. `worker`: its DataLoader worker delivers no more batches.
    """
    time.sleep(STEP_S)
    _state["steps"] += 1
    _state["began"] = _state["began"] or time.monotonic()
    if _state["steps"] == TRAINS:
        say(f"trains-{rank}")
    due = rank == RANK and is_due()
    if FAULT == "skip" and _state["steps"] % EVERY == 0:
        if due:
            say("began")
        else:
            torch.distributed.barrier()
    if not due or FAULT not in ("sleep", "raise", "worker"):
        return
    if FAULT == "worker":
        # Its worker has this process as its parent.
        say(f"stuck-{os.getpid()}")
    say("began")
    if FAULT == "sleep":
        time.sleep(3600)
    if FAULT == "raise":
        raise RuntimeError("planted")


def is_due() -> bool:
    """Whether the fault of this program begins now."""
    _state["began"] = _state["began"] or time.monotonic()
    if AFTER_S == "go":
        return (FOLDER / "go").exists()
    return time.monotonic() - _state["began"] > float(AFTER_S)


def in_worker() -> None:
    """What the dataset does for each item."""
    if FAULT == "worker" and (FOLDER / f"stuck-{os.getppid()}").exists():
        time.sleep(3600)


def say(name: str) -> None:
    """Leave a file of that name for the program that watches this one."""
    if FOLDER.is_dir() and not (FOLDER / name).exists():
        (FOLDER / name).touch()


class Rows(Dataset):
    """Random rows, the same in every run."""

    def __init__(self, number: int, shape: tuple[int, ...] = (32,)) -> None:
        self.number, self.shape = number, shape

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        in_worker()
        return torch.randn(*self.shape, generator=torch.Generator().manual_seed(index))


def loader(number: int, divided: bool = False) -> DataLoader:
    """Batches of 4 rows from one worker. `divided`: each rank has rows of its own."""
    rows = Rows(number)
    sampler = DistributedSampler(rows, shuffle=False) if divided else None
    return DataLoader(rows, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
