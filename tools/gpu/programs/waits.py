"""One rank whose all_reduce of NCCL waits behind a kernel that spins for this many seconds, after
healthy steps.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
values = torch.ones(1 << 20, device="cuda")
ends = time.monotonic() + 8
while time.monotonic() < ends:
    dist.all_reduce(values)
    torch.cuda.synchronize()
    time.sleep(0.02)
began = time.perf_counter()
torch.cuda._sleep(100_000_000)
torch.cuda.synchronize()
cycles_a_second = 100_000_000 / (time.perf_counter() - began)
print("STANDS", flush=True)
torch.cuda._sleep(int(cycles_a_second * float(sys.argv[1])))
dist.all_reduce(values)
torch.cuda.synchronize()
print("GOES ON", flush=True)
dist.destroy_process_group()
