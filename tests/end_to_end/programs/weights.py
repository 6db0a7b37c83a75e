"""A trainer and an engine of two ranks are two jobs; their rank 0 share a group for the weights.

`weights.py FOLDER trainer|engine`. The trainer sends weights once there is a file `push`.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

FOLDER, SIDE = Path(sys.argv[1]), sys.argv[2]
WAIT = timedelta(minutes=3)


def waits_for(name: str) -> str:
    while not (FOLDER / name).exists():
        time.sleep(0.02)
    return (FOLDER / name).read_text()


def link(store: dist.Store, member: int) -> dist.ProcessGroup:
    """Torch has no call for a group across two jobs."""
    made, _ = _new_process_group_helper(
        2, member, [], "gloo", dist.PrefixStore("w", store), group_name="weights", timeout=WAIT
    )
    _world.pg_group_ranks[made] = {0: 0, 1: 1}
    return made


def trainer() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    store = dist.TCPStore("127.0.0.1", 0, 2, True, WAIT, wait_for_workers=False)
    (FOLDER / "new").write_text(str(store.port))
    (FOLDER / "new").rename(FOLDER / "port")
    group = link(store, 0)
    waits_for("push")
    dist.broadcast(torch.ones(8), 0, group=group)


def engine() -> None:
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    if first:
        group = link(dist.TCPStore("127.0.0.1", int(waits_for("port")), 2, False, WAIT), 1)
    for _ in range(100):
        dist.all_reduce(torch.ones(8))
        time.sleep(0.02)
    if first:
        dist.broadcast(torch.zeros(8), 0, group=group)
    dist.barrier()


trainer() if SIDE == "trainer" else engine()
