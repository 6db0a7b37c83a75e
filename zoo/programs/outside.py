"""Ranks that wait for something outside the job: a lock file, a key, a service, an event loop."""

import asyncio
import fcntl
import json
import os
import pathlib
import signal
import socket
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "shared-cache": {
        "story": "Rank 0 holds a file lock over a barrier, rank 2 wants it before the barrier.",
        "expected": ["not-in-collective 2", "wait-cycle 2"],
        "place": "shared_cache",
        "cause": [r"\bflock|\bfcntl|\bfile[- ]lock|\block file", r"\block\b"],
        "cure": [
            r"\blsof\b|\bfuser\b|\blslocks\b|/proc/locks",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"LOCK_UN|\breleas(e|es|ed|ing)\b|\bunlock",
            "LOCK_NB|non-?blocking",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\b(before|outside|over|across)\b.{0,30}\b(barrier|collective)",
        ],
    },
    "wants-key": {
        "story": "Rank 1 waits for a key of the store that nobody sets.",
        "expected": ["not-in-collective 1"],
        "place": "wants_key",
        "cause": [r"\bstore\b|\bTCPStore\b", r"\bkeys?\b"],
        "cure": [
            r"\b(who|which|no rank|whether|must|should)\b.{0,40}\bsets?\b",
            r"\b(set|write)\b.{0,20}\bkey\b",
            r"\b(look|see|check|find)\b.{0,50}\b(key|store|server)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
    },
    "reports": {
        "story": "A web service takes rank 0's connection and never answers.",
        "source": "wandb/wandb#9871",
        "expected": ["not-in-collective 0"],
        "place": "reports",
        "cause": [
            r"\bsockets?\b|\brecv|\bTCP\b|\bnetwork\b",
            r"\b(answers?|repl(y|ies)|respon(d|ds|se))\b",
        ],
        "cure": [
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"settimeout|\btime-?outs? (on|for|to) (the|its|this|each) (call|socket|request)",
            r"\bthe (server|service|peer|endpoint|remote)|\b(other|far|remote) (end|side)",
            r"\bss -|\blsof\b|\btcpdump\b|\bstrace\b",
        ],
        "launcher": "plain",
    },
    "looped": {
        "story": "Rank 2 awaits an event in asyncio that nobody sets.",
        "expected": ["not-in-collective 2"],
        "place": ["looped", "job", "main"],
        "cause": [r"\basyncio\b|\bcoroutine|\bevent loop\b|\bawaits?\b"],
        "cure": [
            r"\ball_tasks\b|PYTHONASYNCIODEBUG|\basyncio (ps|pstree)\b",
            r"\bwait_for\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(look|see|check|find|print|list|which|what)\b.{0,60}\b(tasks?|coroutine)\b",
            r"\b(look|see|check|find|print|list|which|what)\b.{0,60}\b(await\w*|future)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
        ],
    },
    "polls": {
        "story": "Rank 1 looks again and again for a file that nobody writes.",
        "source": "NVIDIA/Megatron-LM#907",
        "expected": ["not-in-collective 1"],
        "place": "polls",
        "cause": [
            r"\bpoll(s|ing)?\b|\bagain and again\b|\bin a loop\b|\bloops\b|\brepeatedly\b",
            r"\b(file|path)\b.{0,60}\b(exists?|appears?|never|missing)\b",
            r"\btime\.sleep|nanosleep|\b(asleep|sleeps)\b|\bin (a |its )?sleep\b",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)|\bstrace\b",
            r"\b(file|path|condition)\b.{0,60}\b(writes?|written|creates?|wait\w*)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
            r"\bdeadline\b",
        ],
        "launcher": "plain",
    },
    "paused": {
        "story": "Rank 0 waits for a signal.",
        "expected": ["not-in-collective 0"],
        "place": "paused",
        "cause": [r"\bsignals?\b", r"\bpause\b|sys_pause|\bsigsuspend"],
        "cure": [
            r"\bsend\w*\b.{0,40}\bsignal\b|\bkill -(USR|ALRM|INT|HUP)",
            r"\bsig(timed)?wait|\balarm\b|setitimer",
            r"\b(who|what|which)\b.{0,40}\b(sends?|wakes?|signals?)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
        ],
    },
    "only-one-ended": {
        "story": "SIGTERM to rank 2 alone.",
        "expected": ["rank-killed 2"],
        "cause": [r"\bSIGTERM\b|\bsignal 15\b|\bterminated\b"],
        "cure": [
            r"\b(who|what|which|why)\b.{0,40}\b(kill\w*|sent|sends|signal)\b",
            r"\b(scheduler|slurm|kubernetes|preempt\w*|launcher|systemd|administrator)\b",
            r"\bjournalctl\b|\baudit",
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            r"\brestart|\bresume|\bstart\b.{0,20}\bagain",
        ],
        "launcher": "plain",
    },
    "too-much": {
        "story": "Rank 1 allocates more memory than there can be, and raises MemoryError.",
        "source": "mosaicml/composer#1690",
        "expected": ["rank-crashed 1"],
        "place": "too_much",
        "cause": [r"\bMemoryError\b", r"\bout of memory\b|\ballocat|\btoo much memory\b"],
        "cure": [
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            r"\b(less|smaller|fewer|chunks?|parts)\b|\breduce (its|the) (size|batch|memory)",
            r"\b(check|look|see|correct|fix)\b.{0,60}\b(size|allocat\w+|amount)\b",
            r"\b(check|look|see|correct|fix)\b.{0,60}\b(bytes|line|function)\b",
            r"\b(give|needs?|add|get)\b.{0,20}\bmore (memory|RAM)\b|\bulimit\b|\bmemory limit\b",
        ],
    },
    "exits-two": {
        "story": "Rank 0 ends with exit code 2, without an exception.",
        "expected": ["rank-crashed 0"],
        "cause": [
            r"\b(exit|return) (code|status|value)\b",
            r"\b(exit|end|left|quit)\w*\b.{0,30}\b2\b",
            r"sys\.exit",
        ],
        "cure": [
            r"\b(read|look|see|check|find)\b.{0,40}\b(traceback|logs?|stderr|output|message)\b",
            r"\b(search|look|grep|find|which|where)\b.{0,40}\bexit",
            r"\bargparse\b|\barguments?\b|\busage\b",
        ],
    },
}

