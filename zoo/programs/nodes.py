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
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "launcher": "own",
        "world": 4,
    },
    "node-differs": {
        "story": "The ranks of the second node call a barrier that the first node's do not.",
        "source": "NVIDIA/nccl#1170",
        "expected": ["collective-mismatch 2,3", "collective-mismatch 0,1,2,3"],
        "cause": [
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\bbarrier\b[\s\S]{0,160}\ball_?reduce\b|\ball_?reduce\b[\s\S]{0,160}\bbarrier\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
            r"\bsame (code|version|script|config\w*|environment)\b",
        ],
        "launcher": "own",
        "world": 4,
    },
    "node-killed": {
        "story": "The first rank of the second node is killed.",
        "expected": ["rank-killed 2"],
        "cause": [r"\bSIGKILL\b|\bsignal 9\b|\bkill -9\b", r"\b(was|been|got) killed\b"],
        "cure": [
            r"\bdmesg\b|\bjournalctl\b|\bkernel('s)? log|\boom\b|\bout.of.memory|\bmemory limit",
            r"\b(who|what|which|why)\b.{0,40}\b(kill\w*|sent|sends|signal)\b",
            r"\b(scheduler|slurm|kubernetes|launcher|torchrun|node)\b.{0,40}\b(logs?|says)\b",
            r"\b(scheduler|slurm|kubernetes|launcher|torchrun|node)\b.{0,40}\b(message|output)\b",
            r"\brestart|\bresume|\bstart\b.{0,20}\bagain",
        ],
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
