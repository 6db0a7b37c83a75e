"""Trains on a DeviceMesh: `parallel.py SHAPE BREAKS AT`.

SHAPE: `tp` (dp 2 x tp 2), `fsdp` (FSDP2 over tp, dp_shard 2 x tp 2), `3d` (pp 2 x dp 2 x tp 2, by
hand), `pipeline` (pp 2 x dp 2, torch's 1F1B), `uneven` (the same with a slow second stage), `moe`
(dp 2 x ep 2 with an all_to_all of uneven sizes), `one` (one dimension that has all ranks). BREAKS:
the rank that sleeps for ever after AT steps, -1 for none.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

SHAPE, BREAKS, AT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WIDTH = 16


def fetch_labels(step):
    """Where the faulty rank stays."""
    if dist.get_rank() == BREAKS and step >= AT:
        time.sleep(600)


class Block(nn.Module):
    """Two layers."""

    def __init__(self, pause=0.0):
        super().__init__()
        self.up, self.down, self.pause = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), pause
        self.step = 0

    def forward(self, x):
        """Both layers. Inside a pipeline the faulty rank stays here."""
        time.sleep(self.pause)
        if SHAPE in ("pipeline", "uneven"):
            self.step += 1
            fetch_labels(self.step)
        return self.down(torch.relu(self.up(x)))


def sharded(mesh, fsdp):
    """Tensor parallel layers, averaged or sharded over the other dimension."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = parallelize_module(
        Block(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    if fsdp:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model, mesh=mesh["dp_shard"])
    return model


def train(model, average=None):
    """Steps with an optimizer until the program is ended."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(100_000):
        fetch_labels(step)
        model(torch.randn(4, WIDTH)).pow(2).mean().backward()
        if average is not None:
            for parameter in model.parameters():
                grad = parameter.grad
                dist.all_reduce(getattr(grad, "_local_tensor", grad), group=average)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


def train_3d(mesh):
    """All dimensions by hand: activations over tp, between stages over pp, gradients over dp."""
    tp, pp, dp = mesh.get_group("tp"), mesh.get_group("pp"), mesh.get_group("dp")
    first = mesh.get_local_rank("pp") == 0
    peer = dist.get_process_group_ranks(pp)[1 if first else 0]
    weight = torch.zeros(WIDTH)
    for step in range(100_000):
        fetch_labels(step)
        dist.all_reduce(weight, group=tp)
        if first:
            dist.send(weight, peer, group=pp)
        else:
            dist.recv(weight, peer, group=pp)
        dist.all_reduce(weight, group=dp)
        time.sleep(0.02)


def train_pipeline(mesh, uneven):
    """Two stages under torch's 1F1B schedule, gradients averaged over dp."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    index = mesh.get_local_rank("pp")
    model = Block(pause=0.15 if uneven and index == 1 else 0.0)
    stage = PipelineStage(model, index, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).pow(2).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        if index == 0:
            schedule.step(torch.randn(8, WIDTH))
        else:
            schedule.step(target=torch.randn(8, WIDTH), losses=[])
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)


def train_moe(mesh):
    """Tokens go to their experts: each rank sends a different number of tokens."""
    ep, dp = mesh.get_group("ep"), mesh.get_group("dp")
    size, me = dist.get_world_size(ep), dist.get_rank(ep)
    for step in range(100_000):
        fetch_labels(step)
        given = [1 + (step + me + other) % 3 for other in range(size)]
        taken = [1 + (step + me + other) % 3 for other in range(size)]
        tokens = torch.zeros(sum(given), WIDTH)
        dist.all_to_all_single(torch.zeros(sum(taken), WIDTH), tokens, taken, given, group=ep)
        time.sleep(0.01 * (1 + me))
        dist.all_reduce(torch.zeros(WIDTH), group=dp)


def main():
    """Make the mesh and train on it."""
    if SHAPE == "tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        train(sharded(mesh, fsdp=False), mesh.get_group("dp"))
    elif SHAPE == "fsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
        train(sharded(mesh, fsdp=True))
    elif SHAPE == "3d":
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        mesh["pp", "dp"]._flatten("pp_dp")
        train_3d(mesh)
    elif SHAPE in ("pipeline", "uneven"):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        train_pipeline(mesh, SHAPE == "uneven")
    elif SHAPE == "moe":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
        train_moe(mesh)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
        train(Block(), mesh.get_group())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
