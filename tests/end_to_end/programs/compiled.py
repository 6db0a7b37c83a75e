"""A compiled optimizer step and all_reduce: prints how many graphs torch made of them, and why it
broke a graph.
"""

from __future__ import annotations

import os

import torch
import torch._dynamo as dynamo
import torch.distributed as dist

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
dist.init_process_group("gloo", rank=0, world_size=1)
weights = torch.nn.Parameter(torch.ones(10))
optimizer = torch.optim.SGD([weights], lr=0.01)


def reduce(numbers: torch.Tensor) -> torch.Tensor:
    """An all_reduce between two operations."""
    numbers = numbers * 2
    dist.all_reduce(numbers)
    return numbers + 1


def step() -> None:
    """An optimizer step."""
    weights.grad = torch.ones(10)
    optimizer.step()


for function, arguments in ((reduce, (torch.ones(10),)), (step, ())):
    dynamo.reset()
    found = dynamo.explain(function)(*arguments)
    reasons = [str(reason.reason).splitlines()[0] for reason in found.break_reasons]
    print(
        function.__name__, found.graph_count, "graphs", found.graph_break_count, "breaks", reasons
    )
    torch.compile(function, backend="eager")(*arguments)
dist.destroy_process_group()
