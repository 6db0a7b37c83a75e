"""Ray Train: two workers on CPUs, each with a loop of its own that reports."""

from __future__ import annotations

import os

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

PASSED_ON = ("DDTOP", "FAULT", "STEPS")
"""Ray's workers have the environment of its daemons, and not the program's."""


def loop():
    import sys

    sys.path.insert(0, os.environ["PROGRAMS"])
    import ray.train
    import torch
    from fault import at
    from own_loops import batches, digest, net
    from ray.train.torch import prepare_model

    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, data in batches():
        at(rank)
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            ray.train.report({"step": step, "loss": loss.item()})
    digest(model)


if __name__ == "__main__":
    variables = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    variables["PROGRAMS"] = os.path.dirname(os.path.abspath(__file__))
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": variables})
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
