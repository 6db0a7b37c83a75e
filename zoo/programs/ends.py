"""Ranks that end, or get stuck, in C."""

import ctypes
import datetime
import json
import os
import queue
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

CASES = {
    "bad-pointer": {
        "story": "Rank 2 reads a bad address: SIGSEGV.",
        "expected": ["rank-killed 2"],
        "cause": [
            r"SIGSEGV|segmentation|segfault|signal 11\b|(?<!\w)-11\b|(code|status):? 139\b",
        ],
        "cure": [
            r"core (dump|file)|coredumpctl|\bgdb\b|faulthandler|ulimit -c|catchsegv|valgrind",
            "sanitizer",
            r"C(\+\+)? (code|extension|library)|native|extension|dmesg",
        ],
        "launcher": "plain",
        "arguments": ["2"],
    },
    "gives-up": {
        "story": "Rank 1 calls abort.",
        "expected": ["rank-killed 1"],
        "cause": [
            r"SIGABRT|\babort(s|ed|\()?|signal 6\b|(?<!\w)-6\b|(code|status):? 134\b",
        ],
        "cure": [
            r"core (dump|file)|coredumpctl|\bgdb\b|faulthandler|ulimit -c|catchsegv|valgrind",
            "sanitizer",
            r"C(\+\+)? (code|extension|library)|native|extension|dmesg",
            r"(look|read|see|search|check|find)\w*\b.{0,80}(stderr|output|log\b|message"
            r"|assert)",
        ],
        "launcher": "plain",
        "world": 2,
        "arguments": ["1"],
    },
    "held": {
        "story": "Rank 1 is stopped by SIGSTOP.",
        "source": "open-mpi/ompi#526",
        "expected": ["rank-stopped 1"],
        "cause": [
            "SIGSTOP|SIGTSTP|SIGTTOU|do_signal_stop|Ctrl-Z",
            r"(stopped|suspended|frozen|held|paused) by|suspend|state T\b|\bT \(",
        ],
        "cure": [
            r"SIGCONT|kill -(s )?(SIG)?CONT|\bfg\b",
            "who(ever)? .{0,20}(stopped|sent|suspend)",
        ],
        "launcher": "plain",
        "arguments": ["1"],
    },
    "gone": {
        "story": "Rank 0 is killed by SIGKILL.",
        "source": "NVIDIA/nccl#585",
        "expected": ["rank-killed 0"],
        "cause": [
            r"SIGKILL|signal 9\b|(?<!\w)-9\b|(code|status):? 137\b",
            "OOM|out[- ]of[- ]memory",
        ],
        "cure": [
            r"dmesg|journalctl|kernel('s)? log|memory\.events|sacct",
            r"(look|check|see|find|ask)\w*\b.{0,80}(OOM|memory|killed|scheduler|batch system"
            r"|cgroup)",
            r"(lower|less|reduce|more|request|smaller|raise)\b.{0,40}(memory|batch size|--mem)",
            "who(ever)? .{0,20}(sent|killed)",
        ],
        "launcher": "plain",
        "arguments": ["0"],
    },
    "in-c": {
        "story": "Rank 2 blocks in C code that holds the GIL.",
        "source": "pytorch/pytorch#112518",
        "expected": ["interpreter-frozen 2"],
        "place": "in_c",
        "cause": [
            r"\bGIL\b|interpreter('s)? lock",
            "(?<!broken )pipe(?!line)",
        ],
        "cure": [
            r"(release|releasing|give up|drop|let go)\w*\b.{0,40}(GIL|interpreter)",
            "ALLOW_THREADS|allow_threads|nogil|PyDLL|CDLL|gil_scoped_release",
            "--native|gdb|py-spy|native stack|C stack|perf (top|record)",
            r"\bwriter\b|who(ever)? .{0,20}(writes|write|feeds|sends|fills)\b",
            "(other|far|writing|write) (end|side)",
            "lsof|fuser|non-?blocking|O_NONBLOCK",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
        ],
        "launcher": "plain",
        "arguments": ["2"],
    },
    "own-lock": {
        "story": "Rank 1 acquires a lock twice.",
        "expected": ["not-in-collective 1"],
        "place": "own_lock",
        "cause": [
            r"\block\b",
            "dead-?lock|RLock|re-?entrant",
            r"acquire|threading\.py",
            r"rank 1\b[^;,]{0,50}\b(asleep|sleeps|sleeping|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"who(ever)? .{0,20}(holds|has|owns|keeps)\b|\b(holder|owner) of",
            "RLock|re-?entrant",
            r"(release|give back|give up|free)\w* .{0,20}\block\b",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "plain",
        "arguments": ["1"],
    },
    "quits": {
        "story": "Rank 2 ends with os._exit(3), without a traceback.",
        "expected": ["rank-crashed 2"],
        "cause": [
            r"(exit|code|status)\w*( with)?( code| status)?:? 3\b|os\._exit",
            "(no|without a) traceback",
        ],
        "cure": [
            r"os\._exit|sys\.exit|exit\(",
            r"(look|read|see|search|grep|find|check)\w*\b.{0,80}(log\b|stderr|output|exit|3\b)",
        ],
        "launcher": "plain",
        "arguments": ["2"],
    },
    "feeder": {
        "story": (
            "On rank 1 the thread that feeds the training raises; the main thread waits for it."
        ),
        "expected": ["rank-crashed 1", "not-in-collective 1"],
        "place": ["produce", "main"],
        "cause": [
            "KeyError",
            r"exception|traceback|\braise[sd]\b|uncaught",
            "thread.{0,60}(died|dead|ended|gone|crash|rais|exited)",
            r"\bqueue\b|queue\.py|queues\.py",
        ],
        "cure": [
            r"(look|read|see|find|scroll|search|check|fix)\w*\b.{0,80}(traceback|exception"
            r"|stderr|log\b)",
            "(traceback|exception).{0,40}(above|says|in (its|the) (log|output|stderr))",
            "TORCHELASTIC_ERROR_FILE|@record|error file|--redirects|--log-dir",
            r"excepthook|(pass|hand|put|forward)\w*.{0,40}exception",
            r"who(ever)? .{0,20}(puts|fills|feeds|sends|produces)\b|producer|sentinel",
            "thread (that|which) .{0,30}(fill|feed|put|produce|fetch)",
            r"get\(.{0,10}timeout|get_nowait|nowait",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(look|see|read|dump|take|check|inspect|show|print)\w*\b.{0,60}\bstacks?\b",
            "py-spy|gdb|strace|faulthandler",
            r"(see|look|check|find out|ask) (at |into |for )?(what|where|why|who)\b",
            "look (at|into) (that|this|the|its) (function|line|frame|place|code|call)",
        ],
        "launcher": "plain",
        "arguments": ["1"],
    },
    "short-patience": {
        "story": "The group's timeout is three seconds, and rank 2 waits at an empty queue.",
        "expected": ["comm-error 2", "not-in-collective 2"],
        "place": ["short_patience"],
        "cause": [
            r"rank 2\b.{0,40}\b(had|has|did) not (joined|join|come)",
            r"\bqueue\b",
            r"rank 2\b[^;,]{0,50}\b(asleep|blocked|waits|waiting|stuck)\b",
        ],
        "cure": [
            r"(find out|see|look|check)\w*\b.{0,20}\b(why|what|where)\b",
            r"timeout ?=|timedelta",
            r"(look|see|read|dump|take)\w*\b.{0,60}\bstacks?\b",
        ],
        "arguments": ["2"],
    },
    "notice-to-all": {
        "story": "The batch system's notice is SIGUSR1 to all ranks, and no handler is set.",
        "expected": ["cancelled"],
        "cause": [r"SIGUSR1|signal 10\b"],
        "cure": [r"\bhandler\b", r"signal\.signal", r"nothing (to|is)"],
        "launcher": "plain",
        "arguments": ["0"],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def bad_pointer():
    mark()
    ctypes.string_at(8)


def gives_up():
    mark()
    os.abort()


def held():
    mark()
    os.kill(os.getpid(), signal.SIGSTOP)


def gone():
    mark()
    os.kill(os.getpid(), signal.SIGKILL)


def in_c():
    mark()
    into, _out = os.pipe()
    ctypes.PyDLL(None).read(into, ctypes.create_string_buffer(1), 1)


def own_lock():
    gate = threading.Lock()
    gate.acquire()
    mark()
    with gate:
        pass


def quits():
    mark()
    os._exit(3)


def short_patience():
    mark()
    queue.Queue().get()


def notice_to_all():
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, os.getpid())
    dist.barrier()
    if dist.get_rank() == 0:
        mark()
        for pid in reversed(everybody):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(60)


def produce(out):
    for number in range(90):
        out.put(number)
        time.sleep(0.03)
    mark()
    raise KeyError("shard-7")


def main():
    shape, culprit = sys.argv[1], int(sys.argv[2])
    patience = datetime.timedelta(seconds=3 if shape == "short_patience" else 600)
    dist.init_process_group("gloo", timeout=patience)
    mine = dist.get_rank() == culprit or shape == "notice_to_all"
    items = queue.Queue()
    if shape == "feeder" and mine:
        threading.Thread(target=produce, args=(items,), daemon=True).start()
    state = torch.zeros(128)
    began = time.monotonic()
    while True:
        if shape == "feeder" and mine:
            items.get()
        if shape != "feeder" and mine and time.monotonic() > began + 3:
            globals()[shape]()
        gathered = [torch.zeros(128) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, state)
        dist.all_reduce(state)
        time.sleep(0.03)


if __name__ == "__main__":
    main()
