"""Steps with too many collectives, and hosts with too many threads."""

import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "all-rows": {
        "story": "Each row of each gradient is reduced by itself: some 300 all_reduces a step.",
        "expected": ["sync-bound 0,1"],
        "cause": [
            r"((?<![:\w.])\d[\d.]*\d|hundred\w*|dozens|many|lots)( of)? (\w+ ){0,2}"
            r"(collectives?|all_?reduces?|barriers?|calls|messages|synchroni[sz]ations)\b",
            r"(small|tiny|little|short)\b.{0,30}(collective|message|call|tensor|reduce)",
            "latency|too (many|often)",
        ],
        "cure": [
            r"bucket|flatten|coalesc|\bfus(e|ed|ing)\b|batch them|merge|combin|\bpack",
            "(one|a single|few|fewer|larger|bigger) .{0,20}(all_?reduce|collective|call"
            "|tensor|message)s?",
            r"DistributedDataParallel|\bDDP\b",
        ],
        "world": 2,
        "within_s": 60,
    },
    "started-all": {
        "story": "Some 200 asynchronous all_reduces a step, waited for at its end.",
        "expected": ["sync-bound 0,1"],
        "cause": [
            r"((?<![:\w.])\d[\d.]*\d|hundred\w*|dozens|many|lots)( of)? (\w+ ){0,2}"
            r"(collectives?|all_?reduces?|barriers?|calls|messages|synchroni[sz]ations)\b",
            r"(small|tiny|little|short)\b.{0,30}(collective|message|call|tensor|reduce)",
            "latency|too (many|often)",
        ],
        "cure": [
            r"bucket|flatten|coalesc|\bfus(e|ed|ing)\b|batch them|merge|combin|\bpack",
            "(one|a single|few|fewer|larger|bigger) .{0,20}(all_?reduce|collective|call"
            "|tensor|message)s?",
            r"DistributedDataParallel|\bDDP\b",
        ],
        "world": 2,
        "within_s": 60,
    },
    "every-metric": {
        "story": "A hundred metrics a step, each averaged over the ranks by itself.",
        "source": "huggingface/trl#6943",
        "expected": ["sync-bound 0,1"],
        "cause": [
            r"((?<![:\w.])\d[\d.]*\d|hundred\w*|dozens|many|lots)( of)? (\w+ ){0,2}"
            r"(collectives?|all_?reduces?|barriers?|calls|messages|synchroni[sz]ations)\b",
            r"(small|tiny|little|short)\b.{0,30}(collective|message|call|tensor|reduce)",
            "latency|too (many|often)",
        ],
        "cure": [
            r"bucket|flatten|coalesc|\bfus(e|ed|ing)\b|batch them|merge|combin|\bpack",
            "(one|a single|few|fewer|larger|bigger) .{0,20}(all_?reduce|collective|call"
            "|tensor|message)s?",
            r"DistributedDataParallel|\bDDP\b",
            r"every (N|few|ten|\d+) steps|less often|accumulate|torch\.stack|end of the epoch",
        ],
        "world": 2,
        "within_s": 60,
    },
    "barrier-a-layer": {
        "story": "A barrier after each of forty layers, left over from debugging.",
        "expected": ["sync-bound 0,1"],
        "cause": [
            r"(\d|many|too many|lots|each|every|after)\b.{0,60}barrier",
            "barriers?.{0,60}(step|layer|iteration|second|share|%)",
            "too (many|often)",
        ],
        "cure": [
            r"(remove|drop|delete|take out|fewer|without|avoid|needless|unnecessary)\b"
            r".{0,60}barrier",
            "barriers?.{0,60}(remove|drop|delete|out|not need|needless|unnecessary|debug)",
        ],
        "world": 2,
        "within_s": 60,
    },
    "small-buckets": {
        "story": "DDP with one bucket for each of 240 parameters.",
        "expected": ["sync-bound 0,1"],
        "cause": [
            r"((?<![:\w.])\d[\d.]*\d|hundred\w*|dozens|many|lots)( of)? (\w+ ){0,2}"
            r"(collectives?|all_?reduces?|barriers?|calls|messages|synchroni[sz]ations)\b",
            r"(small|tiny|little|short)\b.{0,30}(collective|message|call|tensor|reduce)",
            "latency|too (many|often)",
            "bucket",
        ],
        "cure": [
            "bucket_cap_mb|(larger|bigger|fewer|default|raise) .{0,20}bucket|bucket size",
            "25 ?Mi?B",
            r"gradient_as_bucket_view|coalesc|\bfus(e|ed|ing)\b",
        ],
        "world": 2,
        "within_s": 60,
    },
    "many-threads": {
        "story": "Two ranks with 24 threads each, set in the program.",
        "source": "pytorch/pytorch#19163",
        "expected": ["cpu-oversubscribed 0,1"],
        "cause": [
            r"\d (\w+ ){0,3}(threads|processes)\b.{0,80}\b(core|CPU)s?\b",
            r"(threads|processes)\b.{0,60}(share|compete|fight|per) .{0,20}\b(core|CPU)s?\b",
            "more .{0,30}(threads|processes) than",
        ],
        "cure": [
            "(OMP|MKL)_NUM_THREADS|set_num_threads",
            r"(fewer|lower|reduce|limit|less)\b.{0,40}threads",
            "threads (per|a|for each) (rank|process)",
        ],
        "world": 2,
        "within_s": 60,
    },
    "helpers-compute": {
        "story": "Each rank keeps four child processes that compute without end.",
        "expected": ["cpu-oversubscribed 0,1"],
        "cause": [
            r"(child|sub-?process|helper|descendant)\w*.{0,80}(comput|CPU|core|busy|runn)",
            r"\d (\w+ ){0,3}(threads|processes)\b.{0,80}\b(core|CPU)s?\b",
            r"(threads|processes)\b.{0,60}(share|compete|fight|per) .{0,20}\b(core|CPU)s?\b",
            "more .{0,30}(threads|processes) than",
        ],
        "cure": [
            r"(fewer|limit|stop|kill|reduce|lower|nice|end)\b.{0,50}(process|child|helper"
            r"|worker)",
            r"num_workers|more (cores|CPUs)|cpus-per-task|\b(h?top|pidstat|renice|taskset)\b",
            "ps -",
        ],
        "world": 2,
        "within_s": 60,
    },
    "same-core": {
        "story": "Both ranks are bound to one core.",
        "expected": ["cpu-oversubscribed 0,1"],
        "cause": [
            r"affinity|Cpus_allowed|bound to|binding|\bpinn(ed|ing)",
            r"(same|one|a single|1) (core|CPU)\b|shar\w+ .{0,20}(core|CPU)\b",
        ],
        "cure": [
            "taskset|bind-to|cpu-bind|numactl|sched_setaffinity|cpuset|map-by|cpus-per-task",
            r"(set|change|check|widen|give|fix|remov|lift)\w*\b.{0,50}(affinity|binding"
            r"|pinning|cores?)",
        ],
        "world": 2,
        "within_s": 60,
    },
    "flat-gradient": {
        "story": "One flat gradient of 60 MB a step, beside 10 ms of work.",
        "expected": ["transfer-bound 0,1"],
        "cause": [
            r"\d ?[MG]i?B(/s\b|.{0,30}\b(step|call|second|tensor|message))|bandwidth",
            r"(mov|send|sent|reduc|exchang|transfer|gradient)\w*.{0,40}\d ?[MG]i?B\b",
            r"(much|big|large|volume|amount)\b.{0,40}(data|gradient|tensor|message|transfer)",
        ],
        "cure": [
            "compress|fp16|bf16|bfloat16|half precision|PowerSGD|no_sync|accumulat|less often",
            "overlap|async_op|bucket|shard|(larger|bigger) batch|fewer (bytes|exchanges)",
            "(faster|better) (network|link|interconnect|backend)|NCCL|InfiniBand|RDMA",
            "SOCKET_IFNAME",
        ],
        "world": 2,
        "within_s": 60,
    },
    "flat-gradient-seldom": {
        "story": "The same gradient after four steps of work, 50 ms each.",
        "expected": [],
        "world": 2,
    },
    "few-metrics": {
        "story": "Three metrics a step beside 60 ms of work.",
        "expected": [],
        "world": 2,
    },
    "few-threads": {"story": "One thread a rank and a core.", "expected": [], "world": 2},
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def layers(count, width=16):
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(count)])


