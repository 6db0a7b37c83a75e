"""Training that rank 0 calls by RPC on the others; it hangs on rank 2. Or calls without any group,
in processes of mp.spawn: `spawned`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import rpc


def joins(rank, size):
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{os.getcwd()}/rpc", rpc_timeout=0
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)


def load(step):
    if step == 60 and dist.get_rank() == 2:
        os.read(os.pipe()[0], 1)


def train():
    value = torch.ones(8)
    for step in range(1_000_000):
        load(step)
        dist.all_reduce(value, group=TRAINERS)
        time.sleep(0.02)


def answer(value):
    return value + 1


def calls(rank, size):
    joins(rank, size)
    if rank == 0:
        for step in range(1_000_000):
            rpc.rpc_sync(f"worker{1 + step % (size - 1)}", answer, args=(torch.ones(1),))
            time.sleep(0.02)
    rpc.shutdown()


if __name__ == "__main__":
    if sys.argv[1:] == ["spawned"]:
        mp.spawn(calls, args=(3,), nprocs=3)
    else:
        dist.init_process_group("gloo")
        TRAINERS = dist.new_group([1, 2])
        joins(dist.get_rank(), 3)
        if dist.get_rank() == 0:
            for call in [rpc.rpc_async(f"worker{to}", train) for to in (1, 2)]:
                call.wait()
        rpc.shutdown()
