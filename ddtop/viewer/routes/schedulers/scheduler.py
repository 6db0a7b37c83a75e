"""What all schedulers share: asking them, and the command that goes to a node of a job."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.ssh import NOT_FOUND, WORDS_SHOWN, RemoteJob

ASK_S = 20.0
"""A busy controller of a large cluster answers within seconds; its own timeout is ten."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+")
_OVER = ("has expired", "Invalid job id", "(NotFound)", "in a completed pod")
"""What srun and kubectl say when the job has ended meanwhile."""
_FIND_IT = """\
for one in ddtop {here}; do
  if command -v "$one" >/dev/null 2>&1; then exec "$one" "$@"; fi
done
echo "ddtop is not found" >&2
exit 127"""


class NoSuchJobError(Exception):
    """There is no route into that job, now or at all. The text is one sentence."""


class NotYetError(NoSuchJobError):
    """The job waits to be started."""


class WrongNameError(NoSuchJobError):
    """This is not a name of a job for this scheduler."""


class Scheduler(Protocol):
    """One scheduler."""

    name: str
    option: str

    def find(self, job: str, ddtop: str | None) -> SchedulerTarget:
        """The route into the job.

        `ddtop`: how ddtop is called there, None to look for it.

        Raises:
            WrongNameError: that is no name of a job.
            NotYetError: the job has no nodes yet.
            NoSuchJobError: there is no such job, it is another user's, or it is over.
            NoContactError: the scheduler does not answer.
        """


@dataclass(frozen=True, slots=True)
class SchedulerTarget:
    """A node of a job, and the command that starts a program there.

    `name`: for sentences. `option`: as it is typed. `before`: the words before the program.
    `nodes`: all nodes of the job, empty if the state folder there is of this job alone.
    `job_name`: how ddtop's name of the job begins where the scheduler's own step is the job.
    `each`: a target for each node, to look at a job that was started without ddtop; empty where the
    scheduler has no way to each of them.
    """

    name: str
    option: str
    before: tuple[str, ...]
    nodes: frozenset[str] = frozenset()
    job_name: str = ""
    ddtop: str | None = None
    each: tuple[SchedulerTarget, ...] = ()

    def words(self, *words: str, columns: int | None = None) -> list[str]:
        """The command that runs ddtop there with these words.

        `columns`: the width of its output.
        """
        before = [*self.before, *(("env", f"COLUMNS={columns}") if columns is not None else ())]
        if self.ddtop:
            return [*before, *self.ddtop.split(), *words]
        here = str(Path(sys.executable).with_name("ddtop"))
        find = _FIND_IT.format(here=here if _PLAIN.issuperset(here) else "")
        return [*before, "sh", "-c", find, "ddtop", *words]

    def start(self, *, asks: bool, on_words: Callable[[str], None] = lambda _: None) -> Pipe:
        """Start the bridge there.

        Raises:
            NoContactError: the scheduler's program is not here.
        """
        command = self.words("bridge")
        try:
            return Pipe(command, asks=asks, on_words=on_words)
        except OSError as error:
            raise NoContactError(f"cannot start {command[0]}: {error.strerror}") from None

    def own(self, jobs: Sequence[RemoteJob], _host: str) -> list[RemoteJob]:
        """Those of the jobs there that belong to the scheduler's job.

        `_host`: the name of the host of the bridge. Nodes may share a state folder with other jobs.
        """
        if not self.nodes:
            return list(jobs)
        hosts = {one.partition(".")[0] for one in (*self.nodes, _host)}
        return [
            one
            for one in jobs
            if (self.job_name and one.entry.job.startswith(self.job_name))
            or (not one.over and one.entry.host.partition(".")[0] in hosts)
        ]

    def why(self, error: PipeError, words: Sequence[str]) -> str:
        """What went wrong. `words`: what the scheduler's program has printed."""
        text = "; ".join(list(words)[-WORDS_SHOWN:])
        if error.code == NOT_FOUND or "ddtop is not found" in text:
            return (
                f"{self.ddtop or 'ddtop'} is not found in {self.name}; say where it is: "
                "--remote /path/to/venv/bin/ddtop"
            )
        if any(one in text for one in _OVER):
            return f"{self.name} is over; ddtop jobs lists what it has left, where it was watched"
        return f"no way into {self.name}: {text or error}"


def asked(*command: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a scheduler's command.

    Raises:
        NoContactError: it is not installed here, or does not answer.
    """
    if shutil.which(command[0]) is None:
        raise NoContactError(
            f"{command[0]} is not on this host; ddtop asks it where the job runs, so start ddtop on"
            " a host that has it"
        )
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
        )
    except OSError as error:
        raise NoContactError(f"cannot start {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoContactError(f"{command[0]} has not answered for {ASK_S:g} s") from None
    return done.returncode, done.stdout, done.stderr


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return (text.strip().splitlines() or ["no answer"])[-1].strip()
