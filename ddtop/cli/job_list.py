"""The jobs of this user as a table and as JSON, from this host, Slurm and other users' hosts."""

from __future__ import annotations

import contextlib
import functools
import getpass
import math
import os
import pwd
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import click
import msgspec

import ddtop
from ddtop import registry
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.diagnosis.finding import HEALTHS, OK, UNKNOWN, Verdict
from ddtop.feeds.route import NoContactError
from ddtop.feeds.schedulers import (
    NoSuchJobError,
    SchedulerTarget,
    Slurm,
    SlurmJob,
    WrongNameError,
    last_line,
    running,
)
from ddtop.follow.fleet import Fleet, FleetJob, Tally, Target, following, own_jobs, tally_of
from ddtop.metrics import FAMILIES, SERIES_MAX
from ddtop.model.facts import Snapshot
from ddtop.present.jobs import JOBS_SCHEMA, Health, Listed, health_of, hosts_text, listed
from ddtop.present.series import LABEL_CHARACTERS, Sample, series_of
from ddtop.present.text import Glyphs, cell_width, clean, fit, plain
from ddtop.thresholds import chosen
from ddtop.wire.records import ALONE

# -- `ddtop jobs --slurm`: all running Slurm jobs of this user, each asked on its own node


ANSWER_S = 30.0
"""The time for a step on a busy node, including the start of Python from a shared file system."""
AT_ONCE = 8
"""Steps that are started at the same time: each is a request to the controller."""
OUTPUT_BYTES_MAX = 4 << 20
SENTENCE_MAX = 300


class _Job(msgspec.Struct):
    """The used fields of an object in `jobs` of `ddtop.jobs/1`."""

    job: str
    live: bool
    world_size: int
    reporting: int
    hosts: tuple[str, ...]
    script: str
    health: str
    kind: str | None
    summary: str | None
    steps_per_s: float | None
    no_progress_s: float | None
    health_age_s: float | None
    started_unix_ns: int


class _Jobs(msgspec.Struct):
    jobs: tuple[_Job, ...]


def slurm_jobs(ddtop: str | None) -> list[tuple[Listed, Health]]:
    """The jobs that ddtop knows in the running jobs of Slurm of this user. A Slurm job without any
    also has a row, with the reason.

    `ddtop`: how ddtop is called there, None to look for it.

    Raises:
        CommandError: 3, Slurm is not here, or does not answer.
    """
    try:
        mine = running(getpass.getuser())
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [row for rows in pool.map(lambda one: _asked(one, ddtop), mine) for row in rows]


def _asked(job: SlurmJob, ddtop: str | None) -> list[tuple[Listed, Health]]:
    try:
        target = Slurm().find(job.number, ddtop)
        found = [_row(one) for one in _there(target)]
    except (NoSuchJobError, WrongNameError, NoContactError) as error:
        return [_without(job, str(error))]
    return found or [_without(job, "not watched: start its ranks with DDTOP=1")]


