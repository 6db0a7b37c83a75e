"""Ranks that end in unusual ways: they become another program, a daemon, or are never reaped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

CASES = {
    "becomes-another": {
        "story": "Rank 1 becomes another program in the middle of the run; its sockets stay open.",
        "expected": ["left-early 1", "not-in-collective 1", "rank-crashed 1", "rank-killed 1"],
        "launcher": "plain",
    },
    "leaves-a-child": {
        "story": "Rank 1 forks and exits; its child holds the sockets open.",
        "expected": ["left-early 1"],
        "launcher": "plain",
    },
    "not-reaped": {
        "story": "Rank 1 is killed, and its parent never asks for it.",
        "expected": ["rank-killed 1"],
        "launcher": "own",
    },
    "suspended-by-child": {
        "story": "A helper of rank 2 suspends it, as gang schedulers do.",
        "source": "open-mpi/ompi#526",
        "expected": ["rank-stopped 2"],
    },
    "quick-exit": {
        "story": "Every rank leaves by os._exit after its last barrier.",
        "expected": [],
    },
    "becomes-uploader": {
        "story": "After the training each rank becomes another program.",
        "expected": [],
    },
    "lives-on": {
        "story": "A helper of each rank lives on after it.",
        "expected": [],
        "launcher": "plain",
    },
    "short-life": {
        "story": "The job is over as soon as it has begun.",
        "expected": [],
        "launcher": "plain",
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def train(steps, at=None, act=lambda: None, who=1):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.ones(64)
    for step in range(steps):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == at and dist.get_rank() == who:
            mark()
            act()
    dist.barrier()
    dist.destroy_process_group()


def becomes_another():
    """One rank becomes a shell in the middle of the run: a wrapper script's mistake. Its sockets
    stay open.
    """

    def become():
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), True)
        os.execvp("sleep", ["sleep", "100000"])

    train(100_000, 60, become)


def leaves_a_child():
    """One rank forks and goes; its child sleeps and holds the sockets open."""

    def split():
        if os.fork():
            os._exit(0)
        time.sleep(100_000)

    train(100_000, 60, split)


def not_reaped():
    """A rank is killed, and its parent never asks for it: it stays a zombie."""
    train(100_000, 60, lambda: os.kill(os.getpid(), signal.SIGKILL))


def suspended_by_child():
    """A helper suspends its rank, as gang schedulers do."""
    stop = f"sleep 0.3; kill -STOP {os.getpid()}"
    train(100_000, 60, lambda: subprocess.Popen(["sh", "-c", stop]), 2)


def quick_exit():
    """Healthy: every rank leaves by os._exit after its last barrier."""
    train(150)
    os._exit(0)


def becomes_uploader():
    """Healthy: after the training each rank becomes another program for some seconds."""
    train(150)
    os.execvp("sleep", ["sleep", "4"])


def lives_on():
    """Healthy: a helper outlives its rank."""
    subprocess.Popen(["sleep", "12"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    train(200)


def short_life():
    """Healthy: the job is over as soon as it has begun."""
    train(2)
    time.sleep(1.0)


def parent(shape):
    """Starts the ranks and does not look after them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(3):
        variables = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # Kept, so that nobody reaps it.
        KEPT.append(subprocess.Popen([sys.executable, __file__, shape], env=os.environ | variables))
    time.sleep(100_000)


KEPT = []

if __name__ == "__main__":
    if sys.argv[1] == "not_reaped" and "RANK" not in os.environ:
        parent(sys.argv[1])
    globals()[sys.argv[1]]()
