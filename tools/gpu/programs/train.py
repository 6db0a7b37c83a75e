"""A small training on a GPU. Arguments: backend, seconds, GPU of each rank ("local" or a number),
GiB to hold besides.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    backend, seconds, where, extra = (
        sys.argv[1],
        float(sys.argv[2]),
        sys.argv[3],
        float(sys.argv[4]),
    )
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) if where == "local" else int(where))
    dist.init_process_group(backend)
    held = torch.empty(int(extra * 2**30), dtype=torch.uint8, device="cuda") if extra else None
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(512, 1024, device="cuda")
    steps, ends = 0, time.monotonic() + seconds
    began = None
    flag = torch.zeros(1, device="cuda" if backend == "nccl" else "cpu")
    while True:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        steps += 1
        if steps == 50:
            began = time.perf_counter()
            print("TRAINS", flush=True)
        # All leave after the same step.
        flag[0] = time.monotonic() > ends
        dist.all_reduce(flag)
        if flag[0] > 0:
            break
    if began is not None:
        print(
            f"STEP_MS {(time.perf_counter() - began) / (steps - 50) * 1000:.4f} STEPS {steps}",
            flush=True,
        )
    del held
    dist.destroy_process_group()


main()
