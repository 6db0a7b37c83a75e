"""A healthy training that sleeps most of the time: `light_torch.py SHAPE SEED SECONDS`.

Each shape is what real trainings do beside their steps. It is repeated with other lengths until
the time is over.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

STEP_S = 0.2


class Training:
    """A small model under DDP with its optimizer, and two sources of chance: one that all ranks
    share and one of this rank's own.
    """

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.shared = random.Random(seed)
        self.own = random.Random(seed * 1000 + self.rank)
        self.model = nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, seconds: float = STEP_S) -> None:
        """One step of about this length."""
        seconds *= self.own.uniform(0.97, 1.03)
        time.sleep(seconds) if LIGHT else compute(seconds)
        self.model(torch.randn(8, 64)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, least: int, most: int) -> None:
        """Some steps, as many on each rank."""
        for _ in range(self.shared.randrange(least, most)):
            self.step()


LIGHT = os.environ.get("LIGHT", "1") == "1"
"""Most of each core is left to others; without it ranks work as hard as they can in between."""


def compute(seconds: float) -> None:
    """Compute for this long."""
    end = time.monotonic() + seconds
    one = torch.ones(128, 128)
    while time.monotonic() < end:
        busy_until = time.thread_time() + 0.004
        while time.thread_time() < busy_until:
            torch.mm(one, one)
        if LIGHT:
            time.sleep(0.02)


def write(mebibytes: float) -> None:
    """Write this much to a file, with fsync, in pieces."""
    with tempfile.TemporaryFile() as file:
        for _ in range(int(mebibytes * 4)):
            file.write(os.urandom(1 << 18))
            os.fsync(file.fileno())
            time.sleep(0.03)


def steady(train: Training) -> None:
    """Nothing but steps."""
    train.steps(100, 200)


def evaluation(train: Training) -> None:
    """All ranks evaluate, each its share, and sum up."""
    train.steps(40, 80)
    train.model.eval()
    seconds = train.shared.uniform(3, 25)
    with torch.no_grad():
        end = time.monotonic() + seconds * train.own.uniform(0.85, 1.0)
        while time.monotonic() < end:
            train.model.module(torch.randn(8, 64))
            compute(0.05)
    dist.all_reduce(torch.ones(2))
    train.model.train()


def evaluation_on_one(train: Training) -> None:
    """Rank 0 evaluates and the others wait."""
    train.steps(40, 80)
    seconds = train.shared.uniform(3, 20)
    if train.rank == 0:
        compute(seconds)
    dist.barrier()


def checkpoint_on_one(train: Training) -> None:
    """Rank 0 writes the checkpoint and the others wait."""
    train.steps(40, 80)
    mebibytes = train.shared.uniform(5, 40)
    if train.rank == 0:
        with tempfile.NamedTemporaryFile() as file:
            torch.save(train.model.state_dict(), file.name)
        write(mebibytes)
    dist.barrier()


def checkpoint_on_all(train: Training) -> None:
    """Each rank writes its part."""
    train.steps(40, 80)
    write(train.own.uniform(4, 20))
    dist.barrier()


def compile_again(train: Training) -> None:
    """A part of the model is compiled anew for another shape of data."""
    train.steps(30, 60)
    torch._dynamo.reset()
    part = torch.compile(
        nn.Sequential(*[nn.Linear(32, 32) for _ in range(12)]), backend="aot_eager"
    )
    part(torch.randn(train.own.randrange(2, 9), 32)).sum().backward()
    dist.barrier()


def uneven(train: Training) -> None:
    """Samples of different lengths: each step another rank is the last."""
    for _ in range(train.shared.randrange(60, 120)):
        train.step(STEP_S * train.own.choice((0.6, 0.8, 1.0, 1.2, 1.6)))


def stages(train: Training) -> None:
    """A pipeline: each rank waits for the one before it."""
    for _ in range(train.shared.randrange(30, 60)):
        for _ in range(4):
            value = torch.ones(64)
            if train.rank > 0:
                dist.recv(value, train.rank - 1)
            time.sleep(0.05)
            if train.rank + 1 < train.size:
                dist.send(value, train.rank + 1)
        dist.all_reduce(torch.ones(4))


class Rows(IterableDataset):
    """Rows that take their time while the cache is filled; afterwards they are there at once."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            time.sleep(self.seconds)
            yield torch.randn(64)


def first_epoch(train: Training) -> None:
    """The first epoch fills a cache and is slow, the next ones are fast."""
    batches = train.shared.randrange(15, 30)
    for seconds in (0.2, 0.002, 0.002):
        for batch in DataLoader(Rows(batches * 4, seconds), batch_size=4, num_workers=1):
            compute(STEP_S / 2)
            train.model(batch).square().mean().backward()
            train.optimizer.step()
            train.optimizer.zero_grad()
    train.steps(40, 80)


def autotune(train: Training) -> None:
    """Each rank times variants for as long as it takes, and then all agree on one."""
    train.steps(40, 80)
    for _ in range(train.shared.randrange(2, 6)):
        compute(train.own.uniform(0.5, 4.0))
        dist.all_reduce(torch.ones(8))


def collecting(train: Training) -> None:
    """A full garbage collection on each rank, at the same step."""
    for _ in range(4):
        train.steps(15, 30)
        kept = [[number] for number in range(train.own.randrange(100_000, 600_000))]
        gc.collect()
        del kept


def slow_files(train: Training) -> None:
    """Rank 0 reads data that arrive slowly, as over a network; the others wait."""
    train.steps(40, 80)
    lines = train.shared.randrange(100, 400)
    if train.rank == 0:
        tool = (
            f"import time\nfor _ in range({lines}): print('x' * 900, flush=True); time.sleep(.04)"
        )
        with subprocess.Popen([sys.executable, "-c", tool], stdout=subprocess.PIPE) as source:
            assert source.stdout is not None
            while source.stdout.readline():
                pass
    dist.barrier()


def restart(train: Training) -> None:
    """All ranks leave and join again, as an elastic training does when a node comes or goes."""
    train.steps(40, 80)
    with tempfile.NamedTemporaryFile() as file:
        torch.save(train.model.state_dict(), file.name)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    train.__init__(train.shared.randrange(1 << 30))  # type: ignore[misc]


def mixed(train: Training) -> None:
    """One of the shapes above, chosen at random."""
    shapes = (evaluation, evaluation_on_one, checkpoint_on_one, checkpoint_on_all, uneven)
    train.shared.choice((*shapes, autotune, collecting, first_epoch, slow_files))(train)


def main(shape: str, seed: int, seconds: float) -> None:
    """Repeat the shape until the time is over; rank 0's clock decides."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train = Training(seed)
    begun = time.monotonic()
    over = torch.zeros(1)
    while not over.item():
        globals()[shape](train)
        over[0] = float(train.rank == 0 and time.monotonic() - begun > seconds)
        dist.all_reduce(over)
    # A model that outlives its process group can deadlock in torch: it ends gloo's thread while
    # it holds the GIL that this thread wants.
    del train
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
