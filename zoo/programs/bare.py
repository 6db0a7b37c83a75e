"""Collectives in a loop and nothing else; one shape an argument."""

import json
import os
import select
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

CASES = {
    "ingest": {
        "story": "Rank 1 opens a named pipe that nobody writes to.",
        "expected": ["not-in-collective 1"],
        "place": "open_feed",
        "cause": [
            "(?<!broken )pipe(?!line)",
            "fifo",
            "wait_for_partner",
        ],
        "cure": [
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
    "two-sides": {
        "story": (
            "The upper half of the ranks polls a pipe and does not come to the next all_reduce."
        ),
        "source": "mpi4py/mpi4py#53",
        "expected": ["not-in-collective 2,3"],
        "place": "linger_in_poll",
        "cause": [
            r"\bpoll\b|do_poll|poll_schedule|do_sys_poll",
            "(?<!broken )pipe(?!line)",
        ],
        "cure": [
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
        "world": 4,
    },
    "checkpoints": {
        "story": (
            "A barrier every ten steps; rank 1 waits for an event of its own and never reaches one."
        ),
        "source": "huggingface/accelerate#223",
        "expected": ["not-in-collective 1"],
        "place": "checkpoints",
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
        "launcher": "plain",
    },
    "spinner": {
        "story": "Rank 0 computes in an endless loop; it works, so this is a warning at first.",
        "expected": ["not-in-collective 0"],
        "place": "spinner",
        "cause": [
            r"(busy|endless|infinite|tight|never-ending|unending) (\w+ )?loop|spin(s|ning)\b",
            r"(is|still|keeps) (computing|running|busy|working)|comput(es|ing)\b",
            r"CPU.{0,40}(\d\d ?%|time|second)|\d\d ?% .{0,20}CPU|(a|one|its|full) (core|CPU)\b",
        ],
        "cure": [
            r"loop\b.{0,60}(end|terminat|exit|break|converge|bound|condition)",
            r"perf (top|record)|profil|same (line|place|function)|(moves|goes) on\b",
            r"(bound|limit|max\w*)\b.{0,30}(iteration|loop)|let it (finish|work)",
            "move .{0,40}(off|out of)",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "warning_only": True,
    },
    "passed-over": {
        "story": "Rank 1 skips a barrier and goes on with the next all_reduce.",
        "source": "open-mpi/ompi#6772",
        "expected": ["collective-mismatch 1"],
        "place": "passed_over",
        "cause": [
            r"(skip|pass|miss|omit|left out|leaves? out|never|did not|without)\w*"
            r".{0,60}barrier",
            "barrier.{0,100}all_?reduce|all_?reduce.{0,100}barrier",
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
    "metrics-first": {
        "story": "Rank 2 gathers its metrics before it reduces, the others after.",
        "source": "Lightning-AI/pytorch-lightning#19106",
        "expected": ["collective-mismatch 2"],
        "place": "metrics_first",
        "cause": [
            "all_?gather.{0,100}all_?reduce|all_?reduce.{0,100}all_?gather",
            "(other|different|opposite) order",
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
        "launcher": "plain",
    },
    "logs-more": {
        "story": "Rank 0 calls one more all_reduce, for its log.",
        "source": "Lightning-AI/pytorch-lightning#19106",
        "expected": ["collective-mismatch 0"],
        "place": "logs_more",
        "cause": [
            "(one|an?) (more|extra|additional)|once more|(only|alone) .{0,30}rank 0",
            "rank 0 (alone|only)",
            "all_?reduce.{0,100}broadcast|broadcast.{0,100}all_?reduce",
            "(different|other|not the same|another) (collective|operation|call)s?",
            "(order|sequence) of .{0,30}(collective|call|operation)s?",
        ],
        "cure": [
            r"(remove|drop|move|take)\w*\b.{0,60}(call|collective|all_?reduce)|rank == 0",
            "only on rank 0",
            "same (collectives?|calls?|order|sequence|operations?|branch|path|number)",
            r"(let|make|have|must|should|ensure|needs?|sure|check)\b.{0,60}\b(all|every|each"
            r"|both)\b",
            r"\b(all|every|each|both)\b.{0,60}\b(must|should|has to|have to|needs? to)\b",
            "TORCH_DISTRIBUTED_DEBUG|flight recorder",
            r"(branch|condition|early return|if statement)\w*\b.{0,60}\b(rank|collective|call"
            r"|skip|differ)",
        ],
    },
    "larger": {
        "story": "Rank 1 reduces eight million values, rank 0 four million.",
        "source": "pytorch/pytorch#150433",
        "expected": ["collective-mismatch 0,1", "rank-killed 0"],
        "place": "larger",
        "cause": [
            r"(different|differing|other|unequal|not the same|mismatch\w*) (size|shape|number"
            r"|length)s?",
            r"(size|shape|numel|length|bytes|MB|elements|values)\b.{0,60}(differ|against"
            r"|mismatch|vs)",
            "preamble|EnforceNotMet|gloo.{0,80}(abort|terminat|enforce|size)",
            r"\b(32|16)[_, ]?000[_, ]?000\b|\b[48][_, ]?000[_, ]?000\b|(32|16) MB",
            r"(30\.5|15\.3) MiB",
        ],
        "cure": [
            "same (size|shape|number|length|count|element)s?",
            r"(check|compare|print|log|look)\w*.{0,60}(shape|size|numel|length)",
            r"\bpad\b|padding|TORCH_DISTRIBUTED_DEBUG",
        ],
        "world": 2,
    },
    "wider": {
        "story": "Rank 0 reduces doubles, the others floats.",
        "source": "pytorch/pytorch#78022",
        "expected": [
            "collective-mismatch 0",
            "rank-killed 1",
            "rank-killed 2",
            "collective-mismatch 0,1",
        ],
        "place": "wider",
        "cause": [
            "dtype|data ?type|element type",
            "float64|double|float32",
            r"(different|differing|other|unequal|not the same|mismatch\w*) (size|shape|number"
            r"|length)s?",
            r"(size|shape|numel|length|bytes|MB|elements|values)\b.{0,60}(differ|against"
            r"|mismatch|vs)",
            "preamble|EnforceNotMet|gloo.{0,80}(abort|terminat|enforce|size)",
        ],
        "cure": [
            "same (dtype|data ?type|type|precision|size)",
            r"(check|compare|print|log|look|convert|cast)\w*.{0,60}(dtype|type|precision"
            r"|float)",
            r"\.float\(\)|\.to\(|TORCH_DISTRIBUTED_DEBUG",
        ],
        "launcher": "plain",
    },
    "ends-well": {
        "story": "A short job that ends well.",
        "expected": [],
        "shape": "steady",
    },
    "slow-import": {
        "story": (
            "Eight seconds of start-up on one rank before it joins: runs without a group "
            "until then."
        ),
        "expected": [],
        "launcher": "plain",
    },
    "one-pause": {
        "story": "One step of four seconds on one rank.",
        "expected": [],
    },
    "validating": {
        "story": "Rank 0 evaluates for twelve seconds, the others wait in a barrier.",
        "source": "huggingface/accelerate#223",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
    },
    "saving": {
        "story": "Rank 0 writes a checkpoint for ten seconds, the others wait in a barrier.",
        "source": "pytorch/pytorch#72897",
        "expected": [],
        "launcher": "plain",
        "tolerated": ["not-in-collective 0"],
    },
    "crowd": {
        "story": "Three neighbours compute on the same cores for ten seconds.",
        "expected": [],
        "world": 2,
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def open_feed(folder):
    path = os.path.join(folder, "feed")
    os.mkfifo(path)
    with open(path) as stream:
        return stream.read()


def linger_in_poll():
    into, _out = os.pipe()
    poller = select.poll()
    poller.register(into, select.POLLIN)
    poller.poll()


def ingest(rank):
    """A named pipe that nobody writes to."""
    values = torch.ones(256)
    for step in range(100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == 60 and rank == 1:
            mark()
            open_feed(os.getcwd())


def two_sides(rank):
    """The upper half of the ranks stays outside."""
    total = torch.zeros(8)
    for step in range(100_000):
        if step == 80 and rank >= dist.get_world_size() // 2:
            mark()
            linger_in_poll()
        dist.all_reduce(total)
        dist.broadcast(total, src=0)
        time.sleep(0.02)


def checkpoints(rank):
    """A barrier every ten steps, which one rank never reaches."""
    weights = torch.zeros(1024)
    done = threading.Event()
    for step in range(100_000):
        dist.all_reduce(weights)
        time.sleep(0.02)
        if step % 10 == 9:
            if step == 89 and rank == 1:
                mark()
                done.wait()
            dist.barrier()


def passed_over(rank):
    """One rank passes the barrier over and goes on reducing."""
    weights = torch.zeros(2048)
    for step in range(100_000):
        dist.all_reduce(weights)
        time.sleep(0.02)
        if step % 10 == 9:
            if step == 89 and rank == 1:
                mark()
                continue
            dist.barrier()


def metrics_first(rank):
    """One rank gathers before it reduces."""
    norm, table = torch.ones(64), [torch.zeros(64) for _ in range(dist.get_world_size())]
    for step in range(100_000):
        time.sleep(0.03)
        if step == 70 and rank == 2:
            mark()
            dist.all_gather(table, norm)
            dist.all_reduce(norm)
        else:
            dist.all_reduce(norm)
            dist.all_gather(table, norm)


def logs_more(rank):
    """One rank reduces once more, for its log."""
    gradient, lead = torch.zeros(512), torch.zeros(512)
    for step in range(100_000):
        time.sleep(0.03)
        dist.all_reduce(gradient)
        if step == 70 and rank == 0:
            mark()
            dist.all_reduce(torch.ones(512))
        dist.broadcast(lead, src=1)


def larger(rank):
    """Four million values on one side, eight on the other."""
    dense = torch.zeros(4_000_000)
    for step in range(100_000):
        if step == 12 and rank == 1:
            mark()
            dense = torch.zeros(8_000_000)
        dist.all_reduce(dense)
        dist.barrier()
        time.sleep(0.2)


def wider(rank):
    """Doubles on one rank, floats on the others."""
    dense = torch.zeros(4_000_000)
    for step in range(100_000):
        if step == 12 and rank == 0:
            mark()
            dense = dense.double()
        dist.all_reduce(dense)
        dist.barrier()
        time.sleep(0.2)


def spinner(rank):
    """An endless computation on one rank."""
    vote = torch.zeros(4)
    for step in range(100_000):
        dist.all_reduce(vote)
        time.sleep(0.02)
        if step == 80 and rank == 0:
            mark()
            residual = 1.0
            while residual > 0:
                residual = residual / 2 + 1e-9


def steady(rank):
    """Ends well."""
    values = torch.ones(16)
    for _ in range(250):
        dist.all_reduce(values)
        time.sleep(0.03)
    dist.barrier()
    dist.destroy_process_group()


def one_pause(rank):
    """One slow step of four seconds."""
    values = torch.ones(16)
    for step in range(400):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == 100 and rank == 1:
            until = time.monotonic() + 4
            while time.monotonic() < until:
                sorted(range(20_000))


def validating(rank):
    """Rank 0 evaluates for twelve seconds, the others wait in a barrier."""
    values = torch.ones(16)
    for _epoch in range(2):
        for _ in range(60):
            dist.all_reduce(values)
            time.sleep(0.03)
        if rank == 0:
            until = time.monotonic() + 12
            while time.monotonic() < until:
                torch.mm(torch.ones(128, 128), torch.ones(128, 128))
        dist.barrier()


def saving(rank):
    """Rank 0 writes for ten seconds."""
    values = torch.ones(16)
    blob = bytes(1 << 20)
    for _epoch in range(2):
        for _ in range(60):
            dist.all_reduce(values)
            time.sleep(0.03)
        if rank == 0:
            until = time.monotonic() + 10
            with tempfile.TemporaryFile() as file:
                while time.monotonic() < until:
                    file.write(blob)
                    file.seek(0)
                    time.sleep(0.05)
        dist.barrier()


def slow_import(rank):
    """Eight seconds of start-up on one rank before it joins: runs without a group until then."""
    until = time.monotonic() + (8 if rank == 1 else 2)
    while time.monotonic() < until:
        compile("x = 1\n" * 2000, "generated", "exec")


def crowd(rank):
    """Busy neighbours: three threads of a child process that only compute."""
    import subprocess

    neighbours = []
    if rank == 0:
        loop = "import time\nend = time.time() + 10\nwhile time.time() < end: pass"
        neighbours = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(3)]
    values = torch.ones(64)
    for _ in range(200):
        dist.all_reduce(values)
        torch.mm(torch.ones(200, 200), torch.ones(200, 200))
        time.sleep(0.03)
    for neighbour in neighbours:
        neighbour.wait()
    dist.barrier()


def main():
    shape = sys.argv[1]
    if shape == "slow_import":
        slow_import(int(os.environ["RANK"]))
        shape = "steady"
    dist.init_process_group("gloo")
    globals()[shape](dist.get_rank())


if __name__ == "__main__":
    main()
