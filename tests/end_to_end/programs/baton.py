"""Ranks that reduce, then wait for the process that builds an extension, and reduce again: the
folder of the lock file is an argument.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton


def load_extension(path: str) -> None:
    baton = FileBaton(path, wait_seconds=0.1)
    if not baton.try_acquire():
        baton.wait()


def main() -> None:
    dist.init_process_group("gloo")
    values = torch.ones(8)
    for step in range(60):
        if step == 20:
            load_extension(f"{sys.argv[1]}/lock")
        dist.all_reduce(values)
        time.sleep(0.02)
    dist.destroy_process_group()


main()
