"""Holds so many GiB of card 0 and computes a little, until its stdin ends."""

from __future__ import annotations

import sys

import torch

held = torch.ones(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("HOLDS", flush=True)
sys.stdin.read()
