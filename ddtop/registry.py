"""The registry of jobs: one JSON file per job and host in the state folder, the names of all files
of a run, and the search for the job that a user means."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ddtop import private
from ddtop.folders import (
    RegistryError,
    call_patiently,
    identity_of,
    replace,
    runtime_dir,
    runtime_place,
    secret,
    state_dir,
    state_dir_text,
)
from ddtop.procfs import FIRST_PID_NAMESPACE, link, stat_fields

__all__ = (
    "RegistryError",
    "runtime_dir",
    "runtime_place",
    "secret",
    "state_dir",
)  # those of `folders` that others find here

HEARTBEAT_S = 15.0
"""How often a relay renews `heartbeat_unix_ns`."""
REVIVED_S = 60.0
"""Agents start another relay 10 s after the end of theirs; a job that has none after this long
has no agents.
"""
LIVE_S = 3 * HEARTBEAT_S
"""A job whose heartbeat is older is not live: one missed heartbeat is a busy file server, three
are a dead relay.
"""
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path on Linux, without its final zero
JOB_NAME_MAX = 64
ENDED_JOBS_KEPT = 50
ENDED_KEPT_S = 14 * 86400.0
"""Post-mortems are read within days, or after a holiday."""
JOURNALS_BYTES_MAX = 1 << 30
"""All journals together, but for those of a living job's parts: homes have quotas."""
RANKS_LISTED = 512
"""How many ranks of a host are listed in the job file with their pids: 20 bytes each."""
ABANDONED_S = 3600.0
"""A temporary file that was never renamed is abandoned after this time."""


class JobEntry(msgspec.Struct, frozen=True):
    """One job on one host, as its relay wrote it down.

    `role`: alone, hub or leaf (`wire.hosts`). `address`, `port`: where the relay listens for its
    own host; `public_address`, `public_port`: for other hosts, of a hub. `part_of`: of a leaf that
    has found its hub, the hub's run; `hub`: HOST:PORT where it is. `hosts`: of a hub, the names of
    the other hosts, the first 64. `ranks`: (pid, start ticks) of the living ranks of this host, the
    first RANKS_LISTED: a view looks at them itself where the relay is not heard.
    """

    schema: str
    job: str
    run: str
    host: str
    sender: str
    relay_pid: int
    relay_start_ticks: int
    address: str
    port: int
    socket: str
    script: str
    world_size: int
    reporting: int
    started_unix_ns: int
    heartbeat_unix_ns: int
    ended_unix_ns: int | None = None
    ended_reason: str | None = None
    last_state: str | None = None
    role: str = "alone"
    public_address: str | None = None
    public_port: int | None = None
    part_of: str | None = None
    hub: str | None = None
    hosts: tuple[str, ...] = ()
    ranks: tuple[tuple[int, int], ...] = ()

    def endpoint(self) -> tuple[str, int]:
        """(address, port) of the relay as it is reached from this host; the address may be a
        name.
        """
        if self.public_address and self.public_port and self.sender != host_identity():
            return self.public_address, self.public_port
        return self.address, self.port

    def live(self, now_unix_ns: int) -> bool:
        """The job has not ended, as far as is known: its relay is there, or a rank of this host
        lives on without one.
        """
        if self.ended_unix_ns is None and self.reachable(now_unix_ns):
            return True
        return bool(self.living_ranks())

    def reachable(self, now_unix_ns: int) -> bool:
        """Its relay can be asked: on this host its process exists, though it may be stopped;
        elsewhere its heartbeat is fresh.
        """
        if self.is_here:
            return self.relay_state() is not None
        return now_unix_ns - self.heartbeat_unix_ns <= LIVE_S * 1e9

    def over(self, now_unix_ns: int) -> bool:
        """There will be no more reports: its relay is gone, no rank lives, and the run ended or no
        agent has started another relay.
        """
        if self.reachable(now_unix_ns) or self.living_ranks():
            return False
        return (
            self.ended_unix_ns is not None or now_unix_ns - self.heartbeat_unix_ns > REVIVED_S * 1e9
        )

    @property
    def is_here(self) -> bool:
        """Its relay runs, or ran, on this host: its processes can be looked at."""
        return self.sender == host_identity()

    def relay_state(self) -> str | None:
        """The letter of its process's state (`ps -o stat`); None where it is gone, or on another
        host.
        """
        return process_state(self.relay_pid, self.relay_start_ticks) if self.is_here else None

    def living_ranks(self) -> int | None:
        """How many of the ranks that its relay last wrote down live on this host; None where
        that cannot be seen from here.
        """
        if not self.is_here:
            return None
        return sum(start_ticks(pid) == ticks for pid, ticks in self.ranks)


