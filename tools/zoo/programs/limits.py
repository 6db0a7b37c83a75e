"""What batch systems limit: address space (h_vmem), data, open files, CPU time, size of a file.

The allocation that goes beyond it comes in the middle of the night, and says "Cannot allocate
memory" on a host with 100 GB free.
"""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "address-space": {
        "story": "Rank 1 uses 96 % of its address space limit (h_vmem).",
        "source": "marbl/canu#1438",
        "expected": ["memory-pressure 1"],
        "within_s": 20,
    },
    "data-segment": {
        "story": "Rank 0 uses 97 % of its limit of data.",
        "expected": ["memory-pressure 0"],
        "within_s": 20,
    },
    "open-files": {
        "story": "Each sample of rank 1 keeps its file open: 94 % of the descriptors.",
        "source": "pytorch/pytorch#973",
        "expected": ["memory-pressure 1"],
        "within_s": 20,
    },
    "files-of-threads": {
        "story": "Sockets take nearly all descriptors of rank 0.",
        "source": "huggingface/datasets#5094",
        "expected": ["memory-pressure 0"],
        "within_s": 20,
    },
    "cpu-time": {
        "story": "The limit of CPU seconds ends rank 2 with SIGXCPU.",
        "expected": ["rank-killed 2"],
        "launcher": "plain",
        "within_s": 25,
    },
    "file-size": {
        "story": "Rank 0's checkpoint is larger than the limit of a file's size.",
        "expected": ["rank-crashed 0"],
    },
    "too-many-files": {
        "story": "Rank 1 opens one file more than it may.",
        "source": "pytorch/pytorch#973",
        "expected": ["rank-crashed 1"],
        "launcher": "plain",
    },
    "wide-limits": {"story": "Limits that leave twice of what is used.", "expected": []},
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def used(field):
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field + ":"))
    return int(line.split()[1]) << 10


def train(steps, at=None, act=lambda: None, who=0):
    values = torch.ones(64)
    for step in range(steps):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == at and dist.get_rank() == who:
            mark()
            act()


def to_the_brim(limit, field, share):
    now = used(field)
    resource.setrlimit(limit, (int(now / share), resource.RLIM_INFINITY))


def address_space():
    train(100_000, 60, lambda: to_the_brim(resource.RLIMIT_AS, "VmSize", 0.96), 1)


def data_segment():
    train(100_000, 60, lambda: to_the_brim(resource.RLIMIT_DATA, "VmData", 0.97), 0)


def open_files():
    """Every sample keeps its file open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    kept = []

    def leak():
        while len(os.listdir("/proc/self/fd")) < 375:
            kept.append(os.open("/dev/null", os.O_RDONLY))

    train(100_000, 60, leak, 1)


def files_of_threads():
    """Sockets of a service pool take the descriptors."""
    import socket

    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
    kept = []

    def leak():
        while len(os.listdir("/proc/self/fd")) < 490:
            kept.extend(socket.socketpair())

    train(100_000, 60, leak, 0)


def cpu_time():
    """The limit of CPU seconds (ulimit -t): SIGXCPU ends the rank."""

    def burn():
        spent = int(sum(os.times()[:2])) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (spent, spent + 5))
        while True:
            sum(range(1000))

    train(100_000, 60, burn, 2)


def file_size():
    """The limit of a file's size (ulimit -f): the checkpoint raises."""

    def save():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with open("last.pt", "wb") as file:
            file.write(bytes(8 << 20))

    train(100_000, 60, save, 0)


def too_many_files():
    """One more than allowed: OSError 24 in the middle of a step."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept = []

    def leak():
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))

    train(100_000, 60, leak, 1)


def wide_limits():
    """Healthy: limits that leave twice what is used."""
    to_the_brim(resource.RLIMIT_AS, "VmSize", 0.4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    for _ in range(140):
        os.open("/dev/null", os.O_RDONLY)
    train(300)


def main():
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
