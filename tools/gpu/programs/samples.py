"""Trains on a stream of its own whose GPU is far behind the host, then captures 17 steps in a CUDA
graph and replays it.

Prints WEIGHTS with their digest after both parts and, if ddtop watches, SAMPLES: how many samples
of the parameters there are, how many have the value right after their step, and the microseconds
that one takes.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddtop.agent import current
from ddtop.agent.probes import replicas
from ddtop.agent.probes.replicas import EVERY_STEPS, PLACE, ReplicaNotes

torch.cuda.set_device(0)
dist.init_process_group("nccl")
torch.manual_seed(1)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
known: dict[int, Any] = {}
with torch.cuda.stream(side):
    plain = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.randn(32, 256, device="cuda")


def step() -> None:
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()


def digest() -> str:
    torch.cuda.synchronize()
    values = torch.cat([each.detach().view(-1) for each in model.parameters()]).cpu().numpy()
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


# These steps are short, and many samples are wanted.
replicas.APART_NS = 0
rank = current.get()
found: dict[int, tuple[float, ...]] = {}
with torch.cuda.stream(side):
    for number in range(1, 20 * EVERY_STEPS + 1):
        torch.cuda._sleep(5_000_000)
        step()
        if number % EVERY_STEPS == 0:
            known[number] = [
                each.detach().view(-1)[int(PLACE * each.numel())].clone()
                for each in model.parameters()
            ]
        if rank is not None:
            # A sample is kept by the first step after it has come.
            for replica in rank.notes[ReplicaNotes].read():
                found.update(replica.taken)
eager = digest()
names = list(dict(plain.named_parameters()))
picked = range(0, len(names), -(-len(names) // 4))
true = [
    (at, values)
    for at, values in found.items()
    if values == tuple(float(known[at][index]) for index in picked)
]

graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph, stream=side):
    for _ in range(EVERY_STEPS + 1):
        step()
for _ in range(20):
    graph.replay()
print("WEIGHTS", eager, digest(), flush=True)
if rank is not None:
    spent = []
    series = next(iter(rank.notes[ReplicaNotes]._series.values()))
    for _ in range(200):
        began = time.perf_counter()
        series._sample(torch)
        spent.append((time.perf_counter() - began) * 1e6)
        torch.cuda.synchronize()
    print("SAMPLES", len(found), len(true), f"{statistics.median(spent):.0f}", flush=True)
dist.destroy_process_group()
