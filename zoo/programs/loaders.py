"""Training and validation loaders with workers."""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

CASES = {
    "starves": {
        "story": "A DataLoader worker of rank 1 blocks in a read.",
        "source": "pytorch/pytorch#1355",
        "expected": ["not-in-collective 1", "loader-stuck 1"],
        "place": ["__iter__", "epochs"],
        "cause": [
            "(?<!broken )pipe(?!line)",
            r"worker.{0,80}\b(asleep|sleep|block|wait|stuck|stand|stood|read|hang)",
        ],
        "cure": [
            r"(look|see|check|inspect)\w*\b.{0,60}\b(worker|Dataset|__getitem__|sample)",
            "num_workers ?= ?0|num_workers=0",
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "plain",
    },
    "helper-dies": {
        "story": "A DataLoader worker of rank 1 is killed, as by the OOM killer; the rank raises.",
        "source": "pytorch/pytorch#8976",
        "expected": ["rank-crashed 1"],
        "place": "epochs",
        "cause": [
            "worker.{0,80}(killed|SIGKILL|died|signal|gone|exited|dead)",
            "OOM|out[- ]of[- ]memory",
        ],
        "cure": [
            "fewer workers|num_workers|/dev/shm|prefetch_factor",
            r"dmesg|journalctl|kernel('s)? log|memory\.events|sacct",
            r"(look|check|see|find|ask)\w*\b.{0,80}(OOM|memory|killed|scheduler|batch system"
            r"|cgroup)",
            r"(lower|less|reduce|more|request|smaller|raise)\b.{0,40}(memory|batch size|--mem)",
            "who(ever)? .{0,20}(sent|killed)",
        ],
        "launcher": "plain",
    },
    "taken": {
        "story": (
            "Rank 1, which has DataLoader workers, is killed by SIGKILL; the workers hold "
            "its sockets."
        ),
        "source": "pytorch/pytorch#8976",
        "expected": ["rank-killed 1"],
        "cause": [
            r"SIGKILL|signal 9\b|(?<!\w)-9\b|(code|status):? 137\b",
            "OOM|out[- ]of[- ]memory",
        ],
        "cure": [
            r"dmesg|journalctl|kernel('s)? log|memory\.events|sacct",
            r"(look|check|see|find|ask)\w*\b.{0,80}(OOM|memory|killed|scheduler|batch system"
            r"|cgroup)",
            r"(lower|less|reduce|more|request|smaller|raise)\b.{0,40}(memory|batch size|--mem)",
            "who(ever)? .{0,20}(sent|killed)",
        ],
        "launcher": "plain",
    },
    "restarts": {
        "story": "A loader makes new workers in each epoch, beside a validation without workers.",
        "expected": [],
        "launcher": "plain",
        "world": 2,
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Stream(IterableDataset):
    def __init__(self, shape, count):
        self.shape, self.count = shape, count

    def __iter__(self):
        info = get_worker_info()
        mine = info is not None and os.environ["RANK"] == "1" and info.id == 1
        for number in range(self.count):
            if mine and number == 40 and self.shape == "starves":
                mark()
                into, _out = os.pipe()
                os.read(into, 1)
            if mine and number == 40 and self.shape == "helper_dies":
                mark()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
            yield torch.full((16,), float(number))


def epochs(shape, count, times, pause):
    training = DataLoader(Stream(shape, count), batch_size=2, num_workers=2)
    checking = DataLoader(Stream("", 20), batch_size=4, num_workers=0)
    weight = torch.zeros(16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(times):
        for number, rows in enumerate(training):
            loss = (rows @ weight).sum()
            loss.backward()
            dist.all_reduce(weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause)
            if shape == "taken" and number == 60 and dist.get_rank() == 1:
                mark()
                os.kill(os.getpid(), signal.SIGKILL)
        with torch.no_grad():
            for rows in checking:
                seen = (rows @ weight).sum()
                dist.all_reduce(seen)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if sys.argv[1] == "restarts":
        epochs("", 60, 4, 0.03)
    else:
        epochs(sys.argv[1], 4000, 1, 0.01)
