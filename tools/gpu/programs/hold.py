"""Holds this many GiB of GPU 0 until its stdin closes. With the word `burn` it computes too."""

from __future__ import annotations

import select
import sys

import torch

held = torch.ones(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("HOLDS", flush=True)
if "burn" in sys.argv:
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            square @ square
        torch.cuda.synchronize()
sys.stdin.read()
