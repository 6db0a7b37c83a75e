"""Loops of the program's own, by MODE: the name of one of the functions below."""

from __future__ import annotations

import os
import sys
import tempfile
from socket import socket

import torch
from fault import at, loader
from torch import nn

STEPS = int(os.environ.get("STEPS", "100000"))


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def batches(divided=True):
    """(step, batch) of all steps. `divided`: each rank has batches of its own."""
    ranks = torch.distributed.get_world_size() if divided else 1
    return enumerate(loader(4 * STEPS * ranks, divided))


def digest(model):
    def whole(one):
        return one.full_tensor() if hasattr(one, "full_tensor") else one

    found = sum(float(whole(one.detach()).double().sum()) for one in model.parameters())
    print(f"digest {found!r}", file=sys.stderr)


def fabric():
    from lightning.fabric import Fabric

    runs = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    runs.launch()
    model = net()
    model, optimizer = runs.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step, data in batches():
        at(runs.global_rank)
        loss = model(data).square().mean()
        optimizer.zero_grad()
        runs.backward(loss)
        optimizer.step()
        if step % 10 == 0:
            runs.log_dict({"loss": loss.item()}, step=step)
    digest(model)


def accelerate():
    from accelerate import Accelerator

    runs = Accelerator(cpu=True)
    model = net()
    model, optimizer = runs.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step, data in batches():
        at(runs.process_index)
        loss = model(data).square().mean()
        optimizer.zero_grad()
        runs.backward(loss)
        optimizer.step()
        if step % 10 == 0:
            runs.log({"loss": loss.item()}, step=step)
    digest(model)


def notebook():
    """As in a cell of a notebook: accelerate forks its ranks from this process."""
    from accelerate import notebook_launcher

    os.environ["ACCELERATE_USE_CPU"] = "yes"
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    notebook_launcher(accelerate, num_processes=2, use_port=str(port))


def deepspeed():
    import deepspeed as ds

    ds.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": int(os.environ.get("STAGE", "1"))},
        "zero_allow_untested_optimizer": True,
    }
    model = net()
    engine, *_ = ds.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _step, data in batches():
        at(rank)
        engine.backward(engine(data).square().mean())
        engine.step()
    digest(model)


def ignite():
    from ignite.engine import Engine, Events

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def update(_engine, data):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(update)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: at(rank))
    trainer.run(loader(8 * min(STEPS, 100), divided=True), max_epochs=max(STEPS // 100, 1))
    digest(model)


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = net()
    fully_shard(model, mesh=mesh)
    plain(model, torch.distributed.get_rank())


def tp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    plain(model, torch.distributed.get_rank(), divided=False)


def plain(model, rank, divided=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _step, data in batches(divided):
        at(rank)
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest(model)


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(rank)
    model = nn.Linear(32, 32)
    stage = PipelineStage(model, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _step, data in batches(divided=False):
        at(rank)
        if rank == 0:
            schedule.step(data)
        else:
            schedule.step(target=data)
        optimizer.step()
        optimizer.zero_grad()
    digest(model)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        globals()[os.environ["MODE"]]()
