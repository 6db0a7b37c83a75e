"""The processes of the ranks seen from outside.

/proc is read once a second, pidfds (or /proc) report their ends, the state pages have their last
words. psutil reads the numbers of the host. The line of a rank is read by hand, because one read of
/proc/PID/stat has all of it and psutil would take four.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddtop import private, registry
from ddtop.procfs import (
    CLOCK_TICK_NS,
    command_name,
    descendants,
    io_bytes,
    names_in,
    own_letter,
    read_stat,
    scheduled_ns,
    stack_start,
    stat_fields,
    status,
    status_of,
    switches,
    tasks,
    wchan,
)
from ddtop.relay.processes import cgroup, sockets
from ddtop.wire.mpi import MpiState, read_mpi
from ddtop.wire.page import PAGE_BYTES, STEP_AT, PageError, PageView, read_page
from ddtop.wire.records import Exit, Hello, Limit, ProcessLoad, ProcessState

# -- How a process ended that is not our child: pidfd, then PIDFD_GET_INFO, then the zombie in
#    /proc
#
# PIDFD_GET_INFO (Linux >= 6.15) answers after the parent has reaped the process. Before that, the
# last field of /proc/PID/stat is the wait status. Where neither can be read the answer is
# "unknown", never a guess. The kernel may give no pidfd (an old one, a seccomp filter, no
# descriptor left). Then the end of a process is read from /proc, too.


_INFO = struct.Struct(
    "<QQ11Ii"
)  # mask, cgroup id, 11 ids, exit code; 64 bytes, the first published size
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, size)
_TRIES, _BETWEEN_S = 10, 0.002
"""After the end of a process there is a moment in which neither source answers."""
GC_SHOWN_S = 0.5
"""A garbage collection is reported from this time on. It is seen once a second, so a
shorter one would seem to last that long."""
OOM_MARK_S = 30.0
"""The OOM killer's count is compared with the one of at least so long ago. A worker that it
killed an hour before explains nothing, and a process of many gigabytes takes seconds to end."""
OOM_RECENT_S = 120.0
"""A kill in the kernel's log explains a death for this time."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """Exit code or signal; neither if unknown. `how`: pidfd, zombie or unknown."""

    code: int | None
    signal: int | None
    how: str


def is_gone(pid: int, start_ticks: int) -> bool | None:
    """Whether the process that started then has ended.

    None where /proc cannot be read now, as with no descriptor left.

    A process lives as long as one of its threads, even if its main thread has ended. Check:
    `ps -o stat=,nlwp=,lstart= -p PID`.
    """
    try:
        fields = read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError):
        return None
    letter, threads, started = fields[0], int(fields[17]), int(fields[19])
    return started != start_ticks or (letter in ("Z", "X") and threads <= 1)


def ending(pidfd: int | None, pid: int, start_ticks: int | None = None) -> ProcessEnd:
    """How a process ended. Check: the launcher prints the same exit code.

    `pidfd`: readable; None if there is none and `is_gone` is true. `start_ticks`: of that process;
    None if its pid cannot have a new owner.
    """
    for _ in range(_TRIES if pidfd is not None else 1):
        status = _from_pidfd(pidfd) if pidfd is not None else None
        if status is not None:
            return _decoded(status, "pidfd")
        status = _from_zombie(pid, start_ticks)
        if status is not None:
            return _decoded(status, "zombie")
        if pidfd is not None:
            time.sleep(_BETWEEN_S)
    return ProcessEnd(None, None, "unknown")


def _from_pidfd(pidfd: int) -> int | None:
    buffer = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 13)))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    fields = _INFO.unpack(buffer)
    return int(fields[-1]) if fields[0] & _PIDFD_INFO_EXIT else None


def _from_zombie(pid: int, start_ticks: int | None) -> int | None:
    fields = stat_fields(pid)
    if fields is None or fields[0] != "Z":
        return None
    is_other = start_ticks is not None and int(fields[19]) != start_ticks
    return None if is_other else int(fields[-1])


def _decoded(status: int, how: str) -> ProcessEnd:
    if os.WIFSIGNALED(status):
        return ProcessEnd(None, os.WTERMSIG(status), how)
    return ProcessEnd(os.WEXITSTATUS(status), None, how)


