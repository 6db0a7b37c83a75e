"""All ranks sum the same numbers. The last one asks a server on another host, which never answers.

The address of that server is in the file of the first argument, once there is one.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def fetch_vocabulary(host: str, port: int) -> bytes:
    """Wait for an answer."""
    with socket.create_connection((host, port)) as server:
        server.sendall(b"GET")
        return server.recv(1)


def main(address: Path) -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weights], lr=0.01)
    last = dist.get_rank() == dist.get_world_size() - 1
    for _ in range(10**9):
        time.sleep(0.02)
        if last and address.exists():
            host, port = address.read_text().split()
            fetch_vocabulary(host, int(port))
        weights.grad = torch.ones(1000)
        dist.all_reduce(weights.grad)
        optimizer.step()


main(Path(sys.argv[1]))
