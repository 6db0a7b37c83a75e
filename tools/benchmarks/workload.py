"""A rank of a mostly idle training: 20 ms of sleep, a tiny DDP step, a small broadcast. Prints JSON
lines.

CPU is the whole process's (`time.process_time`: all threads, the agent's and ZeroMQ's too), from
the end of the warm-up to the last step. Each line also has what ddtop's own threads used, as the
kernel counts it for each thread.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

SLEEP_S = 0.02


class Numbers(Dataset):
    """Any number of small samples."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return torch.full((16,), float(index % 7))


def own_threads_ns():
    """CPU of ddtop's threads in this process: the agent's thread, and the agent's together with
    ZeroMQ's, which no other code uses here.
    """
    alone, all_of_it = 0, 0
    for task in Path("/proc/self/task").iterdir():
        # The agent's thread is not in `threading.enumerate`, and blocks all signals.
        is_zmq = (task / "comm").read_text().startswith("ZMQ")
        is_agent = not is_zmq and "SigBlk:\tf" in (task / "status").read_text()
        if is_agent or is_zmq:
            used = int((task / "schedstat").read_text().split()[0])
            all_of_it += used
            alone += used if is_agent else 0
    return alone, all_of_it


def wake():
    """The smallest cost that a thread in the rank can have."""
    while True:
        time.sleep(0.25)


def memory():
    """Resident, proportional and private memory of this process in KiB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    private = found["Private_Clean"] + found["Private_Dirty"]
    return {"rss_kib": found["Rss"], "pss_kib": found["Pss"], "private_kib": private}


def main():
    """Train for some steps, and print what they cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1 << 40)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--workers", type=int, default=None, help="take batches from a DataLoader")
    parser.add_argument(
        "--sleeper", type=int, default=None, help="this rank falls asleep instead of a collective"
    )
    parser.add_argument(
        "--traceml",
        action="store_true",
        help="with traceml-ai's instrumentation, as its documents say",
    )
    parser.add_argument(
        "--idle-thread",
        action="store_true",
        help="with a thread that wakes four times a second and does nothing",
    )
    parser.add_argument(
        "--gate", default=None, help="after the warm-up, wait until this file is there"
    )
    parser.add_argument(
        "--said", default=None, help="a folder for the JSON lines, instead of stdout"
    )
    options = parser.parse_args()
    traced = contextlib.nullcontext
    if options.traceml:
        import traceml_ai

        traceml_ai.init(mode="auto")
        traced = traceml_ai.trace_step
    if options.idle_thread:
        threading.Thread(target=wake, daemon=True).start()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.said:
        sys.stdout = (Path(options.said) / f"rank{dist.get_rank()}.out").open("w")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    flag, still = torch.zeros(4), torch.zeros(8, 16)
    batches = None
    if options.workers is not None:
        batches = iter(DataLoader(Numbers(), batch_size=8, num_workers=options.workers))
    late = []
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            print(json.dumps({"ready": True}), flush=True)
            while options.gate and not Path(options.gate).exists():
                time.sleep(0.05)
            dist.barrier()
            began, cpu, (agent, own) = time.monotonic(), time.process_time_ns(), own_threads_ns()
            late.clear()
        due = time.monotonic() + SLEEP_S
        time.sleep(SLEEP_S)
        late.append(time.monotonic() - due)
        batch = next(batches) if batches is not None else still
        with traced(model):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        if options.sleeper == dist.get_rank() and step == 2 * options.warmup:
            print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)
            time.sleep(1e6)
        dist.broadcast(flag, src=0)
        if options.steps > 1 << 20:
            late.clear()
    cpu, wall = time.process_time_ns() - cpu, time.monotonic() - began
    agent, own = (now - before for now, before in zip(own_threads_ns(), (agent, own), strict=True))
    late.sort()
    found = {
        "steps": options.steps,
        "wall_s": wall,
        "cpu_ms": cpu / 1e6,
        "own_ms": own / 1e6,
        "agent_ms": agent / 1e6,
        "late_p99_ms": late[int(0.99 * len(late))] * 1e3,
        "began_unix_ns": time.time_ns() - int(wall * 1e9),
    }
    print(json.dumps(found | memory()), flush=True)
    dist.barrier()
    if options.traceml:
        return  # TraceML waits at its end for data that it has not received yet.
    # The interpreter's end and the destruction of groups belong to no step.
    os._exit(0)


main()