LOCK = "cache.lock"


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def shared_cache(rank):
    """Rank 0 holds a lock over a barrier, rank 2 wants it first."""
    with open(LOCK, "a") as file:
        if rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if rank == 2:
            mark()
            fcntl.flock(file, fcntl.LOCK_EX)
        pathlib.Path(LOCK).unlink(missing_ok=True)
        dist.barrier()


def wants_key(rank):
    """One rank waits for a key of the store that nobody sets."""
    if rank == 1:
        mark()
        dist.distributed_c10d._get_default_store().wait(["best-epoch"])


def reports(rank):
    """A service takes the connection and never answers."""
    if rank == 0:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen()
        client = socket.create_connection(server.getsockname())
        client.sendall(b"GET /run HTTP/1.1\r\n\r\n")
        mark()
        client.recv(4096)


def looped(rank):
    """A coroutine that nobody wakes."""

    async def job():
        mark()
        await asyncio.Event().wait()

    if rank == 2:
        asyncio.run(job())


def polls(rank):
    """Looks for a file again and again that nobody writes."""
    if rank == 1:
        mark()
        while not os.path.exists("finished.flag"):
            time.sleep(0.2)


def paused(rank):
    """Waits for a signal."""
    if rank == 0:
        mark()
        signal.pause()


def only_one_ended(rank):
    """SIGTERM to one rank alone."""
    if rank == 2:
        mark()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def too_much(rank):
    """An allocation that cannot be."""
    if rank == 1:
        mark()
        bytearray(1 << 60)


def exits_two(rank):
    """An exit code, no exception."""
    if rank == 0:
        mark()
        sys.exit(2)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.zeros(1000)
    for step in range(100_000):
        dist.all_reduce(gradient)
        time.sleep(0.03)
        if step == 70:
            globals()[sys.argv[1]](rank)


if __name__ == "__main__":
    main()
