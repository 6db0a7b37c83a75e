"""Steps of about 5 ms on one GPU. Arguments: seconds, passes per step (0: prints how many take 5
ms, and ends).
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist

TARGET_MS = 5.0


def main() -> None:
    seconds, passes = float(sys.argv[1]), int(sys.argv[2])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    # There are many small kernels, so that any delay of the interpreter shows in the step at once.
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data, loss_sum = torch.randn(512, 1024, device="cuda"), torch.zeros(1, device="cuda")

    def step(count: int) -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        for _ in range(count):
            model(data).square().mean().backward()
        optimizer.step()
        dist.all_reduce(loss_sum)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1000

    for _ in range(100):
        step(max(passes, 1))
    if not passes:
        one = statistics.median(step(1) for _ in range(100))
        more = statistics.median(step(11) for _ in range(50))
        print(
            f"PASSES {max(1, round(1 + (TARGET_MS - one) / max((more - one) / 10, 1e-6)))}",
            flush=True,
        )
    else:
        ends, spent = time.perf_counter() + seconds, []
        cpu = time.process_time()
        while time.perf_counter() < ends:
            spent.append(step(passes))
        cpu = (time.process_time() - cpu) * 1000 / len(spent)
        print(
            f"STEP_MS {statistics.fmean(spent):.4f} {statistics.median(spent):.4f} {cpu:.4f}"
            f" {len(spent)}",
            flush=True,
        )
    dist.destroy_process_group()


main()