SCHEMA = "ddtop.job/1"
ELSEWHERE = "elsewhere"
"""Instead of a host's identity: of a relay that is known by its port alone."""
ENTRY_BYTES_MAX = 1 << 16
_ADDRESS = re.compile(r"[A-Za-z0-9.:%_\[\]-]{0,260}")


def clean_job_name(name: str) -> str:
    """The name in a form that is safe in file names: letters, digits and `._-`, at most 64
    characters."""
    kept = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name[: 4 * JOB_NAME_MAX]
    )
    kept = kept.strip(".-")[:JOB_NAME_MAX]
    return kept or "job"


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid, its identity.

    None if it is gone or a zombie. Source: field 22 of /proc/PID/stat.
    """
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def process_state(pid: int, ticks: int) -> str | None:
    """The state letter of the process with this pid and start time; None where it is gone.

    Source: /proc/PID/stat.
    """
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX" or int(fields[19]) != ticks:
        return None
    return fields[0]


def host_identity() -> str:
    """The host as ranks share it: boot, pid namespace and network namespace, 12 hex digits.

    A host name is not enough: containers repeat them, and two containers on one host cannot see
    each other's pids.
    """
    return identity_of("ns/pid", "ns/net")


def relay_identity(run: str) -> str:
    """One relay of this host, as the ranks of its run know it too: of several launchers of one job
    on a host each has its own, which counts its own restarts and may be lost alone. The host's
    identity stands before the dot.
    """
    return f"{host_identity()}.{hashlib.sha256(run.encode()).hexdigest()[:6]}"


def pages_folder() -> str:
    """Name of the folder of state pages in /dev/shm or /tmp, which containers may share (docker run
    --ipc=host).

    A page is named after its process, and in another pid namespace that is another one, or none:
    its page would be swept away.
    """
    namespace = link("self", "ns/pid") or FIRST_PID_NAMESPACE
    return f"ddtop-pages-{os.getuid()}" + (
        f"-{namespace.strip('pid:[]')}" if namespace != FIRST_PID_NAMESPACE else ""
    )


def run_hash(job: str, run: str, sender: str | None = None) -> str:
    """The short name of one run's socket, lock and files; `sender`: the host's identity, where
    it is not this one.
    """
    return hashlib.sha256(f"{job}|{run}|{sender or host_identity()}".encode()).hexdigest()[:16]


def socket_path(job: str, run: str) -> Path:
    """The unix socket of the relay of this run on this host.

    Raises:
        RegistryError: the path is too long for a unix socket.
    """
    path = runtime_dir() / f"{run_hash(job, run)}.link"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise RegistryError(
            f"the socket path {path} is longer than {SOCKET_PATH_BYTES_MAX} bytes; set"
            " DDTOP_RUNTIME to a shorter folder"
        )
    return path


def entry_path(entry: JobEntry) -> Path:
    """The job file of an entry. After a reboot, or on a shared home, it is not this host's."""
    return state_dir() / f"{entry.job}-{run_hash(entry.job, entry.run, entry.sender)}.json"


def at_port(job: str, host: str, port: int) -> JobEntry:
    """The job whose relay listens there, as far as it is known without its job file; it is asked
    there, and nowhere else.
    """
    now = time.time_ns()
    # The name comes from the process that listens there, and names become names of files.
    job = clean_job_name(job)
    return JobEntry(
        SCHEMA, job, f"at-{host}-{port}", host, ELSEWHERE, 0, 0, host, port, "", "", 0, 0, now, now
    )


def of_run(job: str, run: str, sender: str | None = None) -> JobEntry | None:
    """The job file of this run: that of the host with this identity, else its hub's, else any.

    Launchers of MPI give one name to the run on all hosts.

    Raises:
        RegistryError: the state folder cannot be used.
    """
    same = [entry for entry in read_entries() if (entry.job, entry.run) == (job, run)]
    return min(same, key=lambda entry: (entry.sender != sender, entry.role != "hub"), default=None)


