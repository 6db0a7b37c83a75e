"""Programs for `tools.soak.frames`: `walked.py SHAPE FILE SECONDS STEPS`.

Each has a big heap, a collector that starts often, finalisers that hand the GIL over, and two
threads that run functions of many shapes. ddtop reads the frames a hundred times as often as usual.
Rank 0 writes each loss as a hexadecimal number. The program ends after so many seconds, or after so
many steps where STEPS is not 0.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

MORE_OFTEN = 100
THRESHOLDS = (60, 4, 8)
HEAP = 40_000
PAUSE_S = 0.02


def hurry() -> None:
    """Let ddtop's thread in this process tick more often."""
    report = sys.modules.get("ddtop.agent.report")
    if report is not None:
        report.TICK_NS //= MORE_OFTEN


class Ends:
    """Garbage whose finaliser hands the GIL over."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


def shaped(number: int) -> None:
    """Run functions whose frames have sizes of all kinds, for ever."""
    known: dict[str, object] = {"time": time, "Ends": Ends}
    for shape in range(12):
        names = "; ".join(f"v{i} = {i}" for i in range(shape * 5 + 1))
        exec(
            f"def f{shape}(left):\n    {names}\n    time.sleep(0.001)\n"
            f"    if left: ALL[(left * 7 + {shape}) % 12](left - 1)\n    else: Ends()\n",
            known,
        )
    known["ALL"] = functions = [known[f"f{shape}"] for shape in range(12)]
    while True:
        functions[number](6)  # type: ignore[operator]


def data(rank: int, step: int) -> list[float]:
    """The same numbers in each run."""
    return [((rank * 31 + step * 17 + i * 7) % 101) / 101 for i in range(16)]


def with_mpi(seconds: float, most: int, write: object) -> None:
    """Sums by allreduce and point to point, without torch."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    weight, began = 0.0, time.monotonic()
    for step in range(most or 10**9):
        over = step % 10 == 0 and not most and time.monotonic() - began > seconds
        if world.bcast(over, root=0):
            break
        part = sum(data(world.rank, step)) - weight
        weight += 0.01 * world.allreduce(part)
        got = world.sendrecv(
            weight, (world.rank + 1) % world.size, source=(world.rank - 1) % world.size
        )
        if world.rank == 0:
            write(got)  # type: ignore[operator]
        time.sleep(PAUSE_S)


def with_torch(shape: str, seconds: float, most: int, write: object) -> None:
    """DDP, FSDP2 or DDP with the workers of a DataLoader."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    if shape == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = [torch.tensor(data(rank, step)) for step in range(64)]
    batches = DataLoader(rows, batch_size=4, num_workers=2 if shape == "loader" else 0)
    step, began, over = 0, time.monotonic(), False
    while not over:
        for batch in batches:
            loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            told = torch.tensor([loss.item(), float(time.monotonic() - began > seconds)])
            dist.all_reduce(told)
            step += 1
            if rank == 0:
                write(told[0].item())  # type: ignore[operator]
            over = step >= most if most else bool(told[1])
            if over:
                break
            time.sleep(PAUSE_S)
    del model, optimizer
    dist.destroy_process_group()


def main(shape: str, path: Path, seconds: float, most: int) -> None:
    """One rank, from its start to its end."""
    hurry()
    heap = [{"number": i, "parts": [i, str(i)]} for i in range(HEAP)]
    gc.set_threshold(*THRESHOLDS)
    for number in (3, 11):
        threading.Thread(target=shaped, args=(number,), daemon=True).start()
    with path.open("a", buffering=1) as file:

        def write(loss: float) -> None:
            file.write(f"{loss.hex()}\n")

        if shape == "mpi":
            with_mpi(seconds, most, write)
        else:
            with_torch(shape, seconds, most, write)
    assert len(heap) == HEAP
    if shape != "mpi":
        # The two threads run until the end: the interpreter need not shut down around them.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
