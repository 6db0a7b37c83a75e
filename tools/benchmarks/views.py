"""From typing a command to reading its answer: the dashboard's first picture in a terminal of
80x24, status and jobs.

The dashboard runs on a pseudo-terminal; what it writes goes through a terminal emulator (pyte), so
a picture counts when a person could read it: first the job's name, then the table with the ranks in
it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress

from tools.benchmarks.stage import PLAIN, Stage, StageError
from tools.benchmarks.table import Row, limited

PAINT_BAR_S = 1.0
COLUMNS, LINES = 80, 24
RANKS = 2
GIVE_UP_S = 15.0
JOB = "first-paint"


def measure(times: int) -> Iterator[Row]:
    """The times against a small live job."""
    with Stage(JOB) as stage:
        stage.ranks(PLAIN, RANKS, True)
        stage.entry(RANKS)
        time.sleep(1.0)
        # The first run reads its modules from the disk. People attach more than once, so it does
        # not count.
        paints = [_paint(stage) for _ in range(times + 1)]
        named, filled = ([one[index] for one in paints[1:]] for index in (0, 1))
        detail = (
            f"median of {times}, longest {max(named):.2f} s, very first {paints[0][0]:.2f} s;"
            f" {COLUMNS}x{LINES}"
        )
        yield limited(
            "attach to first paint", statistics.median(named), PAINT_BAR_S, "s", detail, digits=2
        )
        yield Row(
            "attach until the ranks are on it",
            f"{statistics.median(filled):.2f} s",
            detail=f"longest {max(filled):.2f} s",
        )
        for words in (("status", JOB), ("jobs",)):
            taken = [_command(stage, words) for _ in range(times)]
            about = "looks for 1.2 s" if words[0] == "status" else ""
            yield Row(f"ddtop {words[0]}", f"{statistics.median(taken):.2f} s", detail=about)


def _command(stage: Stage, words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ddtop", *words],
        env=stage.environment(False),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    return time.perf_counter() - began


def _paint(stage: Stage) -> tuple[float, float]:
    """Seconds from the exec to the job's name, and to the ranks."""
    environment = stage.environment(False, TERM="xterm-256color", COLORTERM="truecolor")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddtop", "attach", JOB],
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        return _watch(master, began)
    finally:
        with suppress(OSError):
            os.write(master, b"q")
        with suppress(subprocess.TimeoutExpired):
            _drain(master)
            process.wait(2)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(master)


def _watch(master: int, began: float) -> tuple[float, float]:
    import pyte

    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    named = 0.0
    while time.perf_counter() - began < GIVE_UP_S:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(master, 1 << 16)
        except OSError:
            break
        now = time.perf_counter() - began
        stream.feed(data)
        picture = "\n".join(screen.display)
        if not named and JOB in picture:
            named = now
        if named and f"{RANKS}/{RANKS}" in picture:
            return named, now
    text = "\n".join(line.rstrip() for line in screen.display if line.strip())
    raise StageError(f"no picture of {JOB} within {GIVE_UP_S:.0f} s; the screen:\n{text}")


def _drain(master: int) -> None:
    # A dashboard that ends waits until the terminal has taken its output.
    until = time.perf_counter() + 1.0
    while time.perf_counter() < until and select.select([master], [], [], 0.1)[0]:
        try:
            if not os.read(master, 1 << 16):
                return
        except OSError:
            return
