"""A job on another host, through the system's ssh and the bridge there: no port is forwarded, no
key leaves that host.

The first connection may ask the user for a password, so it is made before the screen is drawn;
later ones run without a terminal and in ssh's batch mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from ddtop import registry
from ddtop.feeds.route import Bounds, Connection, GoneError, NoContactError, Route, T
from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.patience import in_thread
from ddtop.wire import bridge
from ddtop.wire.bridge import (
    LAST,
    NEWER,
    AskFiles,
    AskJobs,
    BridgeFrame,
    Done,
    Gone,
    Jobs,
    Open,
    Opened,
    Part,
    Refused,
)

# -- Folders for copies of journals of other hosts. A copy is kept while a viewer shows it
#
# A viewer that is killed cannot remove its folder, so the next viewer that needs a folder removes
# it. A viewer holds a lock on its folder, and the kernel frees the lock when the process ends. A
# process id in the name would not do: in another container it means another process.


_PREFIX = "ddtop-copy-"
_NAME = re.compile(rf"{_PREFIX}\w{{8}}")
YOUNG_S = 60.0
"""A folder younger than this is never removed: its viewer may not have locked it yet."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder that only this user can read; it is removed at the end.

    Raises:
        OSError: it cannot be made.
    """
    sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, contextlib.ExitStack() as stack:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        with contextlib.suppress(
            OSError
        ):  # On a file system without locks nothing can be removed safely.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def sweep() -> None:
    """Remove the folders of this user whose process has ended."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).iterdir():
            if _NAME.fullmatch(path.name):
                _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        found = os.fstat(descriptor)
        if (
            found.st_uid != os.getuid()
            or stat.S_IMODE(found.st_mode) != 0o700
            or time.time() - found.st_mtime < YOUNG_S
        ):
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return
    finally:
        os.close(descriptor)


# -- The route through ssh, and what the other host may cost


