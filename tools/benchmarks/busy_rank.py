"""A rank whose main thread computes all the time, with the agent at work and held in turn, block by
block. Prints JSON lines.

The benchmark holds the lock that each of the agent's ticks takes, so the agent's thread sleeps.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist

from ddtop.agent import current

BLOCK, SETTLE = 50, 5
"""Steps in a block, and after each turn those that are not counted."""
LOOPS = 500_000


def step(model, optimizer, batch):
    """Some twenty milliseconds of Python, and a training step."""
    total = 0
    for number in range(LOOPS):
        total += number
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()


def main():
    """Blocks of steps: for each block its step times in ms and whether the agent was held."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.zeros(32, 64)
    for _ in range(BLOCK):
        step(model, optimizer, batch)
    agent = current.get()
    print(json.dumps({"agent": agent is not None}), flush=True)
    for number in range(options.blocks):
        # The order changes from pair to pair, so that a drift affects both alike.
        held = number % 4 in (1, 2)
        if held and agent is not None:
            agent.tick.acquire()
        try:
            times = []
            for _ in range(SETTLE + BLOCK):
                began = time.perf_counter_ns()
                step(model, optimizer, batch)
                times.append((time.perf_counter_ns() - began) / 1e6)
        finally:
            if held and agent is not None:
                agent.tick.release()
        print(json.dumps({"held": held, "ms": times[SETTLE:]}), flush=True)
    dist.destroy_process_group()


main()