def _there(target: SchedulerTarget) -> list[_Job]:
    """The live jobs of ddtop that belong to this job of Slurm.

    Raises:
        NoContactError: there is no route into it.
    """
    command = target.words("jobs", "--json")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        )
    except OSError as error:
        raise NoContactError(f"cannot start {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoContactError(f"{target.name} has not answered for {ANSWER_S:g} s") from None
    try:
        jobs = msgspec.json.decode(done.stdout[:OUTPUT_BYTES_MAX], type=_Jobs).jobs
    except (msgspec.MsgspecError, ValueError):
        problem = last_line(done.stderr.decode(errors="replace"))
        raise NoContactError(f"no way into {target.name}: {problem}") from None
    nodes = {name.partition(".")[0] for name in target.nodes}
    return [
        one
        for one in jobs
        if one.live
        and (
            one.job.startswith(target.job_name)
            or nodes & {name.partition(".")[0] for name in one.hosts}
        )
    ]


def _row(one: _Job) -> tuple[Listed, Health]:
    entry = _entry(one.job, one.hosts, one.script, one.world_size, one.started_unix_ns)
    health = Health(
        one.health if one.health in HEALTHS else UNKNOWN,
        one.kind,
        clean(one.summary)[:SENTENCE_MAX] if one.summary else None,
        one.reporting,
        one.world_size,
        one.steps_per_s,
        one.no_progress_s,
        one.health_age_s,
    )
    return Listed(entry, True, one.reporting, one.hosts or ("?",)), health


def _without(job: SlurmJob, why: str) -> tuple[Listed, Health]:
    entry = _entry(job.number, (job.nodes,), job.name, 0, job.started_unix_ns)
    return Listed(entry, True, 0, (job.nodes,)), Health(UNKNOWN, sentence=why[:SENTENCE_MAX])


def _entry(
    job: str, hosts: tuple[str, ...], script: str, world_size: int, started_unix_ns: int
) -> registry.JobEntry:
    known: dict[str, Any] = {
        "schema": registry.SCHEMA,
        "job": registry.clean_job_name(job),
        "run": "",
        "host": hosts[0] if hosts else "",
        "sender": registry.ELSEWHERE,
        "relay_pid": 0,
        "relay_start_ticks": 0,
        "address": "",
        "port": 0,
        "socket": "",
        "script": script,
        "world_size": world_size,
        "reporting": 0,
        "started_unix_ns": started_unix_ns,
        "heartbeat_unix_ns": time.time_ns(),
    }
    return registry.JobEntry(**known)


# -- Which jobs the fleet follows: all jobs of this user, or the one at a hub


def targets(hub: str | None) -> Callable[[], list[Target]]:
    """A function that returns the jobs. `hub`: the value of `--hub`.

    Raises:
        CommandError: 2, `hub` is no HOST:PORT; 3, no relay of this user answers there.
    """
    if hub is None:
        return own_jobs
    from ddtop.cli.routing import asked_at

    entry, secret = asked_at(hub), registry.secret()

    def the_one() -> list[Target]:
        # No job file renews the heartbeat of a relay that is known by its port.
        now = time.time_ns()
        return [Target(msgspec.structs.replace(entry, heartbeat_unix_ns=now), secret)]

    return the_one


# -- The parts of a look that a list of jobs and the exporter keep, made where the job is followed


HEALTH, SERIES = "health", "series"
"""The kinds of facts that a process of another user can be asked for."""


@dataclass(frozen=True, slots=True)
class JobSeries:
    """The parts of one look that the exporter keeps. `tally` None: another process keeps it."""

    tally: Tally | None
    samples: tuple[Sample, ...]


def health_digest(
    _entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, _before: Health | None
) -> Health:
    """The health of a job, for a list."""
    return health_of(verdict, snapshot)


def series_digest(
    entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, before: JobSeries | None
) -> JobSeries:
    """The series of one job, made on the thread of the fleet; a scrape only reads them."""
    tally = tally_of(snapshot, before.tally if before is not None else None, chosen())
    about = {"script": os.path.basename(entry.script), "host": entry.host, "user": own_user()}
    if entry.sender != registry.ELSEWHERE:
        about["started_unix_ns"] = str(entry.started_unix_ns)
    return JobSeries(tally, series_of(snapshot, verdict, tally, about, len(verdict.muted)))


@functools.cache
def own_user() -> str:
    """The name of the user who runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# -- Root: the live jobs of all users of this host
#
# Root reads nothing that another user can write: no job file, no key, no record of a relay. For
# each user whose relay runs here it starts a process with that user's rights, which follows the
# jobs and writes one line of JSON a second (`ddtop.cli.user_jobs`). The lines are checked: their
# length, the number of jobs, the families and the labels are bounded.


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
    jobs: tuple[_HostJob, ...]
    problem: str | None = None


class _HostJob(msgspec.Struct, frozen=True):
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

    def _job(self, one: _HostJob) -> FleetJob[T]:
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


# -- The health of all live jobs, for the list of jobs and for `ddtop jobs`


HEALTH_ANSWER_S = 3.5
"""After this time a relay that does not answer counts as not heard."""


@contextlib.contextmanager
def others() -> Iterator[OtherUsers[Health] | None]:
    """The live jobs of the other users of this host, while the block runs; None but for root."""
    if not is_root():
        yield None
        return
    found = OtherUsers(HEALTH, health_in)
    found.start()
    try:
        yield found
    finally:
        found.close()


class Followed:
    """The health of each live job, by name and run; called from any thread."""

    def __init__(self, fleet: Fleet[Health], others: OtherUsers[Health] | None) -> None:
        self._fleet, self._others = fleet, others

    def __call__(self) -> Mapping[tuple[str, str], Health]:
        """The newest results."""
        jobs = [*self._fleet.jobs(), *(self._others.jobs() if self._others else ())]
        return {(one.entry.job, one.entry.run): health_now(one) for one in known(jobs)}

    def entries(self) -> list[registry.JobEntry]:
        """The jobs of other users."""
        return [one.entry for one in self._others.jobs()] if self._others is not None else []


@contextlib.contextmanager
def followed() -> Iterator[Followed]:
    """Follow the live jobs while the block runs."""
    fleet: Fleet[Health]
    with following(own_jobs, health_digest) as fleet, others() as found:
        yield Followed(fleet, found)


def known(jobs: Iterable[FleetJob[Health]]) -> Iterable[FleetJob[Health]]:
    """The jobs with known health."""
    return [one for one in jobs if one.settled or one.contact is not None]


def health_now(job: FleetJob[Health]) -> Health:
    """The health of one job; unknown while its relay is not heard."""
    if job.contact is None and job.looks and not job.settled and _is_ok(job.value):
        # The first looks at a hanging job find nothing.
        return Health(UNKNOWN, sentence="not known yet: it is being looked at", age_s=job.age_s)
    if job.contact is not None or job.value is None:
        return Health(UNKNOWN, sentence=job.contact, age_s=job.age_s if job.looks else None)
    return replace(job.value, age_s=job.age_s)


def _is_ok(value: Health | None) -> bool:
    return value is not None and value.word == OK


def healths(entries: Iterable[registry.JobEntry]) -> list[Health]:
    """The health of each of these jobs, or its health when it ended. Live ones are asked in
    parallel."""
    from ddtop.cli.look import health

    entries, now = list(entries), time.time_ns()
    living = [one for one in entries if one.live(now) or one.reachable(now)]
    found: dict[registry.JobEntry, Health] = {}
    if living:
        targets = [Target(one, secret) for secret in [registry.secret()] for one in living]
        with following(lambda: targets, health_digest) as fleet:
            jobs = fleet.wait(HEALTH_ANSWER_S)
            if any(one.looks and not one.settled and one.contact is None for one in jobs):
                # On a busy host.
                jobs = fleet.wait(HEALTH_ANSWER_S)
            found = {one.entry: health_now(one) for one in jobs}
    asked = {id(one) for one in living}
    return [found.get(one, Health(UNKNOWN)) if id(one) in asked else health(one) for one in entries]


# -- The jobs of this user as a table and as JSON


Rows = list[tuple[Listed, Health]]

OTHERS_S = 10.0
"""The time for other users' jobs: for each user a process is started that looks at them, which
takes 2 s."""
NAME_SHOWN = 40
"""Characters of a job's name in the table: a unique prefix is enough to attach."""


def table(entries: list[registry.JobEntry], parts: bool = False) -> list[str]:
    """One line per job: name, live or how it ended, ranks, host or number of hosts, script, age.

    `parts`: one line for each host of a job.
    """
    from ddtop.words.units import duration

    now = time.time_ns()
    rows = [("JOB", "STATE", "RANKS", "HOST", "SCRIPT", "STARTED")]
    for one in _listed(entries, parts, now):
        entry = one.entry
        ended = entry.ended_reason or ("ended" if entry.ended_unix_ns else "lost")
        ranks = f"{one.reporting}/{entry.world_size}" if one.live else str(entry.world_size)
        alone = not parts or entry.role == ALONE
        host = hosts_text(one) if alone else f"{entry.host} ({entry.role})"
        age = f"{duration((now - entry.started_unix_ns) / 1e9)} ago"
        state = "live" if one.live else ended
        rows.append((entry.job[:NAME_SHOWN], state, ranks, host, entry.script, age))
    cleaned = [tuple(clean(cell) for cell in row) for row in rows]
    widths = [max(cell_width(row[column]) for row in cleaned) for column in range(len(rows[0]))]
    return [
        "  ".join(fit(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cleaned
    ]


def table_with_health(entries: list[registry.JobEntry], width: int, glyphs: Glyphs) -> list[str]:
    """The same with the health of each job: one row per job, at most so many columns wide."""
    from ddtop.present import jobs

    rows, problems = _with_others(jobs.listed(entries, time.time_ns()))
    return [*rows_as_table(rows, width, glyphs), *problems]


def rows_as_table(rows: Rows, width: int, glyphs: Glyphs) -> list[str]:
    """One line a job below the titles, at most so many columns wide."""
    from ddtop.present import jobs

    now = time.time_ns()
    shown = jobs.columns([one for one, _ in rows], width)
    lines = [shown.titles()]
    lines += [jobs.row(one, shown, health, now, glyphs) for one, health in rows]
    return [plain(line).rstrip() for line in lines]


def _with_others(own: list[Listed]) -> tuple[Rows, list[str]]:
    """These jobs with their health; for root, the jobs of this host's other users follow the live
    ones. Also a sentence for each user whose jobs are not known.
    """
    with others() as elsewhere:
        rows = list(zip(own, healths(one.entry for one in own), strict=True))
        if elsewhere is None:
            return rows, []
        known = elsewhere.wait(OTHERS_S)
        problems = elsewhere.problems
    theirs = [
        (Listed(one.entry, True, one.entry.reporting, (one.entry.host,)), health_now(one))
        for one in known
    ]
    live = sum(one.live for one in own)
    return [*rows[:live], *theirs, *rows[live:]], problems


def jobs_json(parts: bool = False) -> dict[str, object]:
    """The schema `ddtop.jobs/1`: one object a job. `parts`: one object a host of a job."""
    rows, problems = _with_others(_listed(registry.read_entries(), parts, time.time_ns()))
    for problem in problems:
        click.echo(problem, err=True)
    return json_of(rows)


def json_of(rows: Rows) -> dict[str, object]:
    """The schema `ddtop.jobs/1` of these jobs."""
    return {"schema": JOBS_SCHEMA, "jobs": [_job(one, health) for one, health in rows]}


def _job(one: Listed, health: Health) -> dict[str, object]:
    live = one.live
    user, name = user_of(one.entry.job)
    return {
        "job": name,
        "user": user or own_user(),
        "live": live,
        "world_size": health.world_size or one.entry.world_size,
        "reporting": (one.reporting if health.reporting is None else health.reporting)
        if live
        else 0,
        "hosts": list(one.hosts),
        "script": one.entry.script,
        "health": health.word,
        "kind": health.kind,
        "summary": health.sentence,
        "steps_per_s": health.steps_per_s,
        "no_progress_s": health.still_s,
        "health_age_s": health.age_s,
        "started_unix_ns": one.entry.started_unix_ns,
        "role": one.entry.role,
    }


def _listed(entries: Iterable[registry.JobEntry], parts: bool, now_unix_ns: int) -> list[Listed]:
    if not parts:
        return listed(entries, now_unix_ns)
    return [Listed(one, one.live(now_unix_ns), one.reporting, (one.host,)) for one in entries]
