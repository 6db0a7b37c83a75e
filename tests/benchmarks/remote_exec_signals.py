"""Does `sys.remote_exec` lose signals of its target? By hand, with Python 3.14 or later:

    python -m tests.benchmarks.remote_exec_signals --python python3.14 --calls 60000

A target handles SIGUSR1 in Python and answers each with a byte. It is sent one after the other, as
soon as it has answered. Meanwhile another process calls `sys.remote_exec` on it, with a file that
does nothing. A signal is lost if it has no answer within 5 s. Then one more is sent, to see whether
the handler still works. Before that the same is done without any call.

`sys.remote_exec` reads the word `eval_breaker` of the target's main thread, sets a bit and writes
the word back, from another process. A bit that the target has set in between is gone. One of them
says that a signal has come.

Source: CPython 3.14, Python/remote_debugging.c `send_exec_to_proc_handle`, ceval_gil.c.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ANSWER_S = 5.0
QUIET_S = 20.0
TARGET = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"x"))
os.write(1, b"r")
while True:
    for _ in range(1000):
        pass
"""
CALLER = """
import sys
for _ in range(int(sys.argv[2])):
    sys.remote_exec(int(sys.argv[1]), sys.argv[3])
"""


def answered(target: subprocess.Popen[bytes]) -> bool:
    """Send one signal; whether its handler has run."""
    assert target.stdout is not None
    os.kill(target.pid, signal.SIGUSR1)
    ready, _, _ = select.select([target.stdout], [], [], ANSWER_S)
    return bool(ready) and target.stdout.read(1) == b"x"


def count(target: subprocess.Popen[bytes], goes_on: Callable[[], bool]) -> tuple[int, int, float]:
    """(signals sent, signals lost, seconds) while `goes_on`. The waits for lost ones are left out.

    Raises:
        RuntimeError: the handler does not run any more.
    """
    sent, lost, began = 0, 0, time.monotonic()
    while goes_on():
        sent += 1
        if not answered(target):
            lost += 1
            if not answered(target):
                raise RuntimeError("the handler does not run any more")
    return sent, lost, time.monotonic() - began - lost * ANSWER_S


def main() -> None:
    """Print two lines: without calls, and with them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--calls", type=int, default=60_000)
    arguments = parser.parse_args()
    python = arguments.python
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([python, "-c", TARGET], stdout=subprocess.PIPE, bufsize=0) as target,
    ):
        assert target.stdout is not None
        try:
            target.stdout.read(1)
            end = time.monotonic() + QUIET_S
            sent, lost, took_s = count(target, lambda: time.monotonic() < end)
            print(f"no calls: {sent} signals in {took_s:.0f} s, {lost} lost", flush=True)
            nothing = Path(folder) / "nothing.py"
            nothing.write_text("pass\n")
            command = [python, "-c", CALLER, str(target.pid), str(arguments.calls), str(nothing)]
            with subprocess.Popen(command) as caller:
                sent, lost, took_s = count(target, lambda: caller.poll() is None)
            print(f"{arguments.calls} calls: {sent} signals in {took_s:.0f} s, {lost} lost")
        finally:
            target.kill()


if __name__ == "__main__":
    main()
