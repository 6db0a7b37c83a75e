"""A training of several ranks under NCCL that all use one GPU, and one fault, by its name.

Prints TRAINS after ten steps and FAULT when a rank is about to start its fault. Needs an NCCL that
accepts several ranks on one GPU (2.30.3 or later, `NCCL_MULTI_RANK_GPU_ENABLE=1`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LONG_S = 600.0
FAULT_STEP = 20


def say(word: str) -> None:
    """One line that the program which started this job waits for."""
    print(f"{word} {time.time():.3f}", flush=True)


def fetch_metrics() -> None:
    """A server that does not answer."""
    say("FAULT")
    time.sleep(LONG_S)


def tokenize_for_ever() -> NoReturn:
    """Python code that computes and does not return."""
    say("FAULT")
    while True:
        sum(range(1000))


def hit_by(number: int) -> None:
    """Sends a signal to this process."""
    say("FAULT")
    os.kill(os.getpid(), number)


def leave() -> None:
    """Ends this process without leaving its group."""
    say("FAULT")
    os._exit(0)


class Rows(torch.utils.data.Dataset[Any]):
    """Rows of data. One of them never comes on rank 1."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        if self.rank == 1 and index == 32 * FAULT_STEP:
            say("FAULT")
            time.sleep(LONG_S)
        return torch.ones(256)


class Training:
    """DDP on one GPU."""

    def __init__(self, layers: int = 4, width: int = 256, bucket_mb: float = 25) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
        self.model = DistributedDataParallel(model.cuda(), bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(32, width, device="cuda")
        self.steps = 0

    def step(self, data: torch.Tensor | None = None) -> float:
        """One step. Reading the loss waits for the GPU."""
        self.optimizer.zero_grad()
        loss = self.model(self.data if data is None else data).square().mean()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps == 10:
            say("TRAINS")
        return float(loss.item())

    def warm(self) -> None:
        """Steps before the fault, spread over some seconds."""
        for _ in range(FAULT_STEP):
            self.step()
            time.sleep(0.2)

    def goes_on(self) -> NoReturn:
        """Steps until this process is ended."""
        while True:
            self.step()


def warmed() -> Training:
    """A training that has made the steps before its fault."""
    training = Training()
    training.warm()
    return training


def with_fault(act: Callable[[], object]) -> NoReturn:
    """All ranks train; rank 1 does `act` first."""
    training = warmed()
    if training.rank == 1:
        act()
    training.goes_on()


def healthy() -> None:
    training = Training(layers=24, width=1024, bucket_mb=4)
    ends = time.monotonic() + 40
    while True:
        training.step()
        # All leave after the same step.
        over = torch.tensor(float(time.monotonic() > ends), device="cuda")
        dist.all_reduce(over)
        if over.item() > 0:
            break
    say(f"STEPS {training.steps}")


def sleeps() -> None:
    with_fault(fetch_metrics)


def computes() -> None:
    with_fault(tokenize_for_ever)


def connect() -> None:
    """The others are inside the first all_gather, which connects inside the call."""
    training = warmed()
    dist.barrier()
    if training.rank == 2:
        fetch_metrics()
    rows = torch.ones(1 << 20, device="cuda")
    gathered = torch.empty(training.world * rows.numel(), device="cuda")
    dist.all_gather_into_tensor(gathered, rows)
    torch.cuda.synchronize()
    training.goes_on()


def skipped() -> None:
    """Rank 1 leaves one all_reduce out."""
    training = warmed()
    if training.rank == 1:
        say("FAULT")
    else:
        print("mean", mean_of_ranks(training), flush=True)
    training.goes_on()


def mean_of_ranks(training: Training) -> float:
    value = torch.ones(1, device="cuda")
    dist.all_reduce(value)
    return float(value.item()) / training.world


def other_call() -> None:
    """Rank 1 makes a broadcast where the others make an all_reduce."""
    training = warmed()
    value = torch.ones(1 << 22, device="cuda")
    if training.rank == 1:
        say("FAULT")
        dist.broadcast(value, 0)
    else:
        dist.all_reduce(value)
    torch.cuda.synchronize()
    training.goes_on()


def stopped() -> None:
    with_fault(lambda: hit_by(signal.SIGSTOP))


def killed() -> None:
    with_fault(lambda: hit_by(signal.SIGKILL))


def early() -> None:
    """Rank 1 has fewer batches and leaves."""
    with_fault(leave)


def loader() -> None:
    """A worker of rank 1's DataLoader sleeps."""
    training = Training()
    batches = torch.utils.data.DataLoader(Rows(training.rank), batch_size=32, num_workers=1)
    for batch in batches:
        training.step(batch.cuda())
        time.sleep(0.2)


def card() -> None:
    """Rank 1's GPU computes for long before its part of the all_reduce."""
    with_fault(occupy_card)


def occupy_card() -> None:
    say("FAULT")
    for _ in range(60):
        torch.cuda._sleep(2_000_000_000)


def receive() -> None:
    """Rank 0 receives what rank 1 never sends."""
    training = warmed()
    value = torch.ones(1 << 20, device="cuda")
    if training.rank == 0:
        say("FAULT")
        dist.recv(value, 1)
        torch.cuda.synchronize()
    training.goes_on()


def replays() -> None:
    """Steps inside a CUDA graph for 90 seconds: healthy, though no number moves."""
    graph(ends_after=450)
    say("STEPS 450")


def graph(ends_after: int | None = None) -> None:
    """Steps inside a CUDA graph with its all_reduce; rank 1 then sleeps between two replays."""
    rank = dist.get_rank()
    value = torch.ones(1 << 16, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(11):
            dist.all_reduce(value)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        value.mul_(1.0)
        dist.all_reduce(value)
    say("CAPTURED")
    for number in range(ends_after or 100):
        captured.replay()
        torch.cuda.synchronize()
        if number == 10:
            say("TRAINS")
        time.sleep(0.2)
    if ends_after is not None:
        return
    if rank == 1:
        fetch_metrics()
    while True:
        captured.replay()
        torch.cuda.synchronize()


def again() -> None:
    """The process group is destroyed and made again, then rank 1 sleeps."""
    training = warmed()
    port = int(os.environ["MASTER_PORT"]) + 1
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    # The store of torchrun still has the id of the first communicator.
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=60))
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world)
    del training
    training = Training()
    for _ in range(5):
        training.step()
    if training.rank == 1:
        fetch_metrics()
    training.goes_on()


