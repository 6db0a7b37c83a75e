"""Root: the live jobs of all users of this host.

Root reads nothing that another user can write: no job file, no key, no record of a relay. For each
user whose relay runs here it starts a process with that user's rights, which follows the jobs and
writes one line of JSON a second (`ddtop.cli.user_jobs`). The lines are checked: their length, the
number of jobs, the families and the labels are bounded.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Generic, TypeVar

import msgspec

import ddtop
from ddtop import registry
from ddtop.cli.digests import JobSeries
from ddtop.diagnosis.finding import HEALTHS
from ddtop.metrics import FAMILIES, SERIES_MAX
from ddtop.present.hosts.jobs import Health
from ddtop.present.series import LABEL_CHARACTERS, Sample
from ddtop.viewer.fleet import Fleet, FleetJob

SCAN_S = 5.0
"""How often we check which users have relays."""
SILENT_S = 5.0
"""A line comes every second."""
AGAIN_S = 10.0
"""Pause before a process that has ended is started again."""
END_S = 2.0
LINE_BYTES_MAX = 4 << 20
LINES_APART_S = 0.4
"""Lines that arrive faster wait in the pipe."""
JOBS_MAX = 500
"""Of one user."""
USERS_MAX, FOLDERS_MAX = 64, 4
"""Users, and state folders of one user."""
MEMORY_BYTES = 4 << 30
"""Address space of a process that reads for a user: what a relay sends may be hostile."""
NICE = 5
TEXT_MAX = 300
_FOLLOWED = ("HOME", "DDTOP_STATE", "DDTOP_RUNTIME", "DDTOP_KEY", "XDG_STATE_HOME")
_VALUE_MAX = 4096
_SET_HERE = ("ddtop_up", "ddtop_look_age_seconds")
_FAMILY_OF = {one.name: one for one in FAMILIES if one.of_job and one.name not in _SET_HERE}
_HERE = str(Path(ddtop.__file__).resolve().parents[1])

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UserFolder:
    """A state folder of a user whose relay runs here, as the relay's environment names it.

    `python`, `path`: the interpreter of that relay, and where it finds ddtop. They are used with
    the user's rights, where the user may not read ours.
    """

    uid: int
    environment: tuple[tuple[str, str], ...]
    python: str
    path: str

    @property
    def user(self) -> str:
        """The name of the user."""
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(self.uid).pw_name
        return str(self.uid)


def folders(proc: Path = Path("/proc")) -> list[UserFolder]:
    """The state folders of all other users whose relays run on this host.

    Source: /proc/PID/cmdline and environ of the relays. A relay in a container of its own has
    another file system and is left out.
    """
    found: dict[tuple[int, tuple[tuple[str, str], ...]], UserFolder] = {}
    own, namespaces = os.getuid(), _namespaces(proc / "self")
    with os.scandir(proc) as processes:
        for process in processes:
            if not process.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                uid = process.stat().st_uid
                folder = _folder(Path(process.path), uid, namespaces) if uid != own else None
                if folder is not None:
                    found.setdefault((uid, folder.environment), folder)
    kept: dict[int, list[UserFolder]] = {}
    for folder in sorted(found.values(), key=lambda one: (one.uid, one.environment)):
        if folder.uid in kept or len(kept) < USERS_MAX:
            kept.setdefault(folder.uid, []).append(folder)
    return [one for several in kept.values() for one in several[:FOLDERS_MAX]]


def _folder(process: Path, uid: int, namespaces: tuple[str, str]) -> UserFolder | None:
    """The state folder of the relay with this folder in /proc; None: it is not a relay, or runs in
    another file system."""
    with (process / "cmdline").open("rb") as file:
        words = file.read(_VALUE_MAX).split(b"\0")
    if len(words) < 3 or words[1:3] != [b"-m", b"ddtop.relay"]:
        return None
    if _namespaces(process) != namespaces:
        return None
    with (process / "environ").open("rb") as file:
        pairs = [one.partition(b"=") for one in file.read(1 << 20).split(b"\0")]
    variables = {os.fsdecode(name): os.fsdecode(value)[:_VALUE_MAX] for name, _, value in pairs}
    kept = tuple((name, variables[name]) for name in _FOLLOWED if name in variables)
    return UserFolder(uid, kept, os.fsdecode(words[0]), variables.get("PYTHONPATH", ""))


def _namespaces(process: Path) -> tuple[str, str]:
    return os.readlink(process / "ns/mnt"), os.readlink(process / "ns/net")


class _Line(msgspec.Struct, frozen=True):
    jobs: tuple[_Job, ...]
    problem: str | None = None


class _Job(msgspec.Struct, frozen=True):
    entry: msgspec.Raw
    value: msgspec.Raw
    contact: str | None
    age_s: float
    looks: int
    settled: bool = True


Decode = Callable[[bytes, str], T | None]
"""Makes the value of a job from its JSON and the name of its user.

