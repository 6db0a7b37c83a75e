"""Rank 1 parts from the others: `again` repeats a step after a MemoryError, `sizes` gives a tensor
of another size; `even` takes another line for the same call, and nothing is wrong.
"""

import sys
import time

import torch
import torch.distributed as dist

FAULT_AT = 60


def train(model, optimizer, step, mode):
    model(torch.randn(4, 8)).sum().backward()
    gradient = model.weight.grad.reshape(-1)
    odd = dist.get_rank() == 1 and step == FAULT_AT
    if odd and mode == "sizes":
        gradient = gradient[:5].clone()
    if dist.get_rank() == 1 and step % FAULT_AT == 0 and mode == "even":
        dist.all_reduce(gradient)
    else:
        dist.all_reduce(gradient)
    if odd and mode == "again":
        raise MemoryError("the optimizer's state")
    optimizer.step()
    optimizer.zero_grad()


def main(mode):
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        try:
            train(model, optimizer, step, mode)
        except MemoryError:
            train(model, optimizer, -1, mode)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
