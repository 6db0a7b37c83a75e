"""Jobs that never come to a first step: a node that is not there, an address at which nobody
listens, processes that do not agree about who they are.
"""

import ctypes
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

CASES = {
    "second-node-absent": {
        "story": "Torchrun waits for two nodes, and only the first was started.",
        "source": "facebookresearch/fairseq#4082",
        "expected": ["rank-missing", "rank-missing 2,3"],
        "launcher": "own",
        "world": 4,
        "within_s": 20,
        "cause": [
            r"\b(1|one) of (2|two)\b",
            r"\bnodes?\b.{0,60}(missing|absent|not (been )?(started|come|joined|there))",
            r"wait(s|ing)? for .{0,40}\bnodes?\b",
            r"not (been )?started",
        ],
        "cure": [
            r"start .{0,60}(node|host|torchrun)",
            r"(every|each|other|second|missing) node",
            r"--?-nnodes",
        ],
    },
    "nobody-opens-store": {
        "story": (
            "Under torchrun the script gives init_process_group a port of its own. Torch believes "
            "that the launcher listens there, so no rank opens the store and all of them try to "
            "connect."
        ),
        "source": "pytorch/pytorch#191989",
        "expected": ["master-unreachable 0,1,2"],
        "within_s": 10,
        "cause": [
            r"refused",
            r"(nobody|no process|nothing|no one|not) listen",
            r"cannot (reach|connect)",
        ],
        "cure": [
            r"\bss -",
            r"init_method",
            r"(listens|listening) on",
            r"(another|same|right|wrong|other|choose|check) .{0,30}\bport\b",
        ],
    },
    "other-world-size": {
        "story": "One shell has a WORLD_SIZE of an earlier run: rank 2 waits for four ranks.",
        "source": "pytorch/pytorch#81704",
        "expected": ["rendezvous-mismatch 2"],
        "launcher": "own",
        "within_s": 10,
        "cause": [r"WORLD_SIZE", r"world size.{0,60}\b4\b", r"(disagree|different) .{0,40}world"],
        "cure": [
            r"set .{0,60}(once|one place|all ranks|every rank)",
            r"same (WORLD_SIZE|world size|value)",
            r"WORLD_SIZE .{0,60}(all|every|each) (ranks?|process|shell)",
        ],
    },
    "one-number-twice": {
        "story": "Three processes are started by hand, and two of them as rank 1.",
        "source": "pytorch/pytorch#23074",
        "expected": ["duplicate-rank 1"],
        "tolerated": ["rank-missing 2"],
        "launcher": "own",
        "within_s": 10,
        "cause": [
            r"(two|2|both) processes",
            r"\btwice\b",
            r"(same|duplicate) rank",
            r"more than one process",
        ],
        "cure": [
            r"(different|own|another|unique) RANK",
            r"\bps -",
            r"set .{0,40}\bRANK\b",
            r"\bPROCID\b|SLURM_PROCID",
        ],
    },
    "store-of-yesterday": {
        "story": (
            "An earlier run was killed and left its file store. The new ranks find the addresses "
            "of processes that are gone: some of them fail, the others wait."
        ),
        "source": "tier4/Diffusion-Planner#335",
        "expected": [
            "stale-store",
            "stale-store 0",
            "stale-store 1",
            "stale-store 2",
            "stale-store 0,1",
            "stale-store 0,2",
            "stale-store 1,2",
            "stale-store 0,1,2",
        ],
        "launcher": "own",
        "within_s": 12,
        "cause": [
            r"(earlier|previous|old|other) run",
            r"(older|before) .{0,40}(job|ranks|process|start)",
            r"\bstale\b",
            r"left (over|behind)",
        ],
        "cure": [
            r"\brm\b",
            r"(remove|delete) (it|the file)",
            r"own (file|path)",
            r"(new|fresh|unique|different) (file|path)",
        ],
    },
    "node-comes-later": {
        "story": "Two launchers of one job; the second node starts twelve seconds after the first.",
        "expected": [],
        "tolerated": ["rank-missing", "rank-missing 2,3"],
        "launcher": "own",
        "world": 4,
    },
    "downloads-before-start": {
        "story": (
            "Rank 0 downloads for ten seconds before the group is made; the others look for its "
            "file, and make the group after that too."
        ),
        "expected": [],
        "launcher": "plain",
    },
}

