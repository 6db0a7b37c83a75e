"""A rank without torch, with eight threads that wait in deep stacks.

With `busy` its main thread spins, and every quarter of a second it prints the longest time for
which its loop did not run, and how often it ran. With `gil3`, rank 3 holds the GIL in C for good.
"""

import ctypes
import json
import os
import sys
import threading
import time

WINDOW_NS = 250_000_000
THREADS, DEPTH = 8, 40


def stand(depth: int, done: threading.Event) -> None:
    if depth:
        stand(depth - 1, done)
    else:
        done.wait()


for _ in range(THREADS):
    threading.Thread(target=stand, args=(DEPTH, threading.Event()), daemon=True).start()
if f"gil{os.environ['RANK']}" in sys.argv:
    into, _out = os.pipe()
    time.sleep(2.0)
    print(json.dumps({"held": True}), flush=True)
    # The kernel restarts a read after a signal; libc's sleep() would end early.
    ctypes.PyDLL(None).read(into, ctypes.create_string_buffer(1), 1)
longest, turns, last = 0, 0, time.monotonic_ns()
began = last
while True:
    if "busy" not in sys.argv:
        time.sleep(0.02)
        continue
    now = time.monotonic_ns()
    longest, turns, last = max(longest, now - last), turns + 1, now
    if now - began > WINDOW_NS:
        print(
            json.dumps({"from": began, "to": now, "longest_ns": longest, "turns": turns}),
            flush=True,
        )
        longest, turns, began = 0, 0, time.monotonic_ns()
        last = began
