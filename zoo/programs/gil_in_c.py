"""Calls into C that keep the interpreter's lock and sleep: a driver, a license manager, a storage
client. A signal would wake some of them, and then the fault is gone without a word.
"""

import ctypes
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

CASES = {
    "sleeps-in-c": {
        "story": "Rank 1 sleeps in C and keeps the GIL; a signal would wake it.",
        "source": "iowarp/clio-core#793",
        "expected": ["interpreter-frozen 1"],
        "place": "license_sleep",
        "cause": [
            r"\bGIL\b|interpreter('s)? lock",
        ],
        "cure": [
            r"(release|releasing|give up|drop|let go)\w*\b.{0,40}(GIL|interpreter)",
            "ALLOW_THREADS|allow_threads|nogil|PyDLL|CDLL|gil_scoped_release",
            "--native|gdb|py-spy|native stack|C stack|perf (top|record)",
        ],
    },
    "selects-in-c": {
        "story": "Rank 0 waits in select of C and keeps the GIL.",
        "source": "iowarp/clio-core#793",
        "expected": ["interpreter-frozen 0"],
        "place": "driver_select",
        "cause": [
            r"\bGIL\b|interpreter('s)? lock",
        ],
        "cure": [
            r"(release|releasing|give up|drop|let go)\w*\b.{0,40}(GIL|interpreter)",
            "ALLOW_THREADS|allow_threads|nogil|PyDLL|CDLL|gil_scoped_release",
            "--native|gdb|py-spy|native stack|C stack|perf (top|record)",
        ],
        "launcher": "plain",
    },
    "locks-in-c": {
        "story": (
            "Rank 2 waits in C for the lock of a file that another process holds, and keeps the "
            "GIL."
        ),
        "expected": ["interpreter-frozen 2"],
        "place": "storage_lock",
        "cause": [
            r"\bGIL\b|interpreter('s)? lock",
            "flock|file lock|/proc/locks|locks_lock",
        ],
        "cure": [
            "lsof|fuser|/proc/locks|lslocks|LOCK_NB",
            r"who(ever)? .{0,20}(holds|has|owns|keeps)\b|\b(holder|owner) of",
            r"(release|releasing|give up|drop|let go)\w*\b.{0,40}(GIL|interpreter)",
            "ALLOW_THREADS|allow_threads|nogil|PyDLL|CDLL|gil_scoped_release",
            "--native|gdb|py-spy|native stack|C stack|perf (top|record)",
        ],
    },
    "waits-in-c": {
        "story": "Rank 1 waits in C at a semaphore and keeps the GIL.",
        "expected": ["interpreter-frozen 1"],
        "place": "queue_semaphore",
        "cause": [
            r"\bGIL\b|interpreter('s)? lock",
            "semaphore|sem_wait",
        ],
        "cure": [
            "sem_timedwait|sem_post|who(ever)? .{0,20}posts",
            r"(release|releasing|give up|drop|let go)\w*\b.{0,40}(GIL|interpreter)",
            "ALLOW_THREADS|allow_threads|nogil|PyDLL|CDLL|gil_scoped_release",
            "--native|gdb|py-spy|native stack|C stack|perf (top|record)",
        ],
        "launcher": "plain",
    },
    "receives-in-c": {
        "story": "Rank 0 waits in C for a server's answer and keeps the GIL.",
        "source": "NVIDIA/nccl#1013",
        "expected": ["interpreter-frozen 0"],
        "place": "socket_answer",
        "cause": [
            r"\bGIL\b|interpreter('s)? lock",
            r"socket|recv|sk_wait|wait\w* .{0,30}network|\banswer",
        ],
        "cure": [
            r"SO_RCVTIMEO|\b(peer|server|sender|service)\b|\bss -",
            r"(set|give|add|pass|use|put|want|need|with|without)\w*\b.{0,40}\b(time-?out"
            r"|deadline)",
            "timeout ?=|settimeout",
            r"(release|releasing|give up|drop|let go)\w*\b.{0,40}(GIL|interpreter)",
            "ALLOW_THREADS|allow_threads|nogil|PyDLL|CDLL|gil_scoped_release",
            "--native|gdb|py-spy|native stack|C stack|perf (top|record)",
        ],
    },
    "naps-in-c": {
        "story": "Calls of two seconds that keep the GIL, each time on another rank.",
        "expected": [],
        "tolerated": ["straggler 0"],
    },
    "must-not-be-woken": {
        "story": "Rank 0 sleeps in C for four seconds; a signal would make its call fail.",
        "expected": [],
        "launcher": "plain",
    },
}

LIBC = ctypes.PyDLL(None, use_errno=True)


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def woken(what):
    print(json.dumps({"woken": what}), flush=True)


def late(rank, odd, call, every=None):
    values = torch.ones(64)
    for step in range(100_000):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == 80 and rank == odd:
            mark()
            call()
            woken(call.__name__)


def license_sleep():
    LIBC.sleep(120)


def driver_select():
    LIBC.select(0, None, None, None, (ctypes.c_long * 2)(120, 0))


def storage_lock():
    """flock on a file that another process holds."""
    hold = "import fcntl, sys, time; f = open('db.lock', 'w'); fcntl.flock(f, 2)\n"
    hold += "print('held', flush=True); time.sleep(300)"
    keeper = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    keeper.stdout.readline()
    descriptor = os.open("db.lock", os.O_RDWR)
    LIBC.flock(descriptor, 2)


def queue_semaphore():
    gate = ctypes.create_string_buffer(64)
    LIBC.sem_init(gate, 0, 0)
    LIBC.sem_wait(gate)


def socket_answer():
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    asking = socket.create_connection(server.getsockname())
    LIBC.recv(asking.fileno(), ctypes.create_string_buffer(8), 8, 0)


def sleeps_in_c(rank):
    late(rank, 1, license_sleep)


def selects_in_c(rank):
    late(rank, 0, driver_select)


def locks_in_c(rank):
    late(rank, 2, storage_lock)


def waits_in_c(rank):
    late(rank, 1, queue_semaphore)


def receives_in_c(rank):
    late(rank, 0, socket_answer)


def naps_in_c(rank):
    """Healthy: a call of two seconds that keeps the lock, each time on another rank."""
    values = torch.ones(64)
    for step in range(160):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step % 40 == 39 and rank == step // 40 % dist.get_world_size():
            LIBC.usleep(2_000_000)


def must_not_be_woken(rank):
    """Healthy: rank 0 sleeps in C for four seconds; a signal would make its call fail."""
    values = torch.ones(64)
    free = ctypes.CDLL(None, use_errno=True)
    for step in range(160):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step % 60 == 59:
            if rank == 0 and free.nanosleep((ctypes.c_long * 2)(4, 0), None) != 0:
                raise OSError(ctypes.get_errno(), "interrupted")
            dist.barrier()


def main():
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
