"""Records that the ranks of a trial report about their nodes."""

from ddtop.cli.check.trial import Trial, judge_trial
from ddtop.policy import POLICY

MIB = 1 << 20


def node(rank=0, host="node0", **changes):
    """The facts that the first rank of a node reports."""
    facts = {
        "kind": "node", "rank": rank, "host": host, "local_size": 2, "torch": "2.9.0",
        "nccl": "2.27.5", "driver": "nvidia 570.1", "infiniband": False, "gpus": None,
        "user_tasks": 50, "shm_bytes": 8192 * MIB, "nofile": 65536, "nproc": None,
        "memlock": 64 << 10, "addresses": [f"10.0.0.{rank + 1}"],
        "offset": [0.001, 0.002] if rank else None,
    }  # fmt: skip
    return facts | changes


def lines_of(*facts, size=4, nodes=2, policy=POLICY):
    """The lines of a trial in which these facts were reported."""
    trial = Trial()
    for rank in range(size):
        trial.take({"kind": "start", "rank": rank, "size": size, "host": f"node{rank // 2}"})
    for one in facts:
        trial.take(one)
    return judge_trial(trial, nodes, 60.0, 30.0, policy)
