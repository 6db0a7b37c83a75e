"""Viewers that come and go: dashboards, `watch`, `diagnose`, `status` and `stacks`. They are ended
by a signal, are killed, or stop reading for a while, and each must exit as its documentation says.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.soak.hosts import AnyHost

EVERY_S, MOST = 4.0, 3
END_S = 10.0
"""A viewer that was told to end may take this long, on a machine with other work."""
STACKS_EVERY_S, STACKS_S = 10.0, 60.0
SHOWN_BYTES = 1 << 16
ASLEEP_RATIO = 0.2
QUIT = "q"
"""Typed into a dashboard."""
LATER = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
BY_ITSELF = {
    "attach": (0, 3),
    "watch": (0, 1, 3, 4),
    "diagnose": (0, 1, 3, 4),
    "status": (0, 3, 4),
    "stacks": (0, 1, 3, 4),
}
"""Exit codes of the reference of commands. 3: no job is found, as while the disk is full; 4: its
relay was killed a moment ago and is not heard.
"""


@dataclass
class Viewer:
    """One process on a terminal of its own. `leave_s`: when it will be told to end; `drawn`: the
    end of its output.
    """

    words: list[str]
    process: subprocess.Popen[bytes]
    terminal: int
    came_s: float
    leave_s: float
    drawn: bytearray = field(default_factory=bytearray)
    told: signal.Signals | str | None = None
    reader: threading.Thread | None = None

    @property
    def what(self) -> str:
        """What a viewer shows, to be read by a person."""
        told = "" if self.told is None else f" after {getattr(self.told, 'name', self.told)}"
        return f"{' '.join(self.words)} ({self.leave_s - self.came_s:.0f} s){told}"

    def wanted(self) -> tuple[int, ...]:
        """The accepted exit codes. It may have ended by itself just before it was told to."""
        known = BY_ITSELF[self.words[0]]
        if self.told is None or self.told == QUIT:
            return known
        assert isinstance(self.told, signal.Signals)
        return (*known, 128 + self.told, -self.told)

    def problem(self) -> str | None:
        """The error in how it ended; None if there is none."""
        code = self.process.returncode
        if self.told == signal.SIGINT and self.while_python_started():
            return None
        if code not in self.wanted():
            return f"{self.what}: exit code {code}; it wrote {self.end_of_text()}"
        if b"Traceback" in self.drawn:
            return f"{self.what}: a traceback: {self.end_of_text()}"
        return None

    def while_python_started(self) -> bool:
        """Whether Ctrl-C came before the first line of ddtop ran: Python prints that traceback."""
        return b"KeyboardInterrupt" in self.drawn and b"/ddtop/" not in self.drawn

    def end_of_text(self) -> str:
        """The last lines of its output."""
        at = max(self.drawn.rfind(b"Traceback"), len(self.drawn) - 600)
        return bytes(self.drawn[at:]).decode(errors="replace")


def open_viewer(host: AnyHost, words: list[str], now_s: float, stay_s: float) -> Viewer:
    """A command on a terminal of its own, whose other end reads all that is drawn."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*host.inside, sys.executable, "-m", "ddtop", *words],
        env=host.environment | {"TERM": "xterm-256color"},
        cwd=host.folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    viewer = Viewer(words, process, master, now_s, now_s + stay_s)

    def take() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(master, 1 << 16):
                viewer.drawn += data
                del viewer.drawn[:-SHOWN_BYTES]
        os.close(master)

    viewer.reader = threading.Thread(target=take, daemon=True)
    viewer.reader.start()
    return viewer


class Viewers:
    """Which viewers run, and how long."""

    def __init__(self, hosts: list[AnyHost], seed: int) -> None:
        self._hosts, self._random = hosts, random.Random(seed)
        self._there: list[Viewer] = []
        self._stacks: list[Viewer] = []
        self._next_s = 0.0
        self._next_stacks_s = STACKS_EVERY_S
        self.came = 0
        self.failed: list[str] = []
        self.told: dict[str, int] = {}
        self.codes: dict[int, int] = {}
        """Of `stacks`: exit code -> how often."""

    def on_time(self, now_s: float) -> None:
        """Some viewers end, one starts, one stops reading, and one requests stacks."""
        for viewer in [one for one in self._there if _is_over(one, now_s)]:
            self._there.remove(viewer)
            self._leave(viewer)
        for viewer in [one for one in self._stacks if _is_over(one, now_s)]:
            self._stacks.remove(viewer)
            self._answered(viewer)
        if now_s >= self._next_s and len(self._there) < MOST:
            self._next_s = now_s + self._random.expovariate(1 / EVERY_S)
            self._come(now_s)
        if now_s >= self._next_stacks_s:
            self._next_stacks_s = now_s + STACKS_EVERY_S
            host = self._random.choice(self._hosts)
            self._stacks.append(open_viewer(host, ["stacks", "--json"], now_s, STACKS_S))

    def _come(self, now_s: float) -> None:
        words = self._random.choice(
            (["attach"], ["watch", "--json"], ["diagnose", "--json", "--for", "3"], ["status"])
        )
        host = self._random.choice(self._hosts)
        viewer = open_viewer(host, words, now_s, self._random.uniform(2, 40))
        self._there.append(viewer)
        self.came += 1
        if self._random.random() < ASLEEP_RATIO:
            viewer.process.send_signal(signal.SIGSTOP)

    def _leave(self, viewer: Viewer) -> None:
        process = viewer.process
        if process.poll() is None:
            ways = (*LATER, QUIT) if viewer.words[0] == "attach" else LATER
            viewer.told = self._random.choice(ways)
            process.send_signal(signal.SIGCONT)
            if isinstance(viewer.told, signal.Signals):
                process.send_signal(viewer.told)
            else:
                os.write(viewer.terminal, viewer.told.encode())
            name = getattr(viewer.told, "name", QUIT)
            self.told[name] = self.told.get(name, 0) + 1
        self._end(viewer)

    def _end(self, viewer: Viewer) -> None:
        try:
            viewer.process.wait(END_S)
        except subprocess.TimeoutExpired:
            pid = viewer.process.pid
            self.failed.append(f"{viewer.what}: still there after {END_S:.0f} s\n{stacks(pid)}")
            viewer.process.kill()
            viewer.process.wait()
            return
        assert viewer.reader is not None
        viewer.reader.join(END_S)
        if (problem := viewer.problem()) is not None:
            self.failed.append(problem)

    def _answered(self, viewer: Viewer) -> None:
        self._end(viewer)
        code = viewer.process.returncode
        self.codes[code] = self.codes.get(code, 0) + 1

    def close(self) -> None:
        """All viewers end; those that request stacks get theirs."""
        for viewer in self._there:
            self._leave(viewer)
        for viewer in self._stacks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                viewer.process.wait(STACKS_S)
            self._answered(viewer)
        self._there.clear()
        self._stacks.clear()


def _is_over(viewer: Viewer, now_s: float) -> bool:
    return viewer.process.poll() is not None or now_s > viewer.leave_s


def stacks(pid: int) -> str:
    """Where that process is, as far as py-spy can read it."""
    spy = Path(sys.executable).with_name("py-spy")
    command = [str(spy), "dump", "--nonblocking", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False
        ).stdout
    return ""


def shown(counts: dict[int, int] | dict[str, int]) -> Iterator[str]:
    """`3 x SIGINT`, the most frequent first."""
    for what, count in sorted(counts.items(), key=lambda one: -one[1]):
        yield f"{count} x {what}"
