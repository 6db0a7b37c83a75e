"""torch.distributed.rpc beside or instead of process groups, and restarts by the launcher."""

import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

CASES = {
    "call-not-answered": {
        "story": "Rank 1 never answers a remote call of rank 0; the others wait for rank 0.",
        "source": "pytorch/pytorch#44169",
        "expected": ["not-in-collective 0"],
        "place": "calls",
        "cause": [
            r"\brpc\b|\brpc_sync\b|\bremote (call|procedure)|\bTensorPipe\b",
            r"\b(never|not|no)\b.{0,20}\b(answer|repl|return|respon)\w*",
        ],
        "cure": [
            r"\brpc_timeout\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(look|see|check|find|threads?|stacks?)\b.{0,60}\b(callee|rank 1|remote)\b",
            r"\b(look|see|check|find|threads?|stacks?)\b.{0,60}\b(peer|called|other)\b",
        ],
    },
    "fine-calls": {"story": "Remote calls between collectives.", "expected": []},
    "parameter-server": {
        "story": "Trainers call a parameter server; there is no process group.",
        "expected": [],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def answer(value, wait):
    if wait:
        mark()
        threading.Event().wait()
    return value * 2


def calls(rank, size, odd, steps):
    """Rank 0 calls each other one between two collectives."""
    values = torch.ones(16)
    for step in range(steps):
        dist.all_reduce(values)
        time.sleep(0.03)
        if rank == 0 and step % 20 == 0:
            for peer in range(1, size):
                stands = step == 60 and peer == odd
                rpc.rpc_sync(f"worker{peer}", answer, args=(1.0, stands), timeout=0)


def call_not_answered(rank, size):
    """One call is never answered; rank 0 waits for it, the others for rank 0."""
    calls(rank, size, 1, 100_000)


def fine_calls(rank, size):
    """Healthy."""
    calls(rank, size, None, 200)


def parameter_server(rank, size):
    """Healthy: no process group, trainers call rank 0 and think in between."""
    if rank:
        for _ in range(120):
            rpc.rpc_sync("worker0", answer, args=(1.0, False))
            time.sleep(0.05)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if sys.argv[1] != "parameter_server":
        dist.init_process_group("gloo")
    # rpc finds its peers by the same store; another port keeps the two apart.
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{os.getcwd()}/rpc", rpc_timeout=0
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size, rpc_backend_options=options)
    globals()[sys.argv[1]](rank, size)
    rpc.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
