"""Healthy programs that go on in small pieces, or are ahead of others by a part of a batch."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

CASES = {
    "restores-in-pieces": {
        "story": "Each rank reads its shard; that of rank 1 comes slowly, a few kilobytes a time.",
        "expected": [],
        "tolerated": ["not-in-collective 1"],
        "world": 2,
    },
    "restores-before-it-joins": {
        "story": "The same before init_process_group.",
        "expected": [],
        "tolerated": ["late-to-init 1"],
        "world": 2,
    },
    "exports-file-by-file": {
        "story": "Rank 0 writes each parameter to a file of its own, with a pause between them.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
        "world": 2,
    },
    "loaders-keep-pace": {
        "story": (
            "The loaders of both ranks take 40 ms for a batch, and a step 28; who is ahead by "
            "a part of a batch waits for the other in each step."
        ),
        "expected": [],
        "world": 2,
    },
    "measures-over-the-same-loader": {
        "story": "set_epoch is called; a second pass over the loader measures after each epoch.",
        "expected": [],
        "world": 2,
    },
}
WIDTH = 16


def train(batches, pause):
    model = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in batches:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        time.sleep(pause)


def invented(count):
    return (torch.randn(8, WIDTH) for _ in range(count))


def restore(path, pause):
    with open(path, "rb") as file:
        while piece := file.read(1 << 13):
            time.sleep(pause * len(piece) / (1 << 13))


def restored(rank):
    path = f"shard{rank}.bin"
    with open(path, "wb") as file:
        file.write(os.urandom(1 << 19))
    restore(path, 0.25 if rank == 1 else 0.0)


def export(module, folder):
    if not os.path.exists(folder):
        os.mkdir(folder)
    for name, value in module.state_dict().items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(value.numpy().tobytes())
        time.sleep(0.3)


class Decoded(Dataset):
    def __len__(self):
        return 2800

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(WIDTH)


def measured_epochs():
    data = TensorDataset(torch.randn(64 * dist.get_world_size(), WIDTH))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for (rows,) in loader:
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
            time.sleep(0.15)
        with torch.no_grad():
            for (rows,) in loader:
                model.module(rows)
                time.sleep(0.4)


def main(shape):
    rank = int(os.environ["RANK"])
    if shape == "restores_before_it_joins":
        restored(rank)
    dist.init_process_group("gloo")
    if shape == "restores_in_pieces":
        restored(rank)
        dist.barrier()
    if shape == "exports_file_by_file":
        train(invented(40), 0.05)
        if rank == 0:
            export(nn.Sequential(*(nn.Linear(4, 4) for _ in range(15))), "exported.d")
        dist.barrier()
    if shape == "measures_over_the_same_loader":
        measured_epochs()
    elif shape == "loaders_keep_pace":
        train(DataLoader(Decoded(), batch_size=4, num_workers=1), 0.028)
    else:
        train(invented(200), 0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