def loop(net, after_backward, steps=100_000, pause=0.0):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    rows = torch.ones(4, 16)
    for step in range(steps):
        if step == 5 and dist.get_rank() == 0:
            mark()
        optimizer.zero_grad()
        net(rows).mean().backward()
        after_backward(net)
        optimizer.step()
        time.sleep(pause)


def row_wise(net):
    for parameter in net.parameters():
        for row in parameter.grad.view(-1, 16):
            dist.all_reduce(row)


def all_rows():
    """Every row of every gradient on its own: some 300 all_reduces a step."""
    loop(layers(18), row_wise)


def started_all():
    """Each gradient starts an asynchronous all_reduce, and all are waited for at the end."""

    def exchange(net):
        works = [
            dist.all_reduce(row, async_op=True)
            for parameter in net.parameters()
            for row in parameter.grad.view(-1, 16)
        ]
        for work in works:
            work.wait()

    loop(layers(12), exchange)


def every_metric():
    """A hundred metrics, each averaged over the ranks by itself and read with item()."""

    def exchange(net):
        for number in range(100):
            value = torch.tensor(float(number))
            dist.all_reduce(value)
            value.item()

    loop(layers(2), exchange)


def barrier_a_layer():
    """A barrier after every layer, left over from debugging."""
    net = layers(40)
    for layer in net:
        layer.register_forward_hook(lambda *_: dist.barrier())
    loop(net, lambda _: None)


