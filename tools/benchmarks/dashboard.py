"""What the dashboard costs and how quickly it answers, on simulated jobs of 8, 1,024 and 10,000
ranks that report at 1 Hz.

A process of its own plays the relay; `ddtop attach` runs on a pseudo-terminal of 200x50. What it
writes goes through a terminal emulator (pyte), so a key has arrived when a person can see what it
did: the highlighted row is the next one.
"""

from __future__ import annotations

import compileall
import fcntl
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import ddtop
from tools.benchmarks.procfs import memory_mib
from tools.benchmarks.stage import Stage, StageError
from tools.benchmarks.table import Row, limited

SIZES = (8, 1024, 10_000)
COLUMNS, LINES = 200, 50
CPU_BAR, KEY_BAR_MS, PAINT_BAR_S, JUDGED_BAR_S = 0.35, 60.0, 1.0, 2.0
BYTES_BAR_KB = {"healthy": 10.0, "hang": 1.0}
GROWTH_BAR_MIB = 8.0
GIVE_UP_S, KEY_GIVE_UP_S, SETTLE_S, QUIET_S = 60.0, 5.0, 10.0, 0.15
FILL_S, LONG_S = 120.0, 300.0
"""The tape of 64 MiB and the sparklines fill up first; shorter runs tell nothing of whether
memory is flat.
"""
FOUND = {"healthy": "moving, watched", "hang": "wait for it"}


def measure(
    seconds: float, keys: int, sizes: tuple[int, ...] = SIZES, gpus: bool = False
) -> Iterator[Row]:
    """Rows for each size, healthy and in a hang. `seconds`: for how long the dashboard gets no
    keys. `gpus`: each also with eight GPUs per host.
    """
    for ranks in sizes:
        for state in ("healthy", "hang"):
            for cards in (False, True) if gpus else (False,):
                yield from _one(ranks, state, seconds, keys, cards)


def _one(ranks: int, state: str, seconds: float, keys: int, gpus: bool = False) -> Iterator[Row]:
    job = f"sim-{ranks}"
    with Stage(job) as stage:
        played = stage.start(
            [
                sys.executable,
                "-m",
                "tools.benchmarks.sim_relay",
                str(ranks),
                state,
                *(["gpus"] if gpus else []),
            ],
            stage.environment(False, PYTHONPATH=os.getcwd()),
            stage.output(0),
        )
        stage.wait_for("simulated relay", lambda: "ready" in stage.output(0).read_text())
        assert played.poll() is None
        with Screen(stage, job) as screen:
            painted = screen.until(lambda: screen.shows(job))
            filled = screen.until(
                lambda: screen.shows(f"{ranks:,}/{ranks:,}") and screen.shows(FOUND[state])
            )
            joined_cpu_s = screen.cpu_s()
            settle_s = FILL_S if seconds >= LONG_S else SETTLE_S
            screen.watch(settle_s)
            before, bursts, cpu = memory_mib(screen.pid)["rss"], screen.bursts, screen.cpu_s()
            began = time.monotonic()
            bursts.clear()
            screen.watch(seconds)
            cores = (screen.cpu_s() - cpu) / (time.monotonic() - began)
            kilobytes = [size / 1000 for size in bursts]
            waited = sorted(1000 * one for one in screen.press(keys))
            after = memory_mib(screen.pid)["rss"]
    what = f"{ranks:,} ranks, {state}{', GPUs' if gpus else ''}"
    yield limited(
        f"{what}: dashboard CPU", cores, CPU_BAR, "cores", f"over {seconds:.0f} s", digits=2
    )
    p95 = waited[max(0, int(len(waited) * 0.95) - 1)]
    detail = (
        f"p50 {statistics.median(waited):.0f} ms, longest {waited[-1]:.0f} ms of {len(waited)} keys"
    )
    yield limited(f"{what}: key to screen, p95", p95, KEY_BAR_MS, "ms", detail, digits=0)
    size = statistics.mean(kilobytes) if kilobytes else 0.0
    detail = f"{len(kilobytes)} refreshes, largest {max(kilobytes, default=0.0):.1f} KB"
    yield limited(f"{what}: bytes a refresh", size, BYTES_BAR_KB[state], "KB", detail, digits=1)
    growth = (
        f"{before:.0f} MiB after {settle_s:.0f} s, {after:.0f} MiB {seconds:.0f} s and {keys} keys"
        " later"
    )
    if seconds >= LONG_S:
        yield limited(
            f"{what}: memory grown", after - before, GROWTH_BAR_MIB, "MiB", growth, digits=1
        )
    else:
        yield Row(
            f"{what}: memory grown",
            f"{after - before:.1f} MiB",
            detail=f"{growth}; its tape fills for two minutes",
        )
    yield limited(f"{what}: first paint", painted, PAINT_BAR_S, "s", digits=2)
    detail = f"{joined_cpu_s:.2f} s of CPU; from the command until the verdict is shown"
    yield limited(f"{what}: joined and judged", filled, JUDGED_BAR_S, "s", detail, digits=2)


