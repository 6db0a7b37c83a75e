"""The command of `ddtop watch --on-critical`. It runs without a shell, and the watching goes on."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddtop.cli.errors import USAGE, CommandError

AT_ONCE_MAX = 4
"""A command that hangs, on a mail server for example, must not pile up processes."""
LEAVE_S = 10.0
"""A finding at the end of the job starts a last command. It gets time to send a message."""
_POLL_S = 0.05
_JOB_ID = re.compile(r"[0-9][A-Za-z0-9_.\[\]-]{0,63}")
"""The id of a batch job; PBS has `12[3].server`. The id comes from the job's own environment, and
none with other characters gets into a command."""


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    kind: str


class OnCritical:
    """Starts the command for events, and reports its failures to `complain`.

    Not thread-safe.
    """

    def __init__(
        self,
        command: str,
        complain: Callable[[str], object],
        option: str = "--on-critical",
        expands: Sequence[str] = (),
    ) -> None:
        """`expands`: the variables with the id of a batch job, for which `$NAME` in a word stands.
        No other variable is expanded: a word may be shell code, and the text of an event has names
        that the job has chosen.

        Raises:
            CommandError: 2, it is no command line, or there is no such program.
        """
        self._words = _parsed(command, option)
        names = "|".join(expands)
        self._ids = re.compile(rf"\$(?:({names})\b|\{{({names})\}})") if names else None
        self._name = f"{option} {self._words[0]}"
        self._complain = complain
        self._running: list[_Running] = []
        self.skipped = 0

    def start(self, event: bytes, kind: str, environment: Mapping[str, str] = {}) -> None:
        """Run the command with the event on stdin, its output on our stderr, and these variables
        added to our own.

        If `AT_ONCE_MAX` commands still run, it is skipped and counted.
        """
        self.look()
        if len(self._running) >= AT_ONCE_MAX:
            self.skipped += 1
            self._complain(
                f"{self._name} was not run for {kind}: {AT_ONCE_MAX} are still running "
                f"({self.skipped} left out so far)"
            )
            return
        variables = {**os.environ, **environment}
        try:
            words = [self._expanded(one, variables) for one in self._words]
        except ValueError as error:
            self._complain(f"{self._name} was not run for {kind}: {error}")
            return
        try:
            process = _spawn(words, event, variables)
        except OSError as error:
            self._complain(f"{self._name} could not be run for {kind}: {error.strerror}")
            return
        self._running.append(_Running(process, kind))

    def _expanded(self, word: str, variables: Mapping[str, str]) -> str:
        def job_id(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            value = variables.get(name)
            if value is None or not _JOB_ID.fullmatch(value):
                raise ValueError(f"${name} is {'not set' if value is None else 'not a job id'}")
            return value

        return self._ids.sub(job_id, word) if self._ids is not None else word

    def look(self) -> None:
        """Report the commands that have failed since the last call."""
        still = []
        for one in self._running:
            code = one.process.poll()
            if code is None:
                still.append(one)
            elif code != 0:
                self._complain(f"{self._name} failed for {one.kind}: {_how(code)}")
        self._running = still

    def leave(self) -> None:
        """Wait for running commands, at most `LEAVE_S`. They are never killed."""
        until = time.monotonic() + LEAVE_S
        while self._running and time.monotonic() < until:
            time.sleep(_POLL_S)
            self.look()
        for one in self._running:
            pid = one.process.pid
            self._complain(f"{self._name} for {one.kind} still runs (pid {pid}) and is left alone")


def _parsed(command: str, option: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        why = str(error).lower()
        raise CommandError(
            f"ddtop: {option} {command!r} is no command line: {why}", USAGE
        ) from None
    if not words:
        raise CommandError(
            f"ddtop: {option} needs a command: {option} 'mail -s hang me@example.org'",
            USAGE,
        )
    words[0] = os.path.expanduser(words[0])
    if shutil.which(words[0]) is None:
        raise CommandError(f"ddtop: {option}: {_why_not(words[0])}", USAGE)
    return words


def _why_not(name: str) -> str:
    if not os.path.isfile(name):
        return (
            f"there is no program {name!r}; it is run without a shell: for more than one program, "
            "name a script"
        )
    if os.sep not in name:
        return f"{name!r} is not on the PATH; if you mean the file in this folder: ./{name}"
    return f"{name!r} may not be executed: chmod +x {shlex.quote(name)}"


def _spawn(
    words: list[str], event: bytes, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # A file, not a pipe: with a pipe, a command that does not read its input would block us.
    descriptor = os.memfd_create("event")
    try:
        with open(descriptor, "r+b", buffering=0, closefd=False) as file:
            file.write(event)
            file.seek(0)
        return subprocess.Popen(words, stdin=descriptor, stdout=2, env=environment)
    finally:
        os.close(descriptor)


def _how(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
