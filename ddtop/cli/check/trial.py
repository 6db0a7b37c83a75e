"""Starts the command with ddtop's own program in place of the user's, and reads the reports of the
ranks."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from ddtop.cli.check import rank_program
from ddtop.cli.check.judge import Trial

PROGRAM = Path(rank_program.__file__)
END_S = 10.0
"""torchrun ends its ranks before it ends. After this time it is killed with them."""
LINES_KEPT = 20
READ_BYTES = 1 << 16


def run(command: Sequence[str], start_s: float, reduce_s: float) -> Trial:
    """Run the command until it ends or time is up, and end all of its processes.

    `start_s`: how long the ranks may take until all have met, in seconds. `reduce_s`: how long one
    all_reduce may take, in seconds.

    Raises:
        OSError: the command cannot be started.
    """
    environ = dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
    environ.pop("DDTOP", None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        # The launcher and its ranks are ended together.
        start_new_session=True,
    )
    reader = _Reader(process)
    try:
        reader.read(start_s, reduce_s)
        return reader.trial
    finally:
        _end(process)


class _Reader:
    """Reads the output line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.trial = Trial()
        self._process = process
        self._rest = b""
        self._other: deque[str] = deque(maxlen=LINES_KEPT)

    def read(self, start_s: float, reduce_s: float) -> None:
        """Read until the output ends or a time limit is exceeded."""
        assert self._process.stdout is not None
        until = time.monotonic() + start_s
        tried = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(until - time.monotonic(), 0)):
                data = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not data:
                    self._over()
                    return
                self._take(data)
                if len(self.trial.tried) > tried:
                    tried = len(self.trial.tried)
                    # The ranks have shorter limits: they give up first, and report why.
                    until = time.monotonic() + reduce_s + END_S
        self.trial.last_words = tuple(self._other)

    def _over(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.trial.exit_code = self._process.wait(END_S)
        self.trial.last_words = tuple(self._other)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            # srun -l and torchrun --tee write the rank before the line.
            _, mark, fact = text.partition(rank_program.MARK)
            try:
                self.trial.take(json.loads(fact))
            except (ValueError, KeyError, TypeError):
                if not mark and text.strip():
                    self._other.append(text.strip())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and everything that it has started on this host."""
    for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    if process.stdout is not None:
        process.stdout.close()