# -- What the load of the host does to one process. Read from /proc and the cgroup files
#
# The cheap numbers are read at every look, the others every few looks: they cost a system call or
# more each, and change slowly.


SLOWLY_EVERY = 5
"""Looks (one a second) between two reads of the numbers that change slowly."""
THREADS_MAX = 256
"""Of at most this many threads of a process the waits for a CPU are read."""
_MAJOR_FAULTS = 9
"""Field 12 of /proc/PID/stat, counted from the third."""


@dataclass
class ProcessWatch:
    """What is remembered of one process between two looks."""

    looks: int = 0
    slow: ProcessLoad = field(default_factory=ProcessLoad)
    throttling: Path | None = None
    memory: Path | None = None
    delays: dict[str, int] = field(default_factory=dict)
    delays_ended: int = 0
    pids: Path | None = None


def look_at_process(watch: ProcessWatch, pid: int, fields: list[str]) -> ProcessLoad:
    """The process now; `fields` are those of its /proc/PID/stat.

    Check: `cat /proc/PID/schedstat`, `ls /proc/PID/fd | wc -l`.
    """
    if watch.looks % SLOWLY_EVERY == 0:
        watch.slow = _read_load(watch, pid)
    watch.looks += 1
    _, delay = scheduled_ns(f"{pid}/task/{pid}")
    slow = watch.slow
    return ProcessLoad(
        run_delay_ns=delay,
        major_faults=int(fields[_MAJOR_FAULTS]),
        cpus=slow.cpus,
        cpus_count=slow.cpus_count,
        quota_cores=slow.quota_cores,
        throttled_ns=cgroup.throttled_ns(watch.throttling),
        memory_limit_bytes=slow.memory_limit_bytes,
        memory_used_bytes=slow.memory_used_bytes,
        files=slow.files,
        files_limit=slow.files_limit,
        threads_delay_ns=slow.threads_delay_ns,
        limits=slow.limits,
    )


def _read_load(watch: ProcessWatch, pid: int) -> ProcessLoad:
    if watch.looks == 0:
        watch.throttling, watch.memory = cgroup.cpu_stat(pid), cgroup.memory_folder(pid)
        watch.pids = cgroup.pids_folder(pid)
    text = status(pid)
    cpus = status_of(text, "Cpus_allowed_list")
    limit, used = cgroup.memory(watch.memory)
    files = names_in(pid, "fd")
    most = _own_limit(pid, resource.RLIMIT_NOFILE)
    return ProcessLoad(
        cpus=cpus,
        cpus_count=_count(cpus),
        quota_cores=cgroup.quota_cores(watch.throttling),
        memory_limit_bytes=limit,
        memory_used_bytes=used,
        files=len(files) if files is not None else None,
        files_limit=most,
        limits=tuple(_limits(watch, pid, text)),
        threads_delay_ns=_threads_delay(watch, pid),
    )


def _limits(watch: ProcessWatch, pid: int, text: str) -> Iterator[Limit]:
    for name, number, word in (
        ("RLIMIT_AS", resource.RLIMIT_AS, "VmSize"),
        ("RLIMIT_DATA", resource.RLIMIT_DATA, "VmData"),
    ):
        most, used_kib = _own_limit(pid, number), (status_of(text, word) or "").split(" ")[0]
        if most is not None and used_kib.isdigit():
            yield Limit(name, int(used_kib) * 1024, most)
    most, used = cgroup.pids(watch.pids)
    if most is not None and used is not None:
        yield Limit("pids.max", used, most)


