"""Fully sharded layers on CPU."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CASES = {
    "keeps-alone": {
        "story": "Rank 0 alone collects the full state dict of sharded weights.",
        "source": "pytorch/pytorch#143536",
        "expected": ["collective-mismatch 0"],
        "place": "train",
        "cause": [
            r"\bstate[_ ]?dict\b",
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\b_?all_?gather\w*\b[\s\S]{0,160}\bbarrier\b",
            r"\bbarrier\b[\s\S]{0,160}\b_?all_?gather\w*\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
            r"\bstate[_ ]?dict\b.{0,60}\b(all|every) ranks?\b|\bdcp\b|distributed\.checkpoint",
        ],
    },
    "unrouted": {
        "story": "On rank 2 no token reaches the expert, so its layer is not gathered.",
        "source": "deepspeedai/DeepSpeed#4966",
        "expected": ["collective-mismatch 2", "rank-killed 2"],
        "cause": [
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
            r"\b(different|another|other|not the same)\b.{0,20}\b(size|shape|layer|module|param)",
            r"\b(left|leaves) out\b|\bskip(s|ped)\b|\bunused\b|\bnot (used|run|called|gathered)\b",
            r"\bSIGABRT\b|\bsignal 6\b|\bpreamble\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
            r"\b(all|every|each) ranks?\b.{0,60}\b(layers?|experts?|modules?|forward|branch)\b",
            r"\bdummy\b|\bempty (batch|input)|\bzero (tokens?|inputs?|weights?)|leaf_modules?\b",
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
        ],
    },
    "reads": {
        "story": "Rank 1 reads from a disk that does not answer; fully sharded layers.",
        "source": "nfs-ganesha/nfs-ganesha#1327",
        "expected": ["not-in-collective 1"],
        "place": "slow_disk",
        "cause": [
            r"\bpipe\b|pipe_(read|wait)",
            r"\b(wait|block|stuck|hang)\w*.{0,40}\bread",
            r"\breads? (from|a|on)\b",
        ],
        "cure": [
            r"\b(other|write|writing) (end|side)|\bwriter\b|\bwho (writes|should write)",
            r"\blsof\b|/proc/\S+/fd|\bstrace\b",
            r"\b(look|see|check|find)\b.{0,60}\b(pipe|file|disk|mount|storage|NFS|source|fd)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "world": 2,
    },
    "named-devices": {
        "story": (
            "The same with a group that names its devices (cpu:gloo), whose status has no number."
        ),
        "expected": ["not-in-collective 1"],
        "place": "slow_disk",
        "cause": [
            r"\bpipe\b|pipe_(read|wait)",
            r"\b(wait|block|stuck|hang)\w*.{0,40}\bread",
            r"\breads? (from|a|on)\b",
        ],
        "cure": [
            r"\b(other|write|writing) (end|side)|\bwriter\b|\bwho (writes|should write)",
            r"\blsof\b|/proc/\S+/fd|\bstrace\b",
            r"\b(look|see|check|find)\b.{0,60}\b(pipe|file|disk|mount|storage|NFS|source|fd)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "world": 2,
    },
    "plain-shards": {
        "story": "Fully sharded layers; rank 0 writes a checkpoint for three seconds.",
        "expected": [],
        "world": 2,
        "shape": "plain",
        "tolerated": ["not-in-collective 0"],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(64, 64)
        self.expert = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 1)

    def forward(self, x, routed):
        x = self.trunk(x)
        if routed:
            x = x + self.expert(x)
        return self.head(x)


def build():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = Experts()
    for layer in (net.trunk, net.expert, net.head):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def slow_disk():
    into, _out = os.pipe()
    with os.fdopen(into) as file:
        file.readline()


def train(shape):
    net = build()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    rank = dist.get_rank()
    for step in range(100 if shape == "plain" else 100_000):
        if shape == "keeps_alone" and step == 50:
            if rank == 0:
                mark()
                get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
            dist.barrier()
        if shape in ("reads", "named_devices") and step == 50 and rank == 1:
            mark()
            slow_disk()
        routed = True
        if shape == "unrouted" and step == 50 and rank == dist.get_world_size() - 1:
            mark()
            routed = False
        net(torch.ones(4, 64), routed).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.03)
        if shape == "plain" and step == 60:
            get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
            if rank == 0:
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    json.dumps(list(range(1000)))
            dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo" if sys.argv[1] == "named_devices" else "gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
