"""Rank 0 starts rank 1 itself with a LOCAL_RANK, as Lightning does; rank 1's imports wait for a
file: `own_launcher.py FILE PORT`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

if os.environ.get("LOCAL_RANK") == "1":
    # A slow file server: the import reads a little, and waits for most of the time.
    while not Path(sys.argv[1]).exists():
        time.sleep(0.5)

import torch
import torch.distributed as dist

import ddtop

if "LOCAL_RANK" not in os.environ:
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=sys.argv[2],
        WORLD_SIZE="2",
        LOCAL_RANK="0",
        NODE_RANK="0",
    )
    subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"LOCAL_RANK": "1"})
dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
numbers = torch.ones(10)
for _ in range(1_000_000):
    time.sleep(0.02)
    dist.all_reduce(numbers)
    numbers.fill_(1)
    ddtop.step()
