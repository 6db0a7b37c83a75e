"""Steps, then rank 0 stays in an expected region for SECONDS while the others are at all_reduce.

`exporting.py UP_TO_S SECONDS`
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import ddtop


def export(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    dist.init_process_group("gloo")
    number = torch.ones(64)
    for _ in range(40):
        dist.all_reduce(number)
        ddtop.step()
        time.sleep(0.05)
    if dist.get_rank() == 0:
        with ddtop.expected("export", up_to_s=float(sys.argv[1])):
            export(float(sys.argv[2]))
    while True:
        dist.all_reduce(number)
        ddtop.step()
        time.sleep(0.05)


main()
