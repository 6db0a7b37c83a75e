"""Allocates more memory than the GPU has."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("gloo")
time.sleep(3)
torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