class Screen:
    """The dashboard on a pseudo-terminal, and what a person sees of it."""

    def __init__(self, stage: Stage, job: str) -> None:
        import pyte

        self.bursts: list[int] = []
        self._screen: Any = pyte.Screen(COLUMNS, LINES)
        self._stream: Any = pyte.ByteStream(self._screen)
        self._read_at = 0.0
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = stage.environment(False, TERM="xterm-256color")
        # An installed ddtop has its bytecode, a checkout may not.
        compileall.compile_dir(Path(ddtop.__file__).parent, quiet=1)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ddtop", "attach", job],
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            os.write(self._master, b"q")
        with suppress(OSError):
            self.watch(1.0)
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)

    @property
    def pid(self) -> int:
        """Of the dashboard."""
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU time of the dashboard, all threads; to 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def shows(self, text: str) -> bool:
        """Whether the text is on the screen."""
        return text in "\n".join(self._screen.display)

    def _read(self, seconds: float) -> bool:
        """Read what comes within this time. Returns False if nothing comes."""
        if not select.select([self._master], [], [], max(seconds, 0.0))[0]:
            return False
        data = os.read(self._master, 1 << 16)
        now = time.monotonic()
        if now - self._read_at > QUIET_S or not self.bursts:
            self.bursts.append(0)
        self.bursts[-1] += len(data)
        self._read_at = now
        self._stream.feed(data)
        return True

    def until(self, ready: Any) -> float:
        """Seconds from the start until that is so.

        Raises:
            StageError: it is not so in time; the text has the screen.
        """
        while not ready():
            if time.monotonic() - self._began > GIVE_UP_S:
                lines = "\n".join(line.rstrip() for line in self._screen.display if line.strip())
                raise StageError(
                    f"not on the screen within {GIVE_UP_S:.0f} s; the screen:\n{lines}"
                )
            self._read(0.1)
        return self._read_at - self._began

    def watch(self, seconds: float) -> None:
        """Read for this many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def press(self, keys: int) -> list[float]:
        """Move the cursor down and up at random moments. Returns the seconds from each key to the
        highlighted row.
        """
        waited, chance = [], random.Random(7)
        for _ in range(3):
            os.write(self._master, b"j")
            self.watch(0.5)
        for number in range(keys):
            self.watch(chance.uniform(0.1, 0.6))
            line = self._highlighted()
            wanted = line + (1 if number % 2 == 0 else -1)
            began = time.monotonic()
            os.write(self._master, b"j" if number % 2 == 0 else b"k")
            while self._highlighted() != wanted:
                if time.monotonic() - began > KEY_GIVE_UP_S:
                    raise StageError(f"the cursor did not go from line {line} to {wanted}")
                self._read(0.1)
            waited.append(self._read_at - began)
        return waited

    def _highlighted(self) -> int:
        """The lowest line of the table with another background than most. A line above it may be
        highlighted because it is the culprit's.
        """
        rows = [
            line for line, text in enumerate(self._screen.display) if text[:4].strip().isdigit()
        ]
        colours = {line: self._screen.buffer[line][2].bg for line in rows}
        usual = Counter(colours.values()).most_common(1)[0][0] if colours else ""
        return max((line for line, colour in colours.items() if colour != usual), default=-1)


def main() -> None:
    """`python -m tools.benchmarks.dashboard RANKS healthy|hang SECONDS KEYS [gpus]`: one of them
    by itself, such as ten minutes.
    """
    from tools.benchmarks import table

    ranks, state, seconds, keys = sys.argv[1:5]
    print(table.shown(_one(int(ranks), state, float(seconds), int(keys), "gpus" in sys.argv)))


if __name__ == "__main__":
    main()