def left_path(entry: JobEntry) -> Path:
    """The path of the last state that its relay leaves at its end."""
    return Path(entry.last_state or last_state_path(entry.job, entry.run, entry.sender))


def last_state_path(job: str, run: str, sender: str | None = None) -> Path:
    """Where the relay on this host (or on that with the identity `sender`) leaves the last state
    of a run.
    """
    return state_dir() / f"{job}-{run_hash(job, run, sender)}.last"


def journal_path(job: str, run: str, sender: str | None = None) -> Path:
    """Where that relay keeps the journal of a run; its older half has `.1` behind its name."""
    return state_dir() / f"{job}-{run_hash(job, run, sender)}.journal"


JOIN_FILE = "plain-runs.json"
"""In the runtime folder: which plain ranks have joined which run."""


def roster_path(job: str, run: str) -> Path:
    """Where a relay writes down whom it watches, for the relay that takes over if it dies."""
    return runtime_dir() / f"{run_hash(job, run)}.roster"


def helper_file(parent_pid: int, pid: int, ticks: int | str) -> str:
    """Name of the file in the runtime folder in which a child that is not a rank leaves its
    exception; `ticks` may be `*`.
    """
    return f"helper-{parent_pid}-{pid}-{ticks}.json"


def write_entry(entry: JobEntry) -> None:
    """Write an entry to its file atomically.

    Raises:
        RegistryError: the state folder cannot be written.
    """
    replace(entry_path(entry), msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n")


def entry_of(data: bytes) -> JobEntry:
    """The job file with these bytes, on this host or from another: its name is one that can stand
    in a file's name.

    Raises:
        ValueError: it is none of ours. RecursionError: it is nested without end.
    """
    entry = msgspec.json.decode(data, type=JobEntry)
    numbers = (entry.started_unix_ns, entry.heartbeat_unix_ns, entry.ended_unix_ns or 0)
    fits = (
        entry.schema == SCHEMA
        and entry.job == clean_job_name(entry.job)
        and all(0 <= port <= 0xFFFF for port in (entry.port, entry.public_port or 0))
        and all(
            _ADDRESS.fullmatch(text or "")
            for text in (entry.address, entry.public_address, entry.hub)
        )
        and all(0 <= number < 1 << 63 for number in (*numbers, entry.world_size, entry.reporting))
    )
    if not fits:
        raise ValueError("not a job file of ours")
    return entry


def read_entries() -> list[JobEntry]:
    """All jobs of the state folder, newest first. Files that are not job files of ours are left
    out.

    Raises:
        RegistryError: the folder cannot be used, or does not answer.
    """
    return call_patiently(_read_entries, state_dir_text)


def refused_files() -> list[str]:
    """The names of files in the place of job files that are not read as such: larger than 64 KiB,
    damaged, of another version, or not this user's.

    Raises:
        RegistryError: the folder cannot be used, or does not answer.
    """
    return call_patiently(
        lambda: sorted(path.name for path, entry in _job_files() if entry is None), state_dir_text
    )


def _read_entries() -> list[JobEntry]:
    entries = [entry for _, entry in _job_files() if entry is not None]
    return sorted(entries, key=lambda entry: entry.started_unix_ns, reverse=True)


def _job_files() -> Iterator[tuple[Path, JobEntry | None]]:
    for path in state_dir().glob("*.json"):
        entry = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            data = private.read(path, ENTRY_BYTES_MAX + 1)
            entry = entry_of(data) if len(data) <= ENTRY_BYTES_MAX else None
        # A file that has vanished meanwhile belongs to a removed job.
        if entry is not None or path.exists():
            yield path, entry


def remove(entry: JobEntry) -> None:
    """Remove all files of a job."""
    path = entry_path(entry)
    # The job file last: without it the others could only go by their age.
    for suffix in (".last", ".journal", ".journal.1", ".json"):
        path.with_name(path.stem + suffix).unlink(missing_ok=True)


def prune_ended(now_unix_ns: int) -> None:
    """Remove the files of ended jobs, the oldest first: those too many, too old, or with too large
    journals.

    Files of a job whose relay can be asked are never removed, and the journals that its other hosts
    write do not count against the limit. Files without a job file are removed when they are too
    old.
    """
    files = _files_by_stem()
    live_bytes, ended = 0, []
    for entry in read_entries():
        stem = entry_path(entry).stem
        size = sum(found.st_size for found in files.pop(stem, {}).values())
        if entry.reachable(now_unix_ns) or entry.living_ranks():
            live_bytes += size if entry.part_of is None else 0
        else:
            ended.append((entry.ended_unix_ns or entry.heartbeat_unix_ns, size, entry))
    room, numbers = JOURNALS_BYTES_MAX - live_bytes, {False: 0, True: 0}
    # A hub's files have the facts of all hosts. So the files of its leaves come after every job,
    # and never cause the removal of one.
    for at, size, entry in sorted(ended, key=lambda one: (one[2].part_of is not None, -one[0])):
        room -= size
        part = entry.part_of is not None
        numbers[part] += 1
        if numbers[part] > ENDED_JOBS_KEPT or now_unix_ns - at > ENDED_KEPT_S * 1e9 or room < 0:
            remove(entry)
    for stem, own in files.items():
        kept_s = ABANDONED_S if stem.startswith(".new-") else ENDED_KEPT_S
        for path, found in own.items():
            if path.suffix != ".json" and now_unix_ns - found.st_mtime_ns > kept_s * 1e9:
                path.unlink(missing_ok=True)


def _files_by_stem() -> dict[str, dict[Path, os.stat_result]]:
    """What belongs to jobs in the state folder: job file, last state and both halves of the
    journal.
    """
    found: dict[str, dict[Path, os.stat_result]] = {}
    with os.scandir(state_dir()) as entries:
        for file in entries:
            stem = file.name.removesuffix(".1")
            for suffix in (".json", ".last", ".journal"):
                if stem.endswith(suffix) or file.name.startswith(".new-"):
                    with contextlib.suppress(OSError):
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.setdefault(stem.removesuffix(suffix), {})[Path(file.path)] = (
                                status
                            )
                    break
    return found


class UnknownJobError(Exception):
    """No job, no such job, or several; `entries` are those that could have been meant."""

    def __init__(self, text: str, entries: list[JobEntry], ambiguous: bool = False) -> None:
        super().__init__(text)
        self.entries = entries
        self.ambiguous = ambiguous


def find_job(name: str | None, now_unix_ns: int) -> JobEntry:
    """The job with that name or unique prefix; without a name the only live job.

    Of several runs with one name the newest is meant.

    Raises:
        UnknownJobError: with the jobs there are.
        RegistryError: the state folder cannot be used.
    """
    return choose_job(read_entries(), name, now_unix_ns)


def without_parts(entries: list[JobEntry], now_unix_ns: int) -> list[JobEntry]:
    """The jobs without the parts of other jobs in the list. A leaf stays only while it lives and
    its hub cannot be asked.
    """
    hubs: dict[tuple[str, str], bool] = {}
    for entry in entries:
        if entry.role == "hub":
            key = (entry.job, entry.run)
            hubs[key] = hubs.get(key, False) or entry.reachable(now_unix_ns)
    kept = []
    for entry in entries:
        can_ask = (
            hubs.get((entry.job, entry.part_of)) if entry.part_of and entry.role != "hub" else None
        )
        if can_ask is None or (not can_ask and entry.live(now_unix_ns)):
            kept.append(entry)
    return kept


def choose_job(entries: Iterable[JobEntry], name: str | None, now_unix_ns: int) -> JobEntry:
    """The job that a name or unique prefix selects among these (newest first); without a name the
    only live job.

    Raises:
        UnknownJobError: with the jobs there are.
    """
    newest: dict[str, JobEntry] = {}
    for entry in without_parts(list(entries), now_unix_ns):
        kept = newest.setdefault(entry.job, entry)
        if not kept.live(now_unix_ns) and entry.live(now_unix_ns):
            newest[entry.job] = entry
    if name is None:
        live = [entry for entry in newest.values() if entry.live(now_unix_ns)]
        if len(live) == 1:
            return live[0]
        if live:
            raise UnknownJobError(
                f"{len(live)} jobs are live, name one of them", live, ambiguous=True
            )
        raise UnknownJobError("no live job found", list(newest.values()))
    if name in newest:
        return newest[name]
    found = [entry for key, entry in newest.items() if key.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownJobError(f"{name} may mean {len(found)} jobs", found, ambiguous=True)
    raise UnknownJobError(f"no job named {name[:JOB_NAME_MAX]}", list(newest.values()))
