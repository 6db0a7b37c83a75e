"""Tensor, pipeline and sharded parallelism, and calls that only some ranks make in them."""

import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "tensor-parallel": {
        "story": "Column and row parallel layers; rank 1 stands between two steps.",
        "expected": ["not-in-collective 1"],
        "place": "stand",
        "cause": [
            r"\bevent\b",
            r"threading\.py",
            r"\b(lock|condition|semaphore)\b|acquire",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"who(ever)? .{0,20}(sets?|notif\w+|releases?|wakes?)\b",
            "thread (that|which|of it that) .{0,30}(set|notif|release|wake)",
            r"(set|notif\w+|release|wake)\w* (it|the (event|lock|condition))",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "world": 2,
    },
    "tensor-parallel-print": {
        "story": "Only rank 0 asks for a full tensor, which is a collective.",
        "source": "areal-project/AReaL#187",
        "expected": ["collective-mismatch 0"],
        "cause": [
            "full_tensor|redistribute",
            "rank 0 (alone|only)|only (on |by )?rank 0|one (more|extra)",
            "all_?gather.{0,100}all_?reduce|all_?reduce.{0,100}all_?gather",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            "full_tensor.{0,60}(all|every|collective)|to_local",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "two-dimensions": {
        "story": "Replicas of sharded models; rank 3 stands.",
        "expected": ["not-in-collective 3"],
        "place": "stand",
        "cause": [
            r"\bevent\b",
            r"threading\.py",
            r"\b(lock|condition|semaphore)\b|acquire",
            r"rank 3\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"who(ever)? .{0,20}(sets?|notif\w+|releases?|wakes?)\b",
            "thread (that|which|of it that) .{0,30}(set|notif|release|wake)",
            r"(set|notif\w+|release|wake)\w* (it|the (event|lock|condition))",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "world": 4,
    },
    "sharded-branch": {
        "story": "Only rank 1 uses a sharded expert.",
        "source": "pytorch/pytorch#126616",
        "expected": ["collective-mismatch 1", "rank-killed 1"],
        "cause": [
            r"fully_shard|FSDP|\bunshard|sharded",
            "rank 1 (alone|only)|only (on |by )?rank 1",
            "all_?gather.{0,100}all_?reduce|all_?reduce.{0,100}all_?gather",
            "all_?gather.{0,100}reduce_?scatter|reduce_?scatter.{0,100}all_?gather",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
            r"(different|differing|other|unequal|not the same|mismatch\w*) (size|shape|number"
            r"|length)s?",
            r"(size|shape|numel|length|bytes|MB|elements|values)\b.{0,60}(differ|against"
            r"|mismatch|vs)",
            "preamble|EnforceNotMet|gloo.{0,80}(abort|terminat|enforce|size)",
        ],
        "cure": [
            r"same (layers?|modules?|forward|experts?)|dummy|(all|every)\b.{0,60}forward",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "checkpoint-of-some": {
        "story": "All ranks but rank 2 call the save of torch.distributed.checkpoint.",
        "source": "pytorch/pytorch#122903",
        "expected": ["collective-mismatch 2"],
        "cause": [
            r"checkpoint|\bdcp\b|state_dict_saver|\bsav(e|es|ing)\b",
            "(gather|scatter).{0,100}all_?reduce|all_?reduce.{0,100}(gather|scatter)",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            r"(all|every|each)\b.{0,60}(save|checkpoint)",
            "(save|checkpoint).{0,60}(all|every) rank|no_dist",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "zero-consolidates": {
        "story": "Only rank 0 calls consolidate_state_dict of ZeroRedundancyOptimizer.",
        "source": "deepspeedai/DeepSpeed#801",
        "expected": ["collective-mismatch 0"],
        "cause": [
            "consolidate_state_dict|ZeroRedundancy",
            "rank 0 (alone|only)|only (on |by )?rank 0",
            "broadcast.{0,100}all_?reduce|all_?reduce.{0,100}broadcast",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            "consolidate_state_dict.{0,60}(all|every)",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "local-sgd": {
        "story": "Rank 1 averages the parameters every twenty steps, the others every ten.",
        "expected": ["collective-mismatch 1", "rank-killed 1"],
        "cause": [
            r"(skip|left out|leaves? out|miss|omit|fewer|behind|did not|never|without)\w*"
            r".{0,60}(reduce|collective|call|step|averag)",
            "every (10|20|ten|twenty)|interval|period",
            "broadcast.{0,100}all_?reduce|all_?reduce.{0,100}broadcast",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
            r"(different|differing|other|unequal|not the same|mismatch\w*) (size|shape|number"
            r"|length)s?",
            r"(size|shape|numel|length|bytes|MB|elements|values)\b.{0,60}(differ|against"
            r"|mismatch|vs)",
            "preamble|EnforceNotMet|gloo.{0,80}(abort|terminat|enforce|size)",
        ],
        "cure": [
            "same (period|interval|step|schedule)",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "exchange-sizes": {
        "story": "Rank 0 reduces a number before the all_to_all of the others.",
        "source": "pytorch/pytorch#100207",
        "expected": ["collective-mismatch 0"],
        "cause": [
            "(one|an?) (more|extra|additional)|once more",
            "all_?to_?all.{0,100}all_?reduce|all_?reduce.{0,100}all_?to_?all",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            r"(remove|drop|move|take)\w*\b.{0,60}(call|collective|all_?reduce)",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "root-differs": {
        "story": "Rank 2 takes another root for a broadcast.",
        "expected": ["collective-mismatch 2", "collective-stuck"],
        "cause": [
            r"\broots?\b",
            r"\bsrc\b|(other|different|another) source|source rank",
        ],
        "cure": [
            r"same (root|src|source)|(root|src|source)\b.{0,60}(all|every|same|agree|each)",
            r"(check|compare|print|look|log)\w*\b.{0,60}(root|src|source)",
            "TORCH_DISTRIBUTED_DEBUG",
        ],
    },
    "op-differs": {
        "story": "Rank 0 gathers where the others reduce.",
        "expected": ["collective-mismatch 0"],
        "cause": [
            "all_?gather.{0,100}all_?reduce|all_?reduce.{0,100}all_?gather",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "subgroup-member-missing": {
        "story": "Rank 2 no longer takes part in the calls of its pair.",
        "expected": [
            "not-in-collective 2",
            "collective-mismatch 2",
            "wait-cycle 0,1,2",
            "wait-cycle 1,2",
        ],
        "cause": [
            r"(skip|left out|leaves? out|miss|omit|fewer|behind|did not|never|without)\w*"
            r".{0,60}(group|broadcast|call|collective|pair)",
            r"not (come|called|taken part|entered|reached|in)\b.{0,60}(group|pair|broadcast)",
            r"sub-?group|(other|another|different|two) groups?\b|group of",
        ],
        "cure": [
            r"(check|see|look|make sure)\b.{0,80}(member|(?<!process )group)",
            r"(all|both|every)\b.{0,30}members",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "compiled-region": {
        "story": "A compiled function has a collective in it; rank 1 takes the other branch.",
        "expected": ["collective-mismatch 1"],
        "cause": [
            "barrier.{0,100}all_?reduce|all_?reduce.{0,100}barrier",
            r"(skip|left out|leaves? out|miss|omit|fewer|behind|did not|never|without)\w*"
            r".{0,60}(reduce|collective|call)",
            r"\bbranch",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "pipeline-schedule": {
        "story": "The last stage of a GPipe schedule stands in its loss.",
        "source": "pytorch/pytorch#172668",
        "expected": ["not-in-collective 2"],
        "place": "stand",
        "cause": [
            r"\bevent\b",
            r"threading\.py",
            r"\b(lock|condition|semaphore)\b|acquire",
            r"rank 2\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"who(ever)? .{0,20}(sets?|notif\w+|releases?|wakes?)\b",
            "thread (that|which|of it that) .{0,30}(set|notif|release|wake)",
            r"(set|notif\w+|release|wake)\w* (it|the (event|lock|condition))",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
    },
    "fine-tensor-parallel": {
        "story": "Column and row parallel layers.",
        "expected": [],
        "world": 2,
    },
    "fine-checkpoints": {
        "story": "Distributed checkpoints, one of them in the background.",
        "expected": [],
    },
    "fine-pipeline": {"story": "A GPipe schedule with a slow first stage.", "expected": []},
    "fine-branches": {
        "story": "Ranks use different parameters, with find_unused_parameters.",
        "expected": [],
    },
    "fine-evaluation": {
        "story": "All ranks evaluate, for different times, then gather their results.",
        "expected": [],
    },
}

AT = 60


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def stand():
    mark()
    threading.Event().wait()


class Block(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def loop(net, act=lambda step: None, steps=100_000):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    for step in range(steps):
        act(step)
        optimizer.zero_grad()
        net(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)


def tensor_parallel():
    """A column and a row parallel layer; one rank stands between two steps."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    loop(net, lambda step: stand() if step == AT and dist.get_rank() == 1 else None)


def tensor_parallel_print():
    """Only rank 0 prints a full tensor: full_tensor() is a collective."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weights = distribute_tensor(torch.ones(24, 8), mesh, [Shard(0)])
    values = torch.ones(8)
    for step in range(100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == AT and dist.get_rank() == 0:
            mark()
            print(float(weights.full_tensor().sum()))
        weights = (weights * 1.0).redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(0)])
        assert isinstance(weights, DTensor)


def two_dimensions():
    """Replicas of sharded models: one replica's rank stands, the other replica waits for it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = Block()
    for layer in (net.up, net.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    loop(net, lambda step: stand() if step == AT and dist.get_rank() == 3 else None)


def sharded_branch():
    """A sharded expert is used by one rank only."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    trunk, expert = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
    net = torch.nn.ModuleList([trunk, expert])
    for layer in net:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    values = torch.ones(4)
    for step in range(100_000):
        x = trunk(torch.ones(4, 32))
        if step == AT and dist.get_rank() == 1:
            mark()
            x = expert(x)
        x.sum().backward()
        dist.all_reduce(values)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.03)


def checkpoint_of_some():
    """torch.distributed.checkpoint is called by all ranks but one, which skips the save."""
    net = DistributedDataParallel(Block())

    def act(step):
        if step == AT:
            if dist.get_rank() == 2:
                mark()
                return
            dcp.save({"net": net.module.state_dict()}, checkpoint_id=os.path.abspath("ckpt"))

    loop(net, act)


def zero_consolidates():
    """consolidate_state_dict of ZeroRedundancyOptimizer on rank 0 only."""
    net = DistributedDataParallel(Block())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-3)
    for step in range(100_000):
        optimizer.zero_grad()
        net(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)
        if step == AT and dist.get_rank() == 0:
            mark()
            optimizer.consolidate_state_dict(to=0)


def local_sgd():
    """Averages of parameters every ten steps on most ranks, every twenty on one."""
    net = Block()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    value = torch.ones(1)
    for step in range(100_000):
        optimizer.zero_grad()
        net(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
        period = 20 if dist.get_rank() == 1 and step > 100 else 10
        if step == 109 and dist.get_rank() == 1:
            mark()
        if step % period == period - 1:
            for parameter in net.parameters():
                dist.all_reduce(parameter.data)
        if step % 10 == 9:
            dist.broadcast(value, src=0)


def exchange_sizes():
    """all_to_all of experts: one rank sends other sizes than the rest expects."""
    size = dist.get_world_size()
    for step in range(100_000):
        counts = [250_000] * size
        if step == AT and dist.get_rank() == 0:
            mark()
            dist.all_reduce(torch.ones(1))
        dist.all_to_all_single(torch.empty(sum(counts)), torch.ones(sum(counts)), counts, counts)
        time.sleep(0.03)


def root_differs():
    """The root of a broadcast is taken from a rank's own variable."""
    values = torch.ones(64)
    for step in range(100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        best = 0
        if step == AT:
            best = 1 if dist.get_rank() == 2 else 0
            if dist.get_rank() == 2:
                mark()
        dist.broadcast(values, src=best)


def op_differs():
    """One rank gathers where the others reduce."""
    values = torch.ones(64)
    table = [torch.ones(64) for _ in range(dist.get_world_size())]
    for step in range(100_000):
        time.sleep(0.03)
        if step == AT and dist.get_rank() == 0:
            mark()
            dist.all_gather(table, values)
        else:
            dist.all_reduce(values)
        dist.barrier()


def subgroup_member_missing():
    """A broadcast in a group of two; the other member believes that it is not in it."""
    size = dist.get_world_size()
    pair = dist.new_group([1, 2])
    values = torch.ones(64)
    for step in range(100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if dist.get_rank() in (1, 2) and not (step >= AT and dist.get_rank() == size - 1):
            dist.broadcast(values, src=1, group=pair)
            dist.all_reduce(values, group=pair)
        elif step == AT and dist.get_rank() == size - 1:
            mark()


def compiled_region():
    """A compiled function with a collective in it; one rank takes the other branch."""

    def body(x, reduce):
        y = torch.sin(x) * 2
        if reduce:
            y = funcol.all_reduce(y, "sum", dist.group.WORLD)
        return y + 1

    fast = torch.compile(body, backend="eager")
    x = torch.ones(64)
    for step in range(100_000):
        reduce = not (step >= AT and dist.get_rank() == 1)
        if step == AT and dist.get_rank() == 1:
            mark()
        x = fast(x, reduce) / 4
        x = x + 0
        dist.barrier()
        time.sleep(0.03)


def pipeline_schedule():
    """Two stages with a schedule of micro-batches; the last stage stands in its loss."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Block(), rank, size, torch.device("cpu"))
    turn = [0]

    def loss(output, target):
        turn[0] += 1
        if turn[0] == 150 and rank == size - 1:
            stand()
        return (output - target).square().mean()

    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss)
    for _ in range(100_000):
        if rank == 0:
            schedule.step(torch.ones(4, 32))
        elif rank == size - 1:
            schedule.step(target=torch.ones(4, 32))
        else:
            schedule.step()
        time.sleep(0.03)


def fine_tensor_parallel():
    """Healthy."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    loop(net, steps=70)


def fine_checkpoints():
    """Healthy: a distributed checkpoint every twenty-five steps, the last one in the background."""
    net = DistributedDataParallel(Block())
    side = dist.new_group(backend="gloo")

    def act(step):
        if step % 25 == 24:
            state = {"net": net.module.state_dict()}
            if step == 74:
                dcp.async_save(state, checkpoint_id=os.path.abspath("last"), process_group=side)
            else:
                dcp.save(state, checkpoint_id=os.path.abspath(f"ckpt{step}"))

    loop(net, act, 80)


def fine_pipeline():
    """Healthy: the same schedule, with a first stage that takes three times as long."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()

    class Slow(Block):
        def forward(self, x):
            if rank == 0:
                time.sleep(0.05)
            return super().forward(x)

    stage = PipelineStage(Slow(), rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, want: (out - want).square().mean())
    for _ in range(60):
        if rank == 0:
            schedule.step(torch.ones(4, 32))
        elif rank == size - 1:
            schedule.step(target=torch.ones(4, 32))
        else:
            schedule.step()


def fine_branches():
    """Healthy: unused parameters on some ranks, with find_unused_parameters."""

    class Either(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

        def forward(self, x):
            return self.left(x) if dist.get_rank() == 0 else self.right(x)

    loop(DistributedDataParallel(Either(), find_unused_parameters=True), steps=70)


def fine_evaluation():
    """Healthy: all ranks evaluate for different times, then gather their results."""
    net = DistributedDataParallel(Block())

    def act(step):
        if step % 35 == 34:
            until = time.monotonic() + 1.0 + dist.get_rank()
            with torch.no_grad():
                while time.monotonic() < until:
                    net.module(torch.ones(64, 32))
            found = [None] * dist.get_world_size()
            dist.all_gather_object(found, {"accuracy": 0.5})

    loop(net, act, 80)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