Raises: msgspec.MsgspecError, ValueError: it is none."""


def health_in(data: bytes, _user: str) -> Health | None:
    """The health of a job as another user's process reports it."""
    found = msgspec.json.decode(data, type=Health | None)
    if found is not None and found.word not in HEALTHS:
        raise ValueError("no health")
    return found


def series_in(data: bytes, user: str) -> JobSeries | None:
    """The samples of a job: those of known families with as many labels, each once."""
    rows = msgspec.json.decode(data, type=list[tuple[str, float, tuple[str, ...]]] | None)
    if rows is None:
        return None
    kept: dict[tuple[str, tuple[str, ...]], Sample] = {}
    for name, value, labels in rows[: 2 * SERIES_MAX]:
        family = _FAMILY_OF.get(name)
        if family is None or len(labels) != len(family.labels):
            continue
        shown = tuple(
            user if label == "user" else text[:LABEL_CHARACTERS]
            for label, text in zip(family.labels, labels, strict=True)
        )
        kept[name, shown] = Sample(name, value, shown)
    return JobSeries(None, tuple(kept.values())[:SERIES_MAX])


class _Reader(Generic[T]):
    """One process with the rights of a user, and its last report."""

    def __init__(self, folder: UserFolder, kind: str, decode: Decode[T]) -> None:
        self.folder = folder
        self.problem: str | None = None
        self.answered = False
        """Set when a line has arrived, or when it is certain that none will."""
        self._user = folder.user
        self._kind, self._decode = kind, decode
        self._jobs: tuple[FleetJob[T], ...] = ()
        self._came = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._theirs = False
        self._again = 0.0
        self._closed = False

    def keep_running(self) -> None:
        """Start the process, or restart it."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._closed or time.monotonic() < self._again:
            return
        self._again = time.monotonic() + AGAIN_S
        try:
            self._process = self._start()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._failed(f"{getattr(error, 'strerror', None) or error}")
            return
        process = self._process
        self._thread = threading.Thread(
            target=self._read, args=(process,), name="ddtop-user", daemon=True
        )
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        one = self.folder
        python, path = (one.python, one.path) if self._theirs else (sys.executable, _HERE)
        fixed = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        try:
            account = pwd.getpwuid(one.uid)
            group, groups = account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid)
        except KeyError:
            group, groups = one.uid, []
        process = subprocess.Popen(
            [python, "-m", "ddtop.cli.user_jobs", self._kind],
            user=one.uid,
            group=group,
            extra_groups=groups,
            env=fixed | dict(one.environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Without root's terminal: the process could inject input into it.
            start_new_session=True,
        )
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        lines = 0
        with process.stdout as stream, contextlib.suppress(OSError, ValueError):
            for data in _lines(stream):
                if not self._take(data):
                    break
                lines += 1
                time.sleep(LINES_APART_S)
        process.kill()
        code = process.wait()
        if not self._closed and not lines:
            self._failed(f"its first line is none of ours, or exit code {code}")

    def _take(self, data: bytes) -> bool:
        try:
            line = msgspec.json.decode(data, type=_Line)
            jobs = tuple(self._job(one) for one in line.jobs[:JOBS_MAX])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        self._jobs, self._came = jobs, time.monotonic()
        self.problem = line.problem[:TEXT_MAX] if line.problem else None
        self.answered = True
        return True

    def _job(self, one: _Job) -> FleetJob[T]:
        entry = registry.entry_of(bytes(one.entry))
        if not (math.isfinite(one.age_s) and one.age_s >= 0):
            raise ValueError("no age")
        return FleetJob(
            msgspec.structs.replace(entry, job=f"{self._user}/{entry.job}"),
            self._decode(bytes(one.value), self._user),
            one.contact[:TEXT_MAX] if one.contact else None,
            one.age_s,
            one.looks,
            one.settled,
        )

    def _failed(self, why: str) -> None:
        self.problem = f"the jobs of {self._user} cannot be read with that user's rights: {why}"
        # The user may be unable to read the folder of our interpreter; the relay's interpreter is
        # the user's own.
        self._theirs = not self._theirs
        if self._theirs:
            self._again = 0.0
        else:
            self.answered = True

    def jobs(self) -> Iterator[FleetJob[T]]:
        """What is known now."""
        silent_s = time.monotonic() - self._came
        for one in self._jobs:
            contact = one.contact
            if silent_s > SILENT_S:
                contact = f"the process that reads the jobs of {self._user} is silent"
            yield replace(one, contact=contact, age_s=one.age_s + silent_s)

    def close(self) -> None:
        """End it."""
        self._closed = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._thread is not None:
            self._thread.join(END_S)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while True:
        line = stream.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            return
        yield line


class OtherUsers(Generic[T]):
    """The live jobs of all other users of this host. Only root can read them."""

    def __init__(
        self, kind: str, decode: Decode[T], find: Callable[[], Iterable[UserFolder]] = folders
    ) -> None:
        """`kind`: the facts to read about each job, `HEALTH` or `SERIES`."""
        self._kind, self._decode, self._find = kind, decode, find
        self._readers: dict[UserFolder, _Reader[T]] = {}
        self._stop = threading.Event()
        self._scanned = False
        self._thread = threading.Thread(target=self._run, name="ddtop-users", daemon=True)

    def start(self) -> None:
        """Start looking; once."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            known = dict.fromkeys(self._find())
            for gone in [one for one in self._readers if one not in known]:
                self._readers[gone].close()
                self._readers = {key: one for key, one in self._readers.items() if key != gone}
            for folder in known:
                if folder not in self._readers:
                    reader = _Reader(folder, self._kind, self._decode)
                    self._readers = self._readers | {folder: reader}
                self._readers[folder].keep_running()
            self._scanned = True
            # If a process could not be started, the other interpreter is tried at once.
            self._stop.wait(SCAN_S if all(one.answered for one in self._readers.values()) else 0.2)

    def jobs(self) -> tuple[FleetJob[T], ...]:
        """All of them; their names begin with the user's name and a slash."""
        return tuple(job for one in self._readers.values() for job in one.jobs())

    @property
    def problems(self) -> list[str]:
        """A sentence for each user whose jobs are not known, with the reason."""
        found = []
        for folder, one in self._readers.items():
            if one.problem is not None:
                found.append(one.problem)
            elif not one.answered:
                found.append(f"the jobs of {folder.user} are not known yet")
        return found

    def wait(self, seconds: float) -> tuple[FleetJob[T], ...]:
        """The jobs, as soon as each user's are known; at the latest after so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._scanned and all(one.answered for one in self._readers.values()):
                break
            time.sleep(0.05)
        return self.jobs()

    def close(self) -> None:
        """End all processes."""
        self._stop.set()
        self._thread.join()
        for one in self._readers.values():
            one.close()


class HostFleet(Generic[T]):
    """The jobs of root and those of all other users, as `Fleet` has those of one user."""

    def __init__(self, own: Fleet[T], others: OtherUsers[T]) -> None:
        self._own, self.others = own, others

    def start(self) -> None:
        """Start following; once."""
        self._own.start()
        self.others.start()

    def jobs(self) -> tuple[FleetJob[T], ...]:
        """All jobs."""
        return (*self._own.jobs(), *self.others.jobs())

    def wait(self, seconds: float) -> tuple[FleetJob[T], ...]:
        """The jobs, as soon as they are known; at the latest after so many seconds."""
        until = time.monotonic() + seconds
        self._own.wait(seconds)
        self.others.wait(max(until - time.monotonic(), 0.0))
        return self.jobs()

    def close(self) -> None:
        """End it."""
        self.others.close()
        self._own.close()


def is_root() -> bool:
    """Whether the jobs of other users can be read."""
    return os.getuid() == 0


def user_of(name: str) -> tuple[str | None, str]:
    """(user, job) of a name as it is listed; the user is None for a job of one's own."""
    user, slash, job = name.partition("/")
    return (user, job) if slash else (None, name)
