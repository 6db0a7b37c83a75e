"""What a sleeping main thread waits for, according to the kernel: its system call, the descriptor
of that call, and wchan.

Call and descriptor say more than wchan, but the relay may not always read them
(`ProcessState.syscall`). Wchan is nearly always available. Check: `cat /proc/PID/syscall
/proc/PID/wchan`.
"""

from __future__ import annotations

from collections.abc import Set

from ddtop.wire.records import ProcessState

WordAndPhrase = tuple[str, str]
"""(stable word, phrase that follows "is" or "has been")."""

PATH_MAX = 80
_IO_WORDS = frozenset({"file", "child", "cuda-sync"})
READS = frozenset(
    {
        "read",
        "pread64",
        "readv",
        "preadv",
        "recvfrom",
        "recvmsg",
        "recvmmsg",
        "getdents",
        "getdents64",
    }
)
WRITES = frozenset(
    {
        "write",
        "pwrite64",
        "writev",
        "pwritev",
        "sendto",
        "sendmsg",
        "sendfile",
        "ftruncate",
        "fallocate",
    }
)
_FLUSHES = frozenset({"fsync", "fdatasync", "sync_file_range", "sync", "msync"})
_NAMES = frozenset(
    {
        "open",
        "openat",
        "openat2",
        "stat",
        "lstat",
        "newfstatat",
        "statx",
        "access",
        "fstat",
        "statfs",
    }
)
_CHANGES = frozenset({"mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat"})
_POLLS = frozenset(
    {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"}
)

_VERBS: tuple[tuple[Set[str], str], ...] = (
    (READS, "reading"),
    (WRITES, "writing"),
    (_FLUSHES, "flushing"),
    ({"close"}, "closing"),
)

# The meaning of calls that does not depend on a descriptor.
_CALLS: dict[str, WordAndPhrase] = {
    "nanosleep": ("sleep", "asleep"),
    "clock_nanosleep": ("sleep", "asleep"),
    "pause": ("sleep", "waiting for a signal"),
    "rt_sigsuspend": ("sleep", "waiting for a signal"),
    "rt_sigtimedwait": ("sleep", "waiting for a signal"),
    "futex": ("lock", "waiting for a lock"),
    "futex_waitv": ("lock", "waiting for a lock"),
    "semop": ("lock", "waiting for a semaphore"),
    "semtimedop": ("lock", "waiting for a semaphore"),
    "wait4": ("child", "waiting for a child process"),
    "waitid": ("child", "waiting for a child process"),
    "vfork": ("child", "waiting for a child process to start its program"),
    "clone": ("child", "waiting for a child process to start its program"),
    "clone3": ("child", "waiting for a child process to start its program"),
    "execve": ("file", "starting a program"),
    "msgrcv": ("pipe", "waiting for a message"),
    "mq_timedreceive": ("pipe", "waiting for a message"),
    "connect": ("socket", "connecting to a server"),
    "accept": ("socket", "waiting for a connection"),
    "accept4": ("socket", "waiting for a connection"),
    "io_getevents": ("file", "waiting for the disk"),
    "io_uring_enter": ("file", "waiting for the disk"),
} | dict.fromkeys(_POLLS, ("socket", "waiting in poll"))

# The meaning of a descriptor that is not a path.
_KINDS: dict[str, WordAndPhrase] = {
    "socket": ("socket", "waiting on a socket"),
    "pipe": ("pipe", "reading a pipe"),
    "terminal": ("stdin", "waiting for input from the terminal"),
    "eventfd": ("lock", "waiting for an event"),
    "timerfd": ("sleep", "asleep"),
    "signalfd": ("sleep", "waiting for a signal"),
    "inotify": ("file", "waiting for a file to change"),
    "pidfd": ("child", "waiting for a process"),
}

# Parts of wchan; the first match counts.
_WCHANS: tuple[tuple[str, WordAndPhrase], ...] = (
    ("nanosleep", ("sleep", "asleep")),
    ("sys_pause", ("sleep", "waiting for a signal")),
    ("fuse", ("file", "waiting for a FUSE file system")),
    ("request_wait_answer", ("file", "waiting for a FUSE file system")),
    ("nfs", ("file", "waiting for a file server")),
    ("rpc_wait", ("file", "waiting for a file server")),
    ("cifs", ("file", "waiting for a file server")),
    ("ceph", ("file", "waiting for a file server")),
    ("ldlm", ("file", "waiting for a file server")),
    ("cl_sync_io", ("file", "waiting for a file server")),
    ("lock_inode_wait", ("lock", "waiting for a lock on a file")),
    ("fcntl_setlk", ("lock", "waiting for a lock on a file")),
    ("pipe_read", ("pipe", "reading a pipe")),
    ("pipe_write", ("pipe", "writing to a pipe")),
    ("wait_for_partner", ("pipe", "waiting until someone opens the other end of a named pipe")),
    # Before do_wait: the kernel calls it futex_do_wait.
    ("futex", ("lock", "waiting for a lock")),
    ("do_wait_intr", ("lock", "waiting for an event")),
    ("do_wait", ("child", "waiting for a child process")),
    ("kernel_clone", ("child", "waiting for a child process to start its program")),
    ("vfork", ("child", "waiting for a child process to start its program")),
    ("n_tty_read", ("stdin", "waiting for input from the terminal")),
    ("unix_stream", ("socket", "waiting on a socket")),
    ("sk_wait", ("socket", "waiting on a socket")),
    ("inet_csk_accept", ("socket", "waiting for a connection")),
    ("wait_woken", ("socket", "waiting on a socket")),
    ("mem_cgroup", ("file", "held back by the memory limit of its cgroup")),
    ("reclaim", ("file", "waiting for the kernel to free memory")),
    ("jbd2", ("file", "waiting for the disk")),
    ("folio_wait", ("file", "waiting for the disk")),
    ("wait_on_page", ("file", "waiting for the disk")),
    ("io_schedule", ("file", "waiting for the disk")),
    ("blk_", ("file", "waiting for the disk")),
    ("xlog_", ("file", "waiting for the disk")),
    ("balance_dirty_pages", ("file", "waiting for the disk to catch up with writes")),
)


def sleeps(process: ProcessState | None) -> bool:
    """Its main thread is asleep."""
    return process is not None and process.state in ("S", "D")


def wait_of(process: ProcessState) -> WordAndPhrase | None:
    """What the main thread waits for, according to the kernel. None while it runs, or if the kernel
    says nothing useful.
    """
    if not sleeps(process):
        return None
    if process.remote is not None:
        return (
            "socket",
            (
                f"{'connecting' if process.syscall == 'connect' else 'waiting on a socket'} to"
                f" {process.remote}"
            ),
        )
    return _by_call(process) or _by_wchan(process)


def may_be_io(process: ProcessState | None) -> bool:
    """Whether it may be asleep because of a disk, a server or a driver.

    A process in state D inside a call that signals can interrupt (nanosleep, futex) is frozen by
    its cgroup.
    """
    wait = wait_of(process) if process is not None else None
    return wait is None or wait[0] in _IO_WORDS


def path_of(process: ProcessState | None) -> str | None:
    """The file that its system call uses; None if that is not a file."""
    file = process.file if process is not None else None
    return file if file is not None and file.startswith("/") else None


def short(path: str) -> str:
    """The path for a sentence; of a long path only its end."""
    return path if len(path) <= PATH_MAX else "…" + path[-(PATH_MAX - 1) :]


def child_text(process: ProcessState) -> str | None:
    """`waiting for its child (pid 4711)`; None if it waits for no particular child."""
    kind, _, pid = (process.file or "").partition(" ")
    return f"waiting for its child (pid {pid})" if kind == "child" and pid else None


def _by_call(process: ProcessState) -> WordAndPhrase | None:
    call, file, wchan = process.syscall, process.file, process.wchan or ""
    if call is None:
        return None
    if file == "stdin" and call not in _FLUSHES:
        typed = "n_tty_read" in wchan or "wait_woken" in wchan
        return (
            "stdin",
            f"waiting for input {'from the terminal' if typed else 'on its standard input'}",
        )
    if call in _CALLS:
        word, text = _CALLS[call]
        return word, (child_text(process) or text) if word == "child" else text
    if (path := path_of(process)) and call not in _NAMES | _CHANGES:
        return _about_file(call, short(path), wchan)
    if file in _KINDS:
        word, text = _KINDS[file]
        return word, "writing to a pipe" if file == "pipe" and call in WRITES else text
    return _by_name(call, path, wchan)


def _about_file(call: str, path: str, wchan: str) -> WordAndPhrase:
    if path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")):
        return "cuda-sync", "waiting for the GPU driver"
    if "pipe" in wchan:
        return "pipe", f"{'writing to' if call in WRITES else 'reading'} the pipe {path}"
    if call in ("flock", "fcntl"):
        return "lock", f"waiting for a lock on {path}"
    return "file", f"{next((verb for calls, verb in _VERBS if call in calls), 'busy with')} {path}"


def _by_name(call: str, path: str | None, wchan: str) -> WordAndPhrase | None:
    """A call that is given a path, or one whose descriptor is not known."""
    if "wait_for_partner" in wchan:
        pipe = f"the named pipe {short(path)}" if path else "a named pipe"
        return "pipe", f"opening {pipe} (nobody at the other end)"
    if call in _FLUSHES:
        return "file", "flushing a file to its disk"
    name = short(path) if path else "a file"
    if call in _NAMES:
        return "file", f"opening or looking up {name}"
    return ("file", f"creating, renaming or removing {name}") if call in _CHANGES else None


def _by_wchan(process: ProcessState) -> WordAndPhrase | None:
    wchan = process.wchan
    if wchan is None:
        return None
    return next((wait for part, wait in _WCHANS if part in wchan), None)
