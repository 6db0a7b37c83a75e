"""The free space of the file systems that the ranks of a host use.

The folder of a rank may be on a file server, so each is read on a separate thread. The folders are
found from links in /proc, which access no file system. They are the working folder, TMPDIR, the
folders of files that a rank had open for writing, and those in which it has saved a checkpoint. A
rank with its own mount namespace (a container) has other file systems at its paths, so they are
read through /proc/PID/root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ddtop.patience import CALLS_MAX, FILE_CALL_SLOW_S, LatestResult
from ddtop.procfs import link, names_in, read, status_of
from ddtop.wire.records import Disk, Hello

DISKS_MAX, FOLDERS_MAX = 8, 12
SHM = "/dev/shm"
RANKS_A_LOOK, FILES_MAX = 4, 512
"""Ranks whose open files are read in one look, in turn, and the number of files of each. Each file
costs a readlink and a short read, 10 us together."""
_NO_DISKS = ("/dev/", "/proc/", "/sys/", "/memfd:")

_Sized = tuple[int, int, int, int, int]
"""Device, total and free bytes, inodes and free ones."""
DISK_FRESH_S = 15.0
"""File systems are asked each five seconds. What three answers do not renew is unknown."""
DISK_WRITTEN_S = 900.0
"""A folder in which a file was open for writing is watched for this time. Checkpoints are
written every few minutes."""


@dataclass
class Use:
    """One folder that ranks use.

    `path`: as the ranks see it; `where`: the path to read here. `ranks`: whose folder it is, or who
    had a file open there.
    """

    path: str
    where: str
    use: str
    ranks: set[int] = field(default_factory=set)
    seen: float = 0.0

    def add(self, rank: int | None) -> None:
        """Another rank uses it."""
        self.ranks |= set() if rank is None else {rank}


class DiskWatch:
    """Used by the relay's loop only; times are its monotonic s. Source: statvfs(3).

    Check: `df -h`, `df -i`.
    """

    def __init__(self) -> None:
        self._asked: dict[str, LatestResult[_Sized]] = {}
        self._written: dict[str, Use] = {}
        self._turn = 0
        self._here = link("self", "ns/mnt")

    def ask(self, hellos: Iterable[Hello], now: float) -> dict[str, Use]:
        """Begin to read the ranks' folders. Returns the use of each."""
        ranks = tuple(hellos)
        uses: dict[str, Use] = {}
        outside: dict[str, int] = {}
        for hello in ranks:
            for path, use in (
                (link(hello.pid, "cwd"), "cwd"),
                (hello.environment.get("TMPDIR", "/tmp"), "TMPDIR"),
            ):
                where = path and self._path_from_here(hello.pid, path, outside)
                if path is not None and where and (where in uses or len(uses) < DISKS_MAX):
                    uses.setdefault(where, Use(path, where, use)).add(hello.rank)
        self._look_at_files(ranks, outside, now)
        for written in self._written.values():
            if len(uses) < FOLDERS_MAX:
                uses.setdefault(written.where, written)
        for path, latest_result in list(self._asked.items()):
            if path not in uses and not latest_result.waiting_s(now):
                del self._asked[path]
        for path in uses:
            if path not in self._asked and len(self._asked) < CALLS_MAX:
                self._asked[path] = LatestResult(partial(_size, path))
            if path in self._asked:
                self._asked[path].ask(now)
        return uses

    def _path_from_here(self, pid: int, path: str, outside: dict[str, int]) -> str:
        """The path as the relay reaches it.

        In another mount namespace the path goes through a process of that namespace.
        """
        namespace = link(pid, "ns/mnt")
        if namespace is None or namespace == self._here:
            return path
        return f"/proc/{outside.setdefault(namespace, pid)}/root{path}"

    def _look_at_files(self, ranks: tuple[Hello, ...], outside: dict[str, int], now: float) -> None:
        oldest = now - DISK_WRITTEN_S
        for where in [where for where, one in self._written.items() if one.seen < oldest]:
            del self._written[where]
        # Rank 0 first, because it writes most checkpoints; the others in turn.
        first = [rank for rank in ranks if not rank.rank]
        others = [rank for rank in ranks if rank.rank]
        chosen = [
            others[(self._turn + at) % len(others)] for at in range(min(RANKS_A_LOOK, len(others)))
        ]
        self._turn += RANKS_A_LOOK
        for hello in (*first[:1], *chosen):
            for folder in (*_written_folders(hello.pid), *hello.saves_to):
                where = self._path_from_here(hello.pid, folder, outside)
                use = self._written.get(where)
                if use is None:
                    if len(self._written) >= FOLDERS_MAX:
                        continue
                    use = self._written[where] = Use(folder, where, "files")
                use.seen = now
                use.add(hello.rank)

    def disks(self, uses: dict[str, Use], now: float) -> tuple[Disk, ...]:
        """Each file system once, as it was when it last answered.

        A file system that has not answered lately is left out.
        """
        found: dict[int, Disk] = {}
        for where, use in uses.items():
            asked = self._asked.get(where)
            sized = asked.result(now, DISK_FRESH_S) if asked is not None else None
            if sized is not None:
                first = found.get(sized[0]) or Disk(use.path, use.use, *sized[1:])
                ranks = tuple(sorted({*first.ranks, *use.ranks}))
                found[sized[0]] = msgspec.structs.replace(first, ranks=ranks)
        # It is memory of this host, without a server.
        with contextlib.suppress(OSError):
            if (shm := _size(SHM)) is not None:
                found.setdefault(shm[0], Disk(SHM, "shm", *shm[1:]))
        return tuple(found.values())[:DISKS_MAX]

    def unanswered_paths(self, now: float) -> tuple[tuple[str, float], ...]:
        """The paths whose file system has not answered for more than a moment, and for how long
        (s).
        """
        waiting = ((path, one.waiting_s(now)) for path, one in self._asked.items())
        return tuple((path, seconds) for path, seconds in waiting if seconds > FILE_CALL_SLOW_S)


def _written_folders(pid: int) -> Iterator[str]:
    """The folders of regular files that it has open for writing.

    Check: `ls -l /proc/PID/fd`, `grep flags /proc/PID/fdinfo/*`.
    """
    found: set[str] = set()
    for number in (names_in(pid, "fd") or ())[:FILES_MAX]:
        path = link(pid, f"fd/{number}") or ""
        if not path.startswith("/") or path.startswith(_NO_DISKS) or path.endswith(" (deleted)"):
            continue
        folder = os.path.dirname(path)
        if folder not in found and _is_for_writing(pid, number):
            found.add(folder)
            yield folder


def _is_for_writing(pid: int, number: str) -> bool:
    text = read(pid, f"fdinfo/{number}") or b""
    flags = status_of(text.decode("ascii", "replace"), "flags")
    return flags is not None and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _size(path: str) -> _Sized | None:
    """None if it is read-only."""
    space, device = os.statvfs(path), os.stat(path).st_dev
    if space.f_flag & os.ST_RDONLY or not space.f_blocks:
        return None
    size = space.f_frsize
    return device, space.f_blocks * size, space.f_bavail * size, space.f_files, space.f_favail