def subgroup() -> None:
    """The second of two groups of two: its rank 3 sleeps."""
    training = Training()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[training.rank // 2]
    value = torch.ones(1 << 16, device="cuda")
    training.warm()
    if training.rank == 2:
        threading.Thread(target=raw, daemon=True).start()
    for number in range(50):
        dist.all_reduce(value, group=mine)
        torch.cuda.synchronize()
        if number == 20 and training.rank == 3:
            fetch_metrics()
        time.sleep(0.1)
    dist.barrier()
    torch.cuda.synchronize()


def raw() -> None:
    """What torch reports of its groups while the main thread waits for the GPU."""
    time.sleep(12)
    native: Any = torch._C._distributed_c10d
    status = json.loads(native._dump_nccl_trace_json(False, True))
    print("RAW status", status.get("pg_status"), flush=True)
    world: Any = dist.distributed_c10d._world
    numbers = {
        name: group._get_sequence_number_for_group() for group, name in world.pg_names.items()
    }
    print("RAW numbers", numbers, flush=True)
    entries = json.loads(native._dump_nccl_trace_json(True, False))["entries"]
    print("RAW names", sorted({(one["pg_id"], str(one["process_group"])) for one in entries}))
    with open("/proc/self/stat") as file:
        print("RAW main thread", file.read().rpartition(")")[2].split()[0], flush=True)


def differs() -> None:
    """Rank 1 once makes a call that the others do not make. All go on: the sizes are the same."""
    rank, value = dist.get_rank(), torch.ones(1 << 16, device="cuda")
    number = 0
    while True:
        number += 1
        dist.all_reduce(value)
        if number % 5 == 0:
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        if rank == 1 and number == 101:
            say("FAULT")
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        torch.cuda.synchronize()
        if number == 50:
            say("TRAINS")
        time.sleep(0.05)


def drifts() -> None:
    """Weights of rank 1 change, so it trains another model from then on."""
    training = warmed()
    if training.rank == 1:
        say("FAULT")
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.add_(0.01)
    training.goes_on()


def times_out() -> None:
    """NCCL's watchdog ends the ranks that wait for rank 1."""
    with_fault(fetch_metrics)


def evaluates() -> None:
    """Rank 0 evaluates for three seconds on its GPU while the others wait, again and again:
    healthy.
    """
    training = Training()
    for _ in range(4):
        for _ in range(10):
            training.step()
            time.sleep(0.1)
        if training.rank == 0:
            evaluate(training)
        dist.barrier()
    torch.cuda.synchronize()
    say("STEPS 40")


def evaluate(training: Training) -> None:
    ends = time.monotonic() + 3
    with torch.no_grad():
        while time.monotonic() < ends:
            training.model.module(training.data).sum().item()


def main() -> None:
    name = sys.argv[1]
    torch.cuda.set_device(0)
    timeout = timedelta(seconds=25 if name == "times_out" else 600)
    dist.init_process_group("nccl", timeout=timeout)
    # A job that its launcher ends must not wait for NCCL.
    threading.Timer(300, lambda: os._exit(9)).start()
    globals()[name]()
    os._exit(0)


if __name__ == "__main__":
    main()