ANSWER_S, GREETING_S, PART_S = 10.0, 30.0, 30.0
AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between two tries. A laptop that wakes up reconnects within a second; a host that is
down is not asked every second."""
FETCH_BYTES_MAX = 130 << 20
"""Two halves of a journal of the default size, and some room."""
MEMORY_MIB = 128
"""Resident memory of a view on a host whose ddtop may be anybody's. A job of 128 ranks takes
73 MiB, one of 512 about 140, and needs another limit: $DDTOP_SSH_MIB."""
ROOM_BYTES = 16 << 20
"""Kept free for one decoded frame of a mebibyte, and for the screen."""
FETCHED = "fetched"
"""What copied files are called here, whatever the other host calls its jobs."""
WORDS_SHOWN = 3
NOT_FOUND = 127
SSH_FAILED = 255
_FIND_IT = (
    "sh -c 'if command -v ddtop >/dev/null 2>&1; then exec ddtop bridge; fi; exec"
    ' "${SHELL:-/bin/sh}" -lc "ddtop bridge"\''
)
"""A command over ssh does not read the login files, where a PATH with a venv is often set. Every
shell reads these quotes alike."""


def start_pipe(
    command: Sequence[str], asks: bool, on_words: Callable[[str], None], advice: str = ""
) -> Pipe:
    """Start this command, at whose other end is the bridge. `advice`: the end of the sentence that
    says that it cannot be started.

    Raises:
        NoContactError: that sentence.
    """
    try:
        return Pipe(command, asks=asks, on_words=on_words)
    except OSError as error:
        text = f"cannot start {command[0]}: {error.strerror}{advice}"
        raise NoContactError(text) from None


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Where to, and what to run there. `ddtop`: how ddtop is called on that host (its shell reads
    it), None to look for it."""

    name: str
    ddtop: str | None = None

    @property
    def option(self) -> str:
        """As it is typed."""
        return f"--ssh {self.name}"

    def select(self, jobs: Sequence[RemoteJob], _host: str) -> list[RemoteJob]:
        """All of them: the name of that host for itself adds nothing."""
        return list(jobs)

    def command(
        self, *, asks: bool, words: str = "bridge", columns: int | None = None
    ) -> list[str]:
        """The ssh command. $DDTOP_SSH is used instead of `ssh`, with the options in it.

        `words`: what ddtop is to do there, none that a shell reads in its own way; `columns`: the
        width of its output.

        Raises:
            NoContactError: DDTOP_SSH cannot be read.
        """
        try:
            ssh = shlex.split(os.environ.get("DDTOP_SSH", "")) or ["ssh"]
        except ValueError as error:
            raise NoContactError(f"DDTOP_SSH cannot be read: {error}") from None
        # This ssh must not become the master of other sessions, which would end with the
        # dashboard. It makes no forwardings, because their ports may be in use.
        options = ["-T", "-a", "-x", "-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes"]
        if not asks:
            options += ["-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]
        before = f"env COLUMNS={columns} " if columns is not None else ""
        there = (
            f"{before}{self.ddtop} {words}"
            if self.ddtop
            else _FIND_IT.replace("ddtop bridge", f"{before}ddtop {words}")
        )
        return [*ssh, *options, "--", self.name, there]

    def start(self, *, asks: bool, on_words: Callable[[str], None] = lambda _: None) -> Pipe:
        """Start it.

        Raises:
            NoContactError: there is no ssh.
        """
        advice = "; DDTOP_SSH can name another ssh"
        return start_pipe(self.command(asks=asks), asks, on_words, advice)

    def sentence(self, error: PipeError, words: Sequence[str]) -> str:
        """What went wrong, as a sentence. `words`: what ssh has printed."""
        text = "; ".join(list(words)[-WORDS_SHOWN:])
        code = error.code
        if code == SSH_FAILED:
            return f"no contact with {self.name}" + (f": {text}" if text else "")
        if code == NOT_FOUND or (code is not None and "not found" in text and "ddtop" in text):
            called = self.ddtop or "ddtop"
            return (
                f"{called} is not found on {self.name} (a command over ssh has a short PATH); "
                "say where it is: --remote /path/to/venv/bin/ddtop"
            )
        if code is not None and "no such command" in text.casefold():
            return f"the ddtop on {self.name} is too old for this: install the same version on both"
        why = f"{self.name} does not answer as this ddtop does: {error}"
        return f"{why} ({text})" if text and code is not None else why


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job on the other host, with its times on this host's clock. `over`: only what its relay
    left can be seen."""

    entry: registry.JobEntry
    over: bool


async def jobs_there(pipe: Pipe) -> list[RemoteJob]:
    """The jobs of that host, newest first.

    Raises:
        PipeError: no answer.
    """
    answer = await pipe.ask(AskJobs(), ANSWER_S)
    if isinstance(answer, Refused):
        raise PipeError(answer.text)
    if not isinstance(answer, Jobs):
        raise PipeError("not the answer that was asked for")
    jobs, now = [], time.time_ns()
    for job in answer.jobs:
        with contextlib.suppress(ValueError, RecursionError):
            entry = registry.entry_of(job.entry)
            jobs.append(
                RemoteJob(_entry_here(entry, job.reachable, now, answer.now_unix_ns), job.over)
            )
    return jobs


def _entry_here(
    entry: registry.JobEntry, reachable: bool, now_unix_ns: int, there_unix_ns: int
) -> registry.JobEntry:
    """The entry on this host's clock; whether its relay lives is for the other host to say."""
    offset = now_unix_ns - there_unix_ns
    return msgspec.structs.replace(
        entry,
        started_unix_ns=entry.started_unix_ns + offset,
        ended_unix_ns=None if entry.ended_unix_ns is None else entry.ended_unix_ns + offset,
        heartbeat_unix_ns=now_unix_ns if reachable else 0,
        last_state=None,
    )


async def fetch(
    pipe: Pipe,
    entry: registry.JobEntry,
    folder: Path,
    *,
    last: bool,
    progress: Callable[[float], None] = lambda _: None,
) -> Path | None:
    """What the relay of that run left behind, copied into `folder`: its journal, or its last state;
    None if nothing is there.

    `last`: the last state is enough. The names are ours, whatever the other side calls them.

    Raises:
        PipeError: it did not come whole.
        OSError: it cannot be written here.
    """
    pipe.send(AskFiles(entry.job, entry.run, last))
    sizes: dict[str, int] = {}
    got = 0
    while not isinstance(answer := await pipe.answer(PART_S), Done):
        if not isinstance(answer, Part):
            raise PipeError(
                answer.text if isinstance(answer, Refused) else "not the answer that was asked for"
            )
        if answer.kind not in bridge.FILE_KINDS:
            continue
        try:
            data = answer.data()
        except bridge.BridgeError as error:
            raise PipeError(str(error)) from None
        got += len(data)
        if got > FETCH_BYTES_MAX:
            raise PipeError(f"more than {FETCH_BYTES_MAX >> 20} MiB of journal")
        sizes[answer.kind] = answer.size_bytes
        with (folder / f"{FETCHED}.{answer.kind}").open("ab") as file:
            file.write(data)
        progress(min(got / max(sum(sizes.values()), 1), 1.0))
    if not sizes:
        return None
    # A journal's older half is found by the name of the newer one.
    return folder / f"{FETCHED}.{LAST if LAST in sizes else NEWER}"


def _memory_mib() -> int:
    text = os.environ.get("DDTOP_SSH_MIB", "")
    return max(int(text), 64) if text.isascii() and text.isdigit() and len(text) < 8 else MEMORY_MIB


class RemoteTarget(Protocol):
    """A place where the bridge can be started: a host behind ssh, a node of a scheduler's job.

    `name`: for sentences. `option`: what leads there, as it is typed.
    """

    @property
    def name(self) -> str: ...

    @property
    def option(self) -> str: ...

    def start(self, *, asks: bool, on_words: Callable[[str], None] = ...) -> Pipe:
        """Start the bridge there.

        Raises:
            NoContactError: it cannot be started.
        """

    def select(self, jobs: Sequence[RemoteJob], _host: str) -> list[RemoteJob]:
        """The jobs there that the user means; `_host`: the host's name as the bridge reports it."""

    def sentence(self, error: PipeError, words: Sequence[str]) -> str:
        """What went wrong, as a sentence. `words`: what the started program has printed."""


class SshRoute(Route):
    """A route through ssh, or through another program that starts the bridge.

    It connects again by itself after a loss.

    The code that made the route closes its `pipe` at the end.
    """

    def __init__(self, host: RemoteTarget, entry: registry.JobEntry, pipe: Pipe) -> None:
        """`entry`: as its job file there has it. `pipe`: an open one, on which the bridge has
        greeted."""
        super().__init__(entry.job)
        self._host, self._entry = host, entry
        self.pipe = pipe
        """The pipe that is in use now."""
        self._tries = 0
        self._usable = True
        self._final: str | None = None
        self._given = False

    @property
    def bounds(self) -> Bounds:
        """Whatever is said there: it is another host."""
        return Bounds(
            queue_bytes=8 << 20,
            tape_bytes=24 << 20,
            memory_bytes=(_memory_mib() << 20) - ROOM_BYTES,
        )

    def too_much(self) -> str:
        """What to say when it is used up."""
        return (
            f"{self._host.name} says more than {_memory_mib()} MiB of memory can hold, so nothing"
            f" more is taken in; if its job is that large: DDTOP_SSH_MIB={4 * _memory_mib()} ddtop"
            f" attach {self._host.option}"
        )

    async def connect(self, controller: bool) -> Connection:
        """Connect over the open pipe, or over a new one if there is none."""
        if self._final is not None:
            raise NoContactError(self._final, AGAIN_S[-1])
        try:
            if not self._usable:
                await self._start()
            answer = await self.pipe.ask(
                Open(self._entry.job, self._entry.run, controller), ANSWER_S
            )
        except PipeError as error:
            raise self._lost_error(error) from None
        self._tries = 0
        if isinstance(answer, Gone):
            raise GoneError
        if not isinstance(answer, Opened):
            raise NoContactError(
                answer.text if isinstance(answer, Refused) else "the bridge gave another answer"
            )
        self._given = False
        self.pipe.forget_frames()
        return _SshLink(self.pipe, self._lost_error)

    async def _start(self) -> None:
        self.pipe.close()
        self.pipe = self._host.start(asks=False)
        await self.pipe.wait_for_greeting(GREETING_S)
        self._usable = True

    def _lost_error(self, error: PipeError) -> NoContactError:
        why = self._host.sentence(error, self.pipe.words)
        self._usable = False
        if "Permission denied" in why or "Host key verification failed" in why:
            self._final = (
                f"{why}; ssh asks for something that cannot be typed here: quit and attach again"
            )
            return NoContactError(self._final)
        again_s = AGAIN_S[min(self._tries, len(AGAIN_S) - 1)]
        self._tries += 1
        return NoContactError(f"{why}; trying again", again_s)

    async def read_left(self, read: Callable[[registry.JobEntry, Path | None], T]) -> T | None:
        """Copied once after each time that the relay was there."""
        if self._given:
            return None
        self._given = True
        with folder() as temporary:
            try:
                path = await fetch(self.pipe, self._entry, temporary, last=True)
                if path is None:
                    raise NoContactError(
                        f"the relay of {self.job} is gone and left nothing on {self._host.name}"
                    )
                return await in_thread(read, self._entry, path)
            except (PipeError, OSError) as error:
                self._usable = self._usable and not isinstance(error, PipeError)
                raise NoContactError(
                    f"what the relay of {self.job} left cannot be read: {error}"
                ) from None


class _SshLink:
    def __init__(self, pipe: Pipe, lost: Callable[[PipeError], NoContactError]) -> None:
        self._pipe, self._lost = pipe, lost

    async def send(self, frame: bytes) -> None:
        self._pipe.send(BridgeFrame(frame))

    async def receive(self, seconds: float) -> AsyncIterator[bytes]:
        try:
            async for frame in self._pipe.frames(seconds):
                yield frame
        except PipeError as error:
            raise self._lost(error) from None

    def close(self) -> None:
        """Leave the pipe open: it also leads to the next relay of this job."""