def _own_limit(pid: int, number: int) -> int | None:
    """The soft limit; None where there is none. Check: `prlimit --pid PID`."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        most = resource.prlimit(pid, number)[0]
        return most if 0 < most < cgroup.UNLIMITED_BYTES else None
    return None


def _threads_delay(watch: ProcessWatch, pid: int) -> int | None:
    """How long all threads but the main thread were ready without a CPU, ns, summed.

    OpenMP's threads may lack CPUs while the main thread sleeps.

    Source: /proc/PID/task/*/schedstat, about 10 us a thread. Caveat: of more than `THREADS_MAX`
    threads only the first ones of the listing are read.
    """
    threads = tasks(pid)[: THREADS_MAX + 1]
    if not threads:
        return None
    delays = {
        thread: scheduled_ns(thread)[1] for thread in threads if not thread.endswith(f"/{pid}")
    }
    found = {one: delay for one, delay in delays.items() if delay is not None}
    # A thread that has ended leaves the listing, and its waits stay in the sum; so do those of a
    # thread whose number now belongs to another one.
    watch.delays_ended += sum(
        delay for name, delay in watch.delays.items() if found.get(name, -1) < delay
    )
    watch.delays = found
    return watch.delays_ended + sum(found.values())


def _count(cpus: str | None) -> int | None:
    """How many CPUs a list like `0-3,8` names."""
    try:
        parts = [part.split("-") for part in (cpus or "").split(",") if part]
        return sum(int(part[-1]) - int(part[0]) + 1 for part in parts) or None
    except ValueError:
        return None


# -- What is seen of each rank's process from outside


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CHILDREN_EVERY = 2
"""Children are read at every second look: to go through all threads of all ranks is the most
expensive part."""
CHILDREN_COUNTED = 32
"""Children whose wake-ups are counted: 20 us each, while a rank waits for one of them."""
_CHILD_WAITS = frozenset(
    {"wait4", "waitid", "poll", "ppoll", "select", "pselect6", "read", "clock_nanosleep"}
)
"""Where a thread sleeps that waits for a child: for its end, for its output, or between two looks
at it. Others sleep there too."""
CHILD_MOVES_BYTES = 4096
"""A child that reads or writes this much from one look to the next moves on. One that polls, or
writes a line to a log, does less."""
SOCKET_EVERY = 5
"""Looks between two reads of the table of all TCP sockets: a rank that talks to servers all the
time waits on another socket at each look."""
OUTPUTS_EVERY = 30
"""Looks between two at what the standard output of a process is: a viewer remembers it."""
JOIN_FILE_S = 3600.0
"""Plain ranks join within two minutes; after an hour nobody asks for the file again."""


@dataclass
class Watched:
    """One rank's process.

    `pidfd`: None if the kernel gives none, then its end is looked for in /proc. `spoke`: it
    said Hello to this relay itself, over a connection that it made. `stack_start`: where its stack
    began after that Hello, 0 before the first look. `lead_tid`: the thread that trains, of a rank
    without a state page; None for the main thread. `child_switches`: by pid, at the last look, of
    the children for which it may wait; `child_io`: the bytes that they have read and written.
    `child_moved_unix_ns`: as in `ProcessState`. `rung_for`: the end of the step after which its
    agent was woken, monotonic ns; None before that.
    """

    hello: Hello
    pidfd: int | None
    heard_mono_ns: int = 0
    children: tuple[int, ...] = ()
    looks: int = 0
    last_state: str | None = None
    last_wchan: str | None = None
    was_asleep: bool = False
    oom_kills: int | None = None
    oom_marked: tuple[int, int | None] = (0, None)
    memory_events: Path | None = None
    freezer: Path | None = None
    socket: tuple[int, str | None] = (0, None)
    socket_asked: int = -SOCKET_EVERY
    page: PageView | None = field(default=None)
    load: ProcessWatch = field(default_factory=ProcessWatch)
    cpu_seen: tuple[int, int] | None = None
    cpu_ratio: float | None = None
    spoke: bool = False
    stack_start: int = 0
    lead_tid: int | None = None
    child_switches: dict[int, int] = field(default_factory=dict)
    child_io: dict[int, int] = field(default_factory=dict)
    child_moved_unix_ns: int | None = None
    rung_for: int | None = None

    def note_cpu(self, now_mono_ns: int, cpu_ns: int) -> None:
        """Keep the cores used (its children included) between the last two looks, `cpu_ratio`."""
        if self.cpu_seen is not None and now_mono_ns > self.cpu_seen[0]:
            self.cpu_ratio = (cpu_ns - self.cpu_seen[1]) / (now_mono_ns - self.cpu_seen[0])
        self.cpu_seen = (now_mono_ns, cpu_ns)

    def note_oom(self, now_mono_ns: int, mark_s: float) -> None:
        """Keep the OOM killer's count of at least `mark_s` ago, `oom_kills`."""
        if self.oom_marked[0] == 0 or now_mono_ns - self.oom_marked[0] > mark_s * 1e9:
            count = cgroup.oom_kills(self.memory_events)
            self.oom_kills = self.oom_marked[1] if self.oom_marked[0] else count
            self.oom_marked = (now_mono_ns, count)


def watch(hello: Hello, now_mono_ns: int) -> Watched | None:
    """Begin to watch the process that said Hello; None if that one cannot be seen (any more)."""
    pidfd = pidfd_of(hello)
    if pidfd is None and registry.start_ticks(hello.pid) != hello.start_ticks:
        return None
    watched = Watched(hello, pidfd, now_mono_ns)
    watched.memory_events = cgroup.memory_events(hello.pid)
    watched.note_oom(now_mono_ns, 0.0)
    return watched


def pidfd_of(hello: Hello) -> int | None:
    """A pidfd of the process that said Hello.

    None if the process has gone, or if no pidfd can be had: on a kernel before 5.3, behind a
    seccomp filter, or while no descriptor is left.
    """
    try:
        pidfd = os.pidfd_open(hello.pid)
    except (OSError, AttributeError, OverflowError):
        return None
    # In this order: from here on the pid cannot get another owner unseen.
    if registry.start_ticks(hello.pid) == hello.start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def went_unix_ns(watched: Watched, seen_unix_ns: int) -> int:
    """When a process that was seen to have ended at `seen_unix_ns` began to go, as far as its state
    page tells.
    """
    view = page(watched.hello)
    stamps = [seen_unix_ns]
    if view is not None and view.exiting_mono_ns:
        stamps.append(view.exiting_mono_ns + time.time_ns() - time.monotonic_ns())
    if view is not None and view.exception is not None and view.exception.thread == "main":
        stamps.append(view.exception.unix_ns)
    return min(stamps)


def look(watched: Watched, now_mono_ns: int) -> ProcessState | None:
    """The process now; None if it cannot be read. Check: `ps -o stat,wchan,rss,nlwp -p PID`."""
    pid = watched.hello.pid
    fields = stat_fields(pid)
    if fields is None:
        return None
    fields[0] = own_letter(pid, fields[0])
    if watched.looks % CHILDREN_EVERY == 0:
        watched.children = descendants(pid)
    watched.looks += 1
    watched.note_oom(now_mono_ns, OOM_MARK_S)
    gc_since_unix_ns, exiting = _from_page(watched, now_mono_ns)
    tid, letter = _lead(watched, fields[0])
    sleeps_in = wchan(f"{pid}/task/{tid}")
    # One look finds every process asleep somewhere; two in the same sleep are worth asking where.
    asleep = letter in "SD" and (letter, sleeps_in) == (watched.last_state, watched.last_wchan)
    sleep = sockets.sleeping_in(pid, tid) if asleep else sockets.Sleep()
    wakes = _note_child_wakes(watched, sleep, now_mono_ns)
    if asleep and not watched.was_asleep:
        # Somebody may have moved it into another group in order to freeze it.
        watched.freezer = cgroup.freezer(pid)
    watched.was_asleep = asleep
    watched.last_state, watched.last_wchan = letter, sleeps_in
    # utime, stime and those of children that were waited for, then the living children's own.
    cpu = sum(int(value) for value in fields[11:15])
    for child in watched.children:
        theirs = stat_fields(child)
        cpu += int(theirs[11]) + int(theirs[12]) if theirs else 0
    watched.note_cpu(now_mono_ns, cpu * CLOCK_TICK_NS)
    return ProcessState(
        rank=watched.hello.rank,
        pid=pid,
        state=letter,
        wchan=sleeps_in,
        cpu_ns=cpu * CLOCK_TICK_NS,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        threads=int(fields[17]),
        io_bytes=io_bytes(pid),
        children=len(watched.children),
        switches=switches(f"{pid}/task/{tid}"),
        syscall=sleep.call,
        file=sleep.file,
        frozen=cgroup.is_frozen(watched.freezer) if asleep else None,
        gc_since_unix_ns=gc_since_unix_ns,
        exiting=exiting,
        init_since_unix_ns=_inside_since(watched),
        load=look_at_process(watched.load, pid, fields),
        mpi=_mpi(watched),
        remote=_far_end(watched, sleep.socket),
        iteration=watched.page.iteration if watched.page is not None else None,
        became=_new_program(watched, fields),
        child_wakes_per_s=wakes,
        child_moved_unix_ns=watched.child_moved_unix_ns,
        outputs=_outputs(pid) if watched.looks % OUTPUTS_EVERY == 1 else (),
    )


def _outputs(pid: int) -> tuple[str, ...]:
    """What its standard output and its standard error are; only the links are read, because a file
    may be on a server that does not answer."""
    try:
        return tuple(os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2))
    except OSError:
        return ()


def stands_for(watched: Watched, now_mono_ns: int) -> int:
    """For how long it has made no progress, ns; 0 while it runs, or where its page does not say."""
    at = watched.page.whereabouts if watched.page is not None else None
    return now_mono_ns - at.moved_mono_ns if at is not None and watched.was_asleep else 0


def _note_child_wakes(watched: Watched, sleep: sockets.Sleep, now_mono_ns: int) -> float | None:
    """How often a child for which it may wait has slept and woken since the last look."""
    pids = watched.children[:CHILDREN_COUNTED] if sleep.call in _CHILD_WAITS else ()
    if (sleep.file or "").startswith("child "):
        first = int((sleep.file or "").partition(" ")[2])
        pids = (first, *descendants(first, CHILDREN_COUNTED))
    seconds = (now_mono_ns - watched.cpu_seen[0]) / 1e9 if watched.cpu_seen else 0.0
    before = watched.child_switches
    watched.child_switches = {pid: switches(pid) or 0 for pid in pids}
    read_before, watched.child_io = watched.child_io, {pid: io_bytes(pid) or 0 for pid in pids}
    if any(
        count - read_before.get(pid, count) >= CHILD_MOVES_BYTES
        for pid, count in watched.child_io.items()
    ):
        watched.child_moved_unix_ns = time.time_ns()
    grown = [count - before[pid] for pid, count in watched.child_switches.items() if pid in before]
    return max(grown) / seconds if grown and seconds > 0 else None


def _new_program(watched: Watched, fields: list[str]) -> str | None:
    """The program that has replaced the rank's by exec.

    Its pid, its start time and its pidfd stay the same, and so do sockets that it has inherited:
    others wait for it as if it were still there.
    """
    begins = stack_start(fields)
    if not watched.stack_start or not begins:
        watched.stack_start = watched.stack_start or begins
        return None
    return command_name(watched.hello.pid) if begins != watched.stack_start else None


def _far_end(watched: Watched, inode: int | None) -> str | None:
    """The far end of the socket on which it waits."""
    if inode is None:
        return None
    if inode != watched.socket[0] and watched.looks >= watched.socket_asked + SOCKET_EVERY:
        watched.socket_asked = watched.looks
        watched.socket = (inode, sockets.remote(watched.hello.pid, inode))
    return watched.socket[1] if inode == watched.socket[0] else None


def _lead(watched: Watched, letter: str) -> tuple[int, str]:
    """The number and the state of the rank's thread.

    It is the thread that the state page or `lead_tid` names, if that lives, else the main thread,
    whose state is `letter`. A signal that stops or ends a process stops or ends all of its threads.
    """
    pid = watched.hello.pid
    tid = watched.page.lead_tid if watched.page is not None else watched.lead_tid or 0
    if tid <= 0 or tid == pid or letter not in "RSDI":
        return pid, letter
    fields = stat_fields(f"{pid}/task/{tid}")
    return (tid, fields[0]) if fields is not None else (pid, letter)


def owners(watched: Iterable[Watched]) -> dict[int, int | None]:
    """The rank of each process that belongs to one, children included."""
    return {
        pid: process.hello.rank
        for process in watched
        for pid in (*process.children, process.hello.pid)
    }


def _from_page(watched: Watched, now_mono_ns: int) -> tuple[int | None, bool]:
    """(since when a garbage collection is going on, whether its interpreter exits), from the
    state page.
    """
    view = watched.page = page(watched.hello)
    if view is None:
        return None, False
    since = view.gc_since_mono_ns
    collects = bool(since) and now_mono_ns - since >= GC_SHOWN_S * 1e9
    return since + time.time_ns() - time.monotonic_ns() if collects else None, bool(
        view.exiting_mono_ns
    )


def _inside_since(watched: Watched) -> int | None:
    """Since when it is inside init_process_group, from the state page that was read last."""
    since = watched.page.init_since_mono_ns if watched.page is not None else 0
    return since + time.time_ns() - time.monotonic_ns() if since else None


def _mpi(watched: Watched) -> MpiState | None:
    """Its calls of MPI, from the state page that was read last."""
    view, now = watched.page, time.time_ns()
    return (
        read_mpi(view.mpi, now, now - time.monotonic_ns())
        if view is not None and view.mpi
        else None
    )


def last_words(watched: Watched, order: int, unix_ns: int) -> Exit:
    """How the process ended, its last report, and what outlived it, as seen at `unix_ns`.

    `order`: exits before this one.
    """
    hello, view = watched.hello, page(watched.hello)
    how = ending(watched.pidfd, hello.pid, hello.start_ticks)
    killed, line = False if how.signal is not None or how.code is not None else None, None
    if how.signal == signal.SIGKILL:
        count = cgroup.oom_kills(watched.memory_events)
        killed, line = cgroup.verdict(
            hello.pid, watched.oom_kills, count, cgroup.read_log(OOM_RECENT_S)
        )
    orphans = tuple(pid for pid in watched.children if registry.start_ticks(pid) is not None)
    exiting_mono_ns = view.exiting_mono_ns if view else 0
    return Exit(
        rank=hello.rank,
        pid=hello.pid,
        code=how.code,
        signal=how.signal,
        oom=killed,
        order=order,
        how=how.how,
        exiting=bool(exiting_mono_ns),
        exception=view.exception if view else None,
        orphans=orphans,
        exiting_unix_ns=exiting_mono_ns + unix_ns - time.monotonic_ns()
        if exiting_mono_ns
        else None,
        oom_line=line,
        orphan_sockets=sockets.sockets_of(orphans) if orphans else None,
        mpi=read_mpi(view.mpi, unix_ns, unix_ns - time.monotonic_ns())
        if view is not None and view.mpi
        else None,
        iteration=view.iteration if view is not None else None,
        walking=view is not None and view.walking,
        calls=view.calls if view is not None else (),
    )


def forget(watched: Watched) -> None:
    """Stop watching: close the pidfd, remove the state page that the process has left behind."""
    if watched.pidfd is not None:
        os.close(watched.pidfd)
    path = page_path(watched.hello)
    if path is not None:
        path.unlink(missing_ok=True)
        path.with_suffix(".stacks").unlink(missing_ok=True)


def page_path(hello: Hello) -> Path | None:
    """The page's file, if its name is one that an agent of this user makes.

    A frame must not make us unlink others.
    """
    if not hello.page_path:
        return None
    path = Path(hello.page_path)
    expected = f"{hello.pid}-{hello.start_ticks}.page"
    folder = registry.pages_folder()
    fits = (
        path.name == expected
        and path.parent.name == folder
        and str(path.parent.parent) in ("/dev/shm", "/tmp")
    )
    return path if fits else None


def page(hello: Hello) -> PageView | None:
    """What the state page says; None if there is none or it cannot be read."""
    path = page_path(hello)
    if path is None:
        return None
    try:
        # Read, not mapped: a file that its owner makes shorter would end the relay by SIGBUS.
        return read_page(private.read(path, PAGE_BYTES))
    except (OSError, PageError):
        return None


def step_ended(watched: Watched) -> int | None:
    """When its last step ended, monotonic ns; None if its page does not say."""
    # Its owner may have made the file shorter.
    with contextlib.suppress(OSError, LookupError, TypeError):
        head = private.read(page_path(watched.hello) or Path(), 8 * (STEP_AT + 1))
        return memoryview(head).cast("q")[STEP_AT]
    return None


def abandoned_files() -> list[Path]:
    """State pages without a process of this user's other jobs, and old join files.

    A relay that was killed leaves them behind. A rank that ended an instant ago is among them, and
    its own relay has yet to read its page: remove them later.
    """
    paths = []
    for path in registry.runtime_dir().glob("plain-*.json"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > JOIN_FILE_S:
                paths.append(path)
    for folder in (Path("/dev/shm"), Path("/tmp")):
        for path in (folder / registry.pages_folder()).glob("*-*.[ps]*"):
            pid, _, ticks = path.stem.partition("-")
            if (
                (pid + ticks).isascii()
                and pid.isdigit()
                and ticks.isdigit()
                and is_gone(int(pid), int(ticks))
            ):
                paths.append(path)
    return paths
