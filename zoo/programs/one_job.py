"""One job whose ranks were started differently: from two checkouts, two folders, by a symbolic
link, by another interpreter, with and without -m. It is one job: they have one store and one world.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time

CASES = {
    "two-checkouts": {
        "story": "Rank 2 was started from another checkout; rank 1 stands.",
        "source": "pytorch/pytorch#107021",
        "expected": ["not-in-collective 1"],
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
    },
    "two-folders": {
        "story": "Each rank was started in another working folder; rank 1 stands.",
        "expected": ["not-in-collective 1"],
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
    },
    "symbolic-link": {
        "story": "Rank 2 was started by a symbolic link; rank 1 stands.",
        "expected": ["not-in-collective 1"],
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
    },
    "as-module": {
        "story": "Two ranks were started with -m; rank 1 stands.",
        "expected": ["not-in-collective 1"],
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
    },
    "other-name": {
        "story": "Rank 2 runs a copy with another name; rank 1 stands.",
        "expected": ["not-in-collective 1"],
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
    },
    "fine-checkouts": {"story": "Ranks of two checkouts.", "expected": [], "launcher": "own"},
    "fine-neighbours": {
        "story": "Two jobs of one script in one folder, each with its own port.",
        "expected": [],
        "launcher": "own",
    },
}

RANKS = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def member(shape):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, values = dist.get_rank(), torch.zeros(50)
    healthy = shape in ("fine_checkouts", "fine_neighbours")
    for step in range(120 if healthy else 100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == 70 and rank == 1 and not healthy:
            mark()
            threading.Event().wait()
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(shape, commands, folders, world=RANKS, port=None):
    """One process a rank, as a person would from a shell on each node."""
    port = port or free_port()
    started = []
    for rank in range(world):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [*commands[rank], "member", shape]
        folder = folders[rank]
        started.append(subprocess.Popen(command, env=os.environ | variables, cwd=folder))
    return started


def copies(name=None):
    """The program in two folders; `name`: what the second is called."""
    found = []
    for folder in ("alice", "bob"):
        os.makedirs(folder, exist_ok=True)
        called = name if name and folder == "bob" else os.path.basename(__file__)
        target = os.path.abspath(f"{folder}/{called}")
        shutil.copy(__file__, target)
        found.append(target)
    return found


def two_checkouts(shape):
    one, other = copies()
    commands = [[sys.executable, path] for path in (one, one, other)]
    return launch(shape, commands, ["alice", "alice", "bob"])


def two_folders(shape):
    one, _ = copies()
    return launch(shape, [[sys.executable, one]] * RANKS, ["alice", "bob", "/"])


def symbolic_link(shape):
    one, _ = copies()
    os.symlink(one, "bob/current.py")
    paths = (one, one, os.path.abspath("bob/current.py"))
    return launch(shape, [[sys.executable, path] for path in paths], ["alice", "alice", "bob"])


def as_module(shape):
    copies()
    called = os.path.basename(__file__)
    as_file, as_name = [sys.executable, called], [sys.executable, "-m", called[:-3]]
    return launch(shape, [as_file, as_name, as_name], ["alice", "bob", "alice"])


def other_name(shape):
    """The second node runs a copy with another name."""
    one, other = copies("train_v2.py")
    commands = [[sys.executable, path] for path in (one, one, other)]
    return launch(shape, commands, ["alice", "alice", "bob"])


def fine_checkouts(shape):
    """Healthy: two folders, one job."""
    return two_checkouts(shape)


def fine_neighbours(shape):
    """Healthy: two jobs of the same script in the same folder, each with its own port."""
    one, _ = copies()
    command = [[sys.executable, one]] * 2
    first = launch(shape, command, ["alice"] * 2, 2)
    return [*first, *launch(shape, command, ["alice"] * 2, 2)]


def main():
    if sys.argv[1] == "member":
        member(sys.argv[2])
        return
    codes = [one.wait() for one in globals()[sys.argv[1]](sys.argv[1])]
    sys.exit(max(abs(code) for code in codes))


if __name__ == "__main__":
    main()
