"""Trains; rank 0 has a child with a process group. `with_child.py FOLDER HOW`.

scorer: while the others wait in a barrier. server: started before rank 0 joins the job. spawned: as
scorer, by multiprocessing. twin: the child joins the group of the job. wrapped: a program that only
carries the variables starts the training. The child stays until there is a file `release`.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
RANK = int(os.environ["RANK"])


def notes(name: str) -> None:
    (FOLDER / "new").write_text(str(os.getpid()))
    (FOLDER / "new").rename(FOLDER / name)


def stays() -> None:
    while not (FOLDER / "release").exists():
        torch.randn(100, 100).sum()
        time.sleep(0.02)


def scores() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(found.getsockname()[1])
    os.environ["WORLD_SIZE"] = "1"
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    dist.init_process_group("gloo")
    notes("child")
    stays()


def child(how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(FOLDER), how])


def trains(steps: int) -> None:
    for _ in range(steps):
        dist.all_reduce(torch.ones(4))
        time.sleep(0.02)


def main() -> None:
    server = None
    if RANK == 0 and HOW == "server":
        server = child("as-scorer")
        while not (FOLDER / "child").exists():
            time.sleep(0.02)
    dist.init_process_group("gloo")
    trains(100)
    if RANK == 0:
        notes("rank")
        if HOW in ("scorer", "twin"):
            child("as-scorer" if HOW == "scorer" else "as-twin").wait()
        elif HOW == "spawned":
            process = multiprocessing.get_context("spawn").Process(target=scores)
            process.start()
            process.join()
    dist.barrier()
    while HOW == "server" and not (FOLDER / "release").exists():
        trains(50)
    trains(100)
    if server is not None:
        server.wait()


if HOW == "as-scorer":
    scores()
elif HOW == "as-twin":
    notes("child")
    # gloo lets a second process of a rank in, or leaves it waiting for a peer: both are seen.
    dist.init_process_group("gloo")
    stays()
elif HOW == "wrapped":
    sys.exit(child("training").wait())
elif __name__ == "__main__":
    main()
