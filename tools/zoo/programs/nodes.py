"""Two launchers of torchrun on one machine, as two nodes of one job."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

CASES = {
    "node-stands": {
        "story": "Two launchers, one job; the last rank of the second node stands.",
        "source": "pytorch/pytorch#76069",
        "expected": ["not-in-collective 3"],
        "place": "member",
        "launcher": "own",
        "world": 4,
    },
    "node-differs": {
        "story": "The ranks of the second node call a barrier that the first node's do not.",
        "source": "NVIDIA/nccl#1170",
        "expected": ["collective-mismatch 2,3", "collective-mismatch 0,1,2,3"],
        "launcher": "own",
        "world": 4,
    },
    "node-killed": {
        "story": "The first rank of the second node is killed.",
        "expected": ["rank-killed 2"],
        "launcher": "own",
        "world": 4,
    },
    "fine-nodes": {
        "story": "Two launchers, one job.",
        "expected": [],
        "launcher": "own",
        "world": 4,
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def member(shape):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, values = dist.get_rank(), torch.zeros(50)
    for step in range(200 if shape == "fine_nodes" else 100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == 70 and shape == "node_stands" and rank == 3:
            mark()
            threading.Event().wait()
        if step == 70 and shape == "node_differs" and rank >= 2:
            if rank == 2:
                mark()
            dist.barrier()
        if step == 70 and shape == "node_killed" and rank == 2:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


def launchers(shape):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if "TORCHELASTIC" not in name}
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--nproc-per-node", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1"),
                *("--master-port", str(port), __file__, "member", shape),
            ],
            env=kept,
        )
        for node in range(2)
    ]


if __name__ == "__main__":
    if sys.argv[1] == "member":
        member(sys.argv[2])
    else:
        sys.exit(max(abs(one.wait()) for one in launchers(sys.argv[1])))
