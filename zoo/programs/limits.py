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
        "cause": [
            "RLIMIT_AS|ulimit -v|address space|h_vmem|virtual (memory|size)|VmSize",
        ],
        "cure": [
            "ulimit -v|h_vmem",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf",
            r"(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue|memory)",
            r"(less|fewer|smaller|lower|reduce)\b.{0,40}(memory|worker|batch|cache|thread)",
        ],
        "within_s": 20,
    },
    "data-segment": {
        "story": "Rank 0 uses 97 % of its limit of data.",
        "expected": ["memory-pressure 0"],
        "cause": [
            r"RLIMIT_DATA|ulimit -d|\bdata (segment|size|limit)|VmData",
            "limit (of|for|on) (its )?data",
        ],
        "cure": [
            "ulimit -d",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf",
            r"(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue|memory)",
            r"(less|fewer|smaller|lower|reduce)\b.{0,40}(memory|worker|batch|cache|thread)",
        ],
        "within_s": 20,
    },
    "open-files": {
        "story": "Each sample of rank 1 keeps its file open: 94 % of the descriptors.",
        "source": "pytorch/pytorch#973",
        "expected": ["memory-pressure 1"],
        "cause": [
            r"descriptor|open files|EMFILE|errno 24|RLIMIT_NOFILE|ulimit -n|\bfds\b",
        ],
        "cure": [
            r"\bclos(e|es|ed|ing)\b|\bleak|with open",
            r"lsof|/proc/\S+/fd|ss -|set_sharing_strategy|file_system",
            "ulimit -n|LimitNOFILE",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf|(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue)",
        ],
        "within_s": 20,
    },
    "files-of-threads": {
        "story": "Sockets take nearly all descriptors of rank 0.",
        "source": "huggingface/datasets#5094",
        "expected": ["memory-pressure 0"],
        "cause": [
            r"descriptor|open files|EMFILE|errno 24|RLIMIT_NOFILE|ulimit -n|\bfds\b",
            r"\bsockets\b",
        ],
        "cure": [
            r"\bclos(e|es|ed|ing)\b|\bleak|with open",
            r"lsof|/proc/\S+/fd|ss -|set_sharing_strategy|file_system",
            "ulimit -n|LimitNOFILE",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf|(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue)",
        ],
        "within_s": 20,
    },
    "cpu-time": {
        "story": "The limit of CPU seconds ends rank 2 with SIGXCPU.",
        "expected": ["rank-killed 2"],
        "cause": [
            r"SIGXCPU|signal 24\b|(?<!\w)-24\b|RLIMIT_CPU|ulimit -t",
            "CPU[- ](time|seconds?).{0,20}limit",
            "limit (of|for|on) .{0,20}CPU",
        ],
        "cure": [
            "ulimit -t|h_cpu",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf|(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue)",
        ],
        "launcher": "plain",
        "within_s": 25,
    },
    "file-size": {
        "story": "Rank 0's checkpoint is larger than the limit of a file's size.",
        "expected": ["rank-crashed 0"],
        "cause": [
            "file too large|EFBIG|errno 27|RLIMIT_FSIZE|ulimit -f|SIGXFSZ",
            "(limit|size) of (a |the )?file|file[- ]size",
        ],
        "cure": [
            "ulimit -f",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf|(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue)",
            r"(smaller|split|shard)\w*\b.{0,40}(file|checkpoint)",
        ],
    },
    "too-many-files": {
        "story": "Rank 1 opens one file more than it may.",
        "source": "pytorch/pytorch#973",
        "expected": ["rank-crashed 1"],
        "cause": [
            "too many open files",
            r"descriptor|open files|EMFILE|errno 24|RLIMIT_NOFILE|ulimit -n|\bfds\b",
        ],
        "cure": [
            r"\bclos(e|es|ed|ing)\b|\bleak|with open",
            r"lsof|/proc/\S+/fd|ss -|set_sharing_strategy|file_system",
            "ulimit -n|LimitNOFILE",
            r"(raise|lift|increase|higher|larger|widen|change)\b.{0,60}\blimit|unlimited",
            r"prlimit|limits\.conf|(ask|request|tell)\w*\b.{0,60}(batch|scheduler|queue)",
        ],
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
