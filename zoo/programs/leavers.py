"""Ranks that end in unusual ways: they become another program, a daemon, or are never reaped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

CASES = {
    "becomes-another": {
        "story": "Rank 1 becomes another program in the middle of the run; its sockets stay open.",
        "expected": ["left-early 1", "not-in-collective 1", "rank-crashed 1", "rank-killed 1"],
        "cause": [
            r"\bexec(v|ve|vp|utable|s|ed)?\b",
            "(another|other|different|new) (program|command|executable)",
            "replaced|bec(a|o)me|no longer (runs|is|a) |now (runs|is) .{0,20}sleep",
        ],
        "cure": [
            r"\bexec|subprocess|Popen|wrapper|(start|run|launch)\w* .{0,20}script",
            r"(look|see|check|find)\w*\b.{0,60}(command|program|started|became)|ps -|/cmdline",
        ],
        "launcher": "plain",
    },
    "leaves-a-child": {
        "story": "Rank 1 forks and exits; its child holds the sockets open.",
        "expected": ["left-early 1"],
        "cause": [
            "(child|forked process|sub-?process|descendant).{0,80}(hold|keep|open|socket"
            "|alive|liv)",
            r"(exit|code|status)\w*( with)?( code| status)?:? 0\b",
            r"\b(exit|end|left|quit|finish|return)\w*.{0,60}(normal|clean|success|without "
            r"(an |a )?\w+)",
            r"\b(exit|end|finish|quit|gone)\w*.{0,60}(before|while|although|earlier than)",
            "destroy_process_group",
            "(left|closed|destroyed|leaves) (its |the )?(process )?group",
        ],
        "cure": [
            r"(kill|end|stop)\b.{0,40}(child|orphan|left|remain)",
            r"child\b.{0,60}(close|end|kill)|\bfork",
            r"sys\.exit|os\._exit|exit\(|early (exit|return|stop)",
            r"(look|see|check|read|search|find|grep)\w*\b.{0,80}(exit|log\b|output|stderr"
            r"|left|leaves)",
            r"agree|decide\w*.{0,30}together|(stop|leave|end)\w* (all )?together",
            "(broadcast|all_?reduce) (the|a|that|this|its) .{0,20}(decision|flag|stop)",
            r"(all|every)\b.{0,60}\b(together|at the same step|same number)",
            "same (number|count) of (batch|step|sample|iteration|call|collective)",
        ],
        "launcher": "plain",
    },
    "not-reaped": {
        "story": "Rank 1 is killed, and its parent never asks for it.",
        "expected": ["rank-killed 1"],
        "cause": [
            r"SIGKILL|signal 9\b|(?<!\w)-9\b|(code|status):? 137\b",
            "OOM|out[- ]of[- ]memory",
            "zombie|defunct|reap",
        ],
        "cure": [
            r"parent\b.{0,60}(wait|reap|end|kill)|waitpid|\breap",
            r"dmesg|journalctl|kernel('s)? log|memory\.events|sacct",
            r"(look|check|see|find|ask)\w*\b.{0,80}(OOM|memory|killed|scheduler|batch system"
            r"|cgroup)",
            r"(lower|less|reduce|more|request|smaller|raise)\b.{0,40}(memory|batch size|--mem)",
            "who(ever)? .{0,20}(sent|killed)",
        ],
        "launcher": "own",
    },
    "suspended-by-child": {
        "story": "A helper of rank 2 suspends it, as gang schedulers do.",
        "source": "open-mpi/ompi#526",
        "expected": ["rank-stopped 2"],
        "cause": [
            "SIGSTOP|SIGTSTP|SIGTTOU|do_signal_stop|Ctrl-Z",
            r"(stopped|suspended|frozen|held|paused) by|suspend|state T\b|\bT \(",
        ],
        "cure": [
            r"SIGCONT|kill -(s )?(SIG)?CONT|\bfg\b",
            "who(ever)? .{0,20}(stopped|sent|suspend)",
        ],
    },
    "quick-exit": {
        "story": "Every rank leaves by os._exit after its last barrier.",
        "expected": [],
    },
    "becomes-uploader": {
        "story": "After the training each rank becomes another program.",
        "expected": [],
    },
    "lives-on": {
        "story": "A helper of each rank lives on after it.",
        "expected": [],
        "launcher": "plain",
    },
    "short-life": {
        "story": "The job is over as soon as it has begun.",
        "expected": [],
        "launcher": "plain",
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def train(steps, at=None, act=lambda: None, who=1):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.ones(64)
    for step in range(steps):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == at and dist.get_rank() == who:
            mark()
            act()
    dist.barrier()
    dist.destroy_process_group()


def becomes_another():
    """One rank becomes a shell in the middle of the run: a wrapper script's mistake. Its sockets
    stay open.
    """

    def become():
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), True)
        os.execvp("sleep", ["sleep", "100000"])

    train(100_000, 60, become)


def leaves_a_child():
    """One rank forks and goes; its child sleeps and holds the sockets open."""

    def split():
        if os.fork():
            os._exit(0)
        time.sleep(100_000)

    train(100_000, 60, split)


def not_reaped():
    """A rank is killed, and its parent never asks for it: it stays a zombie."""
    train(100_000, 60, lambda: os.kill(os.getpid(), signal.SIGKILL))


def suspended_by_child():
    """A helper suspends its rank, as gang schedulers do."""
    stop = f"sleep 0.3; kill -STOP {os.getpid()}"
    train(100_000, 60, lambda: subprocess.Popen(["sh", "-c", stop]), 2)


def quick_exit():
    """Healthy: every rank leaves by os._exit after its last barrier."""
    train(150)
    os._exit(0)


def becomes_uploader():
    """Healthy: after the training each rank becomes another program for some seconds."""
    train(150)
    os.execvp("sleep", ["sleep", "4"])


def lives_on():
    """Healthy: a helper outlives its rank."""
    subprocess.Popen(["sleep", "12"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    train(200)


def short_life():
    """Healthy: the job is over as soon as it has begun."""
    train(2)
    time.sleep(1.0)


def parent(shape):
    """Starts the ranks and does not look after them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(3):
        variables = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # Kept, so that nobody reaps it.
        KEPT.append(subprocess.Popen([sys.executable, __file__, shape], env=os.environ | variables))
    time.sleep(100_000)


KEPT = []

if __name__ == "__main__":
    if sys.argv[1] == "not_reaped" and "RANK" not in os.environ:
        parent(sys.argv[1])
    globals()[sys.argv[1]]()