RANKS = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with_parent():
    """Ask the kernel to kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def train(steps):
    """What all of these jobs would do, if they began."""
    import torch
    import torch.distributed as dist

    gradient = torch.zeros(64)
    for _ in range(steps):
        dist.all_reduce(gradient)
        time.sleep(0.03)
    dist.barrier()
    dist.destroy_process_group()


def member(odd):
    """One rank. `odd`: the one that was started with a wrong number."""
    import torch.distributed as dist

    end_with_parent()
    if odd == "odd":
        mark()
    dist.init_process_group("gloo")
    train(100)


def by_hand(ranks, sizes, odd):
    """One shell a process, with these numbers in it."""
    port, started = free_port(), []
    for number, (rank, size) in enumerate(zip(ranks, sizes, strict=True)):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, __file__, "member", "odd" if number == odd else "even"]
        environment = os.environ | variables
        started.append(subprocess.Popen(command, env=environment))
    return started


def other_world_size():
    """Three ranks, of which the last believes that there are four."""
    return by_hand((0, 1, 2), (RANKS, RANKS, RANKS + 1), 2)


def one_number_twice():
    """Three processes, of which the last has the number of the second."""
    return by_hand((0, 1, 1), (RANKS,) * RANKS, 2)


def node(*words):
    """A launcher with two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "2", *words, __file__, "member", "even"]
    kept = {name: value for name, value in os.environ.items() if "TORCHELASTIC" not in name}
    return subprocess.Popen(command, env=kept)


def second_node_absent():
    """The command was entered on the first node only."""
    mark()
    endpoint = f"127.0.0.1:{free_port()}"
    words = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "run7")
    return [node(*words)]


def node_comes_later():
    """Healthy: the scheduler gives the second node later."""
    words = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--node-rank")
    first = node(*words, "0")
    time.sleep(12)
    return [first, node(*words, "1")]


def nobody_opens_store():
    """Each rank of torchrun, with an address that is not the launcher's."""
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = 20_000 + int(os.environ["MASTER_PORT"]) % 9000
    if rank == 0:
        mark()
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    train(100)


def file_member(rank, path, first):
    """A rank that finds the others in a file. `first`: of the run that is killed."""
    import torch.distributed as dist

    end_with_parent()
    if first == "no" and rank == "0":
        mark()
    if first == "no" and rank == "2":
        time.sleep(30)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=int(rank), world_size=RANKS)
    open(f"{path}.up{rank}", "w").close()
    train(100_000)


def file_rank(rank, path, first, environment, output=None):
    command = [sys.executable, __file__, "file_member", str(rank), path, first]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def store_of_yesterday():
    """A run from another shell is killed, then a new one uses its file; rank 2 reads longer."""
    path = os.path.abspath("shared.store")
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    bare |= {"OMP_NUM_THREADS": "1"}
    with open("yesterday.log", "w") as log:
        yesterday = [file_rank(rank, path, "yes", bare, log) for rank in range(RANKS)]
    while not all(os.path.exists(f"{path}.up{rank}") for rank in range(RANKS)):
        time.sleep(0.1)
    time.sleep(1)
    for one in yesterday:
        one.kill()
    for one in yesterday:
        one.wait()
    time.sleep(1)
    return [file_rank(rank, path, "no", os.environ) for rank in range(RANKS)]


def serve_slowly(chunks):
    """A server of files on the far side of a slow line; returns its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            for _ in range(chunks):
                self.wfile.write(b"x" * 50_000)
                time.sleep(0.05)

        def log_message(self, *_):
            """Says nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/corpus.bin"


def downloads_before_start():
    """Healthy: nobody is in the group yet while rank 0 downloads."""
    import torch.distributed as dist

    if os.environ["RANK"] == "0":
        with urllib.request.urlopen(serve_slowly(200)) as far, open("corpus.part", "wb") as near:
            while chunk := far.read(50_000):
                near.write(chunk)
        os.rename("corpus.part", "corpus.bin")
    while not os.path.exists("corpus.bin"):
        time.sleep(0.3)
    dist.init_process_group("gloo")
    train(120)


def main():
    started = globals()[sys.argv[1]](*sys.argv[2:])
    codes = [abs(one.wait()) for one in started or ()]
    sys.exit(max(codes, default=0))


if __name__ == "__main__":
    main()
