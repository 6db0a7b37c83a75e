"""The ranks' processes seen from outside: /proc once a second, pidfds for their ends, the state pages for their last words.

psutil reads the host's numbers; a rank's own line is read by hand, because one read of /proc/PID/stat has all of it and
psutil would take four.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from ddtop import registry
from ddtop.relay.exits import Ending, ending
from ddtop.wire.page import PAGE_BYTES, PageError, PageView, read_page
from ddtop.wire.records import Hello, ProcessState

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CHILDREN_EVERY = 2
"""Children are looked up every second look: a walk over all threads of all ranks is the dearest part."""
DESCENDANTS_MAX = 256
JOIN_FILE_S = 3600.0
"""Plain ranks join within two minutes; after an hour nobody asks for the file again."""


@dataclass
class Watched:
    """One rank's process."""

    hello: Hello
    pidfd: int
    heard_mono_ns: int = 0
    children: tuple[int, ...] = ()
    looks: int = 0
    last_state: str | None = None
    oom_kills: int | None = None
    cgroup_events: Path | None = None
    page: PageView | None = field(default=None)


def watch(hello: Hello, now_mono_ns: int) -> Watched | None:
    """Begin to watch the process that said Hello; None if it is not (any more) the one that said it."""
    try:
        pidfd = os.pidfd_open(hello.pid)
    except (OSError, AttributeError):
        return None
    if registry.start_ticks(hello.pid) != hello.start_ticks:
        os.close(pidfd)
        return None
    watched = Watched(hello, pidfd, now_mono_ns)
    watched.cgroup_events = _cgroup_events(hello.pid)
    watched.oom_kills = _oom_kills(watched.cgroup_events)
    return watched


def look(watched: Watched, now_mono_ns: int) -> ProcessState | None:
    """The process now; None if it cannot be read. Check: `ps -o stat,wchan,rss,nlwp -p PID`."""
    pid = watched.hello.pid
    fields = _stat(pid)
    if fields is None:
        return None
    if watched.looks % CHILDREN_EVERY == 0:
        watched.children = _descendants(pid)
    watched.looks += 1
    watched.last_state = fields[0]
    # utime, stime and those of children that were waited for, then the living children's own.
    cpu = sum(int(value) for value in fields[11:15])
    for child in watched.children:
        theirs = _stat(child)
        cpu += int(theirs[11]) + int(theirs[12]) if theirs else 0
    return ProcessState(
        rank=watched.hello.rank,
        pid=pid,
        state=fields[0],
        wchan=_wchan(pid),
        cpu_ns=cpu * _TICK_NS,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        threads=int(fields[17]),
        io_bytes=_io_bytes(pid),
        children=len(watched.children),
        agent_age_ms=(now_mono_ns - watched.heard_mono_ns) // 1_000_000,
        switches=_switches(pid),
    )


def last_words(watched: Watched) -> tuple[Ending, bool | None, PageView | None, tuple[int, ...]]:
    """(how it ended, OOM killer or not, its state page, children that outlived it)."""
    how = ending(watched.pidfd, watched.hello.pid)
    before, now = watched.oom_kills, _oom_kills(watched.cgroup_events)
    oom = None if before is None or now is None else now > before and how.signal == 9
    alive = tuple(pid for pid in watched.children if registry.start_ticks(pid) is not None)
    return how, oom, page(watched.hello), alive


def forget(watched: Watched) -> None:
    """Stop watching: close the pidfd, remove the state page that the process has left behind."""
    os.close(watched.pidfd)
    path = page_path(watched.hello)
    if path is not None:
        path.unlink(missing_ok=True)


def page_path(hello: Hello) -> Path | None:
    """The page's file, if its name is one that an agent of this user makes: a frame must not make us unlink others."""
    if not hello.page_path:
        return None
    path = Path(hello.page_path)
    expected = f"{hello.pid}-{hello.start_ticks}.page"
    folder = f"ddtop-pages-{os.getuid()}"
    fits = path.name == expected and path.parent.name == folder and str(path.parent.parent) in ("/dev/shm", "/tmp")
    return path if fits else None


def page(hello: Hello) -> PageView | None:
    """What the state page says; None if there is none or it cannot be read."""
    path = page_path(hello)
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return read_page(file.read(PAGE_BYTES))
    except (OSError, PageError):
        return None


def abandoned() -> list[Path]:
    """Pages whose process is gone, of this user's other jobs, and old join files: left behind where a relay was killed.

    A rank that died an instant ago is among them, and its own relay has yet to read its last words: remove them later.
    """
    found = []
    for path in registry.runtime_dir().glob("plain-*.json"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > JOIN_FILE_S:
                found.append(path)
    for folder in (Path("/dev/shm"), Path("/tmp")):
        for path in (folder / f"ddtop-pages-{os.getuid()}").glob("*.page"):
            pid, _, ticks = path.stem.partition("-")
            if pid.isdigit() and ticks.isdigit() and registry.start_ticks(int(pid)) != int(ticks):
                found.append(path)
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
    except (OSError, ValueError):
        return None
    return fields if len(fields) > 21 else None


def _wchan(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return None
    return text if text not in ("", "0") else None


def _switches(pid: int) -> int | None:
    """Voluntary context switches of the main thread. Check: `grep ^vol /proc/PID/task/PID/status`."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/status").read_bytes()
        return int(text[text.rindex(b"\nvoluntary_ctxt_switches:") + 25 :].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None


def _io_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().split()
        # rchar and wchar, and what came from or went to storage: pages of a mapped file are in neither of the first.
        return sum(int(lines[at]) for at in (1, 3, 9, 11))
    except (OSError, ValueError, IndexError):
        return None


def _descendants(pid: int) -> tuple[int, ...]:
    found: list[int] = []
    open_pids = [pid]
    while open_pids and len(found) < DESCENDANTS_MAX:
        try:
            lists = [path.read_text() for path in Path(f"/proc/{open_pids.pop()}/task").glob("*/children")]
        except OSError:
            continue
        children = [int(word) for text in lists for word in text.split()]
        found += children
        open_pids += children
    return tuple(found[:DESCENDANTS_MAX])


def _cgroup_events(pid: int) -> Path | None:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found = Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        elif number == "0":
            found = Path(f"/sys/fs/cgroup{path}/memory.events")
        else:
            continue
        if found.exists():
            return found
    return None


def _oom_kills(events: Path | None) -> int | None:
    if events is None:
        return None
    try:
        words = events.read_text().split()
    except OSError:
        return None
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else None
