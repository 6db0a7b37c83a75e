"""A program whose objects count the calls of their methods, and by which thread.

It prints the counts, which are the same watched and unwatched.
"""

from __future__ import annotations

import collections
import gc
import io
import os
import sys
import threading
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset

MAIN = threading.get_ident()
CALLS: collections.Counter[str] = collections.Counter()
LONG_S = 4.0
"""The agent reports once a second."""


def called(name: str) -> None:
    CALLS[name + ("" if threading.get_ident() == MAIN else " by another thread")] += 1


def train() -> None:
    """Some seconds of steps of a model in DistributedDataParallel, with a DataLoader."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True)
    for _ in range(20):
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            time.sleep(0.01)


class Rows(Dataset):
    """Its `__len__` is asked by torch alone, whose number of calls depends on the passes only."""

    lock = threading.Lock()

    def __len__(self) -> int:
        if threading.get_ident() != MAIN:
            called("length")
        with self.lock:
            return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))

    def __getattr__(self, name: str) -> object:
        called(f"attribute {name}")
        raise AttributeError(name)


class Net(nn.Linear):
    """It has its own way to list its parameters."""

    def __init__(self) -> None:
        super().__init__(8, 1)

    def named_parameters(self, *args, **kwargs):
        called("parameters")
        return super().named_parameters(*args, **kwargs)


class Counter(os.PathLike):
    """Each look at the path gives the next one."""

    number = 0

    def __fspath__(self) -> str:
        self.number += 1
        return f"ck{self.number}"


class Nameless(io.BytesIO):
    @property
    def name(self) -> str:
        called("name of a file")
        raise RuntimeError("it has none")


class Worker(threading.Thread):
    @property
    def name(self) -> str:
        if sys._getframe(1).f_globals["__name__"] != "threading":
            called("name of a thread")
        return "worker"

    @name.setter
    def name(self, value: str) -> None:
        self._name = value


class Seen(TorchFunctionMode):
    """What is asked of tensors while it is on."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        called(f"function {getattr(function, '__name__', function)}")
        return function(*args, **(kwargs or {}))


class Cyclic:
    """Only the collector ends it, on the thread that began the collection."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)
        # Threads of the program end some, too.
        with open("/proc/thread-self/comm", encoding="utf-8") as name:
            CALLS["finalisers by ddtop"] += name.read() == "ddtop\n"


def objects() -> None:
    distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    worker = Worker(target=time.sleep, args=(2 * LONG_S,), daemon=True)
    worker.start()
    train()
    path = Counter()
    for _ in range(3):
        torch.save({}, path)
    torch.save({}, Nameless())
    with Seen():
        distributed.all_reduce(torch.ones(3))
        next(iter(DataLoader([torch.arange(8.0)] * 4, batch_size=2)))
    print(sorted(name for name in os.listdir() if name.startswith("ck")))
    distributed.destroy_process_group()


def finalisers() -> None:
    gc.set_threshold(20, 2, 2)
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        for _ in range(50):
            Cyclic()
    print(gc.get_threshold(), gc.isenabled())


class LoudError(Exception):
    def __str__(self) -> str:
        print("asked for its text", flush=True)
        raise SystemExit(77)


def raises() -> None:
    raise LoudError("quiet")


class Stderr:
    """What a logger puts in the place of stderr."""

    def write(self, text: str) -> int:
        called("write")
        return len(text)

    def flush(self) -> None:
        called("flush")


def stderr() -> None:
    sys.stderr = Stderr()
    distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    train()
    distributed.destroy_process_group()


{"objects": objects, "finalisers": finalisers, "raises": raises, "stderr": stderr}[sys.argv[1]]()
print(sorted(CALLS.items()))
