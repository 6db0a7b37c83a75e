"""Trains on the CPU for this many seconds, and prints at its end whether CUDA was initialised in
it.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
steps = int(float(sys.argv[1]) * 20)
print("TRAINS", flush=True)
for _ in range(steps):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
opened = {
    os.readlink(f"/proc/self/fd/{one}")
    for one in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{one}")
}
print(
    f"CUDA {torch.cuda.is_initialized()}"
    f" {[one for one in opened if one.startswith('/dev/nvidia')]}",
    flush=True,
)
dist.destroy_process_group()