def send_flat(steps, work_s, sends=100_000):
    flat = torch.ones(15_000_000)
    for number in range(sends):
        if number == 5 and dist.get_rank() == 0:
            mark()
        for _ in range(steps):
            time.sleep(work_s)
        dist.all_reduce(flat)
        flat.fill_(1.0)


def flat_gradient():
    send_flat(1, 0.01)


def flat_gradient_seldom():
    send_flat(4, 0.05, 120)


def small_buckets():
    """DDP with a bucket for each parameter."""
    net = DistributedDataParallel(layers(120), bucket_cap_mb=0.0001)
    loop(net, lambda _: None)


def few_metrics():
    """Healthy: three metrics a step beside 60 ms of work."""

    def exchange(net):
        until = time.monotonic() + 0.06
        while time.monotonic() < until:
            torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        for _ in range(3):
            dist.all_reduce(torch.ones(1))

    loop(layers(2), exchange, 200)


def work_in_threads(net):
    x = torch.ones(400, 400)
    for _ in range(6):
        x = torch.mm(x, x) / 400


def many_threads():
    """24 threads of OpenMP a rank, set in the program."""
    torch.set_num_threads(24)
    loop(layers(2), work_in_threads)


def helpers_compute():
    """Each rank keeps four child processes that decode samples without end."""
    code = "while True: sum(range(10000))"
    helpers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    loop(layers(2), work_in_threads)
    for helper in helpers:
        helper.kill()


def same_core():
    """All ranks are bound to one core: a launcher without --bind-to none."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    loop(layers(2), work_in_threads)


def few_threads():
    """Healthy: one thread a rank, one rank a core."""
    loop(layers(2), lambda _: time.sleep(0.03), 250)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
