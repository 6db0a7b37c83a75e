"""Healthy jobs in which ranks are apart for a while."""

import os
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

CASES = {
    "last-words": {
        "story": (
            "Rank 0 works on after the last collective; the others leave, and nobody needs them."
        ),
        "expected": [],
        "launcher": "plain",
    },
    "half-trains": {
        "story": "Two ranks train in their own group, the others wait for them at a barrier.",
        "expected": [],
        "world": 4,
        "tolerated": ["not-in-collective 0,1"],
    },
    "child-evaluates": {
        "story": "Rank 0 starts a program that evaluates for eight seconds.",
        "source": "pytorch/pytorch#54059",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "background-save": {
        "story": "A thread writes the checkpoint while the training goes on.",
        "expected": [],
        "launcher": "plain",
    },
    "two-threads": {
        "story": "Two threads of each rank use a group of their own.",
        "source": "pytorch/pytorch#119797",
        "expected": [],
        "world": 2,
    },
    "trickle": {
        "story": "Rank 0 reads a slow download while the others wait.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "periodic-check": {
        "story": "Each second or so one rank sleeps for two seconds, in turns.",
        "expected": [],
    },
}


def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        torch.mm(torch.ones(96, 96), torch.ones(96, 96))


def steps(count, group=None):
    values = torch.ones(64)
    for _ in range(count):
        dist.all_reduce(values, group=group)
        time.sleep(0.03)


def last_words(rank):
    """Rank 0 works on after the last collective, the others leave: nobody needs them."""
    steps(100)
    if rank == 0:
        work(9)


def half_trains(rank):
    """Two ranks train in their own group, the others wait for them at a barrier."""
    pair = dist.new_group([0, 1])
    steps(60)
    if rank < 2:
        steps(300, pair)
    dist.barrier()


def child_evaluates(rank):
    """Rank 0 lets a program evaluate."""
    for _ in range(2):
        steps(60)
        if rank == 0:
            loop = "import time\nend = time.time() + 8\nwhile time.time() < end: pass"
            subprocess.run([sys.executable, "-c", loop], check=True)
        dist.barrier()


def background_save(rank):
    """A thread writes the checkpoint while the training goes on."""

    def write():
        with tempfile.TemporaryFile() as file:
            for _ in range(100):
                file.write(os.urandom(1 << 18))
                os.fsync(file.fileno())
                time.sleep(0.05)

    for _ in range(2):
        steps(60)
        writer = threading.Thread(target=write)
        writer.start()
        steps(120)
        writer.join()
        dist.barrier()


def two_threads(rank):
    """Each thread has a group of its own."""
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    threads = [threading.Thread(target=steps, args=(250, group)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def trickle(rank):
    """Rank 0 reads a slow download while the others wait."""
    steps(60)
    if rank == 0:
        tool = "import time\nfor _ in range(300): print('x' * 900, flush=True); time.sleep(0.03)"
        with subprocess.Popen([sys.executable, "-c", tool], stdout=subprocess.PIPE) as source:
            while source.stdout.readline():
                pass
    dist.barrier()
    steps(60)


def periodic_check(rank):
    """Every second or so one rank sleeps for two seconds, not always the same."""
    for number in range(6):
        steps(25)
        if number % dist.get_world_size() == rank:
            time.sleep(2)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank())


if __name__ == "__main__":
    main()
