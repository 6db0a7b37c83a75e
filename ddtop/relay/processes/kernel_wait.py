"""What a sleeping process waits for in the kernel: the system call, and its descriptor.

Only /proc is read (of a path also the memory that holds it), never the file itself: a stat of a
file on a dead file server would hang the relay together with its rank. `/proc/PID/syscall` and
`/proc/PID/mem` need the right to ptrace; without it nothing is known. Check: `cat
/proc/PID/syscall` (number, then its arguments), `ls -l /proc/PID/fd`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from ddtop.relay.processes import sockets

# name: (number on x86_64, on aarch64), those that block or may hang on a file server.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "ioctl": (16, 29),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "select": (23, None),
    "msync": (26, 227),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "sendfile": (40, 71),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "wait4": (61, 260),
    "semop": (65, 193),
    "msgrcv": (70, 188),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "getdents": (78, None),
    "rename": (82, None),
    "mkdir": (83, None),
    "unlink": (87, None),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "statfs": (137, 43),
    "sync": (162, 81),
    "futex": (202, 98),
    "io_getevents": (208, 4),
    "getdents64": (217, 61),
    "semtimedop": (220, 192),
    "clock_nanosleep": (230, 115),
    "epoll_wait": (232, None),
    "mq_timedreceive": (243, 183),
    "waitid": (247, 95),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "splice": (275, 76),
    "sync_file_range": (277, 84),
    "epoll_pwait": (281, 22),
    "fallocate": (285, 47),
    "accept4": (288, 242),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "recvmmsg": (299, 243),
    "renameat2": (316, 276),
    "copy_file_range": (326, 285),
    "statx": (332, 291),
    "io_uring_enter": (426, 426),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "epoll_pwait2": (441, 441),
    "futex_waitv": (449, 449),
}
_MACHINES = ("x86_64", "aarch64")
_OF_DESCRIPTOR = frozenset(
    {
        "read",
        "write",
        "close",
        "fstat",
        "ioctl",
        "pread64",
        "pwrite64",
        "readv",
        "writev",
        "sendfile",
        "connect",
        "accept",
    }
    | {
        "sendto",
        "recvfrom",
        "sendmsg",
        "recvmsg",
        "fcntl",
        "flock",
        "fsync",
        "fdatasync",
        "ftruncate",
        "getdents",
    }
    | {
        "getdents64",
        "splice",
        "sync_file_range",
        "fallocate",
        "accept4",
        "preadv",
        "pwritev",
        "recvmmsg",
    }
    | {"copy_file_range"}
)
"""Their first argument is a descriptor."""
_PATH_AT = dict.fromkeys(
    ("open", "stat", "lstat", "access", "execve", "rename", "mkdir", "unlink", "statfs"), 0
) | dict.fromkeys(
    ("openat", "openat2", "newfstatat", "statx", "mkdirat", "unlinkat", "renameat", "renameat2"), 1
)
"""Their argument with this number is the address of a path; before the second kind comes the
folder that the path starts from."""
_HERE = 0xFFFFFF9C  # AT_FDCWD
_PATH_BYTES_MAX = 512
_DESCRIPTORS_MAX = 1 << 20
_TERMINAL = re.compile(r"/dev/(?:tty\w*|pts/\d+|console)$")
_KINDS = (("socket:", "socket"), ("pipe:", "pipe"))
_P_PID = 1
_DESCRIPTORS_LOOKED_AT = 4096


def calls_of(machine: str) -> dict[int, str]:
    """Names of the system calls by their numbers.

    None on a machine whose numbers are not in the table.
    """
    if machine not in _MACHINES:
        return {}
    at = _MACHINES.index(machine)
    return {number: name for name, both in _NUMBERS.items() if (number := both[at]) is not None}


_CALLS = calls_of(os.uname().machine)


class Sleep(NamedTuple):
    """Where a main thread sleeps. What is not known is None; while it runs, everything is None.

    `call`: the system call. `file`: what it waits for, a path, or "stdin", "socket", "pipe",
    "terminal", "eventfd", or of a wait for one child "child PID". `socket`: the inode of that
    socket.
    """

    call: str | None = None
    file: str | None = None
    socket: int | None = None


def sleeping_in(pid: int, tid: int = 0) -> Sleep:
    """Where that thread of the process sleeps; `tid` 0: the main thread."""
    try:
        text = Path(f"/proc/{pid}/task/{tid or pid}/syscall").read_text()
    except OSError:
        return Sleep()
    call, arguments = parsed(text)
    file = None if call is None else _awaited(pid, call, arguments)
    return Sleep(
        call, file, sockets.inode(pid, arguments[0] & 0xFFFFFFFF) if file == "socket" else None
    )


def parsed(text: str, calls: dict[int, str] | None = None) -> tuple[str | None, tuple[int, ...]]:
    """(name, arguments) of a line of /proc/PID/syscall.

    No name for "running", a page fault (-1), or a call not in the table.
    """
    words = text.split()
    try:
        name = (_CALLS if calls is None else calls).get(int(words[0]))
        return name, tuple(int(word, 16) for word in words[1:7])
    except (ValueError, IndexError):
        return None, ()


def _awaited(pid: int, call: str, arguments: tuple[int, ...]) -> str | None:
    if len(arguments) < 2:
        return None
    if call in _OF_DESCRIPTOR:
        return descriptor(pid, arguments[0])
    if call in _PATH_AT:
        at = _PATH_AT[call]
        return _path(pid, arguments[at]) if not at or arguments[0] & 0xFFFFFFFF == _HERE else None
    if call in ("select", "pselect6"):
        # One more than the highest descriptor in its sets: 1 can only be the standard input, as
        # input() waits for it.
        return "stdin" if arguments[0] == 1 else None
    child = (
        arguments[0]
        if call == "wait4"
        else arguments[1]
        if call == "waitid" and arguments[0] == _P_PID
        else 0
    )
    return f"child {child}" if 0 < child < 1 << 31 else None


def _path(pid: int, address: int) -> str | None:
    """The path at this address of the process, as a full one; None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            name, ended, _ = memory.read(_PATH_BYTES_MAX).partition(b"\0")
        folder = os.readlink(f"/proc/{pid}/cwd")
    except (OSError, ValueError, OverflowError):
        return None
    return os.path.join(folder, os.fsdecode(name)) if name and ended else None


def descriptor(pid: int, number: int) -> str | None:
    """What a descriptor of that process is: a path, or one word.

    None if it is not open or cannot be read.
    """
    number &= 0xFFFFFFFF
    if number > _DESCRIPTORS_MAX:
        return None
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None
    return "stdin" if number == 0 else kind_of(target)


def kind_of(target: str) -> str:
    """The target of a link in /proc/PID/fd in one word, where it is no path."""
    if target.startswith("anon_inode:"):
        return target.removeprefix("anon_inode:").strip("[]").partition(":")[0]
    if _TERMINAL.match(target):
        return "terminal"
    return next((word for start, word in _KINDS if target.startswith(start)), target)


def sockets_of(pids: tuple[int, ...]) -> int | None:
    """How many sockets these processes have open, each counted once.

    None if none of them can be read.
    """
    found: set[str] = set()
    readable = False
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        readable = True
        for number in numbers[:_DESCRIPTORS_LOOKED_AT]:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if target.startswith("socket:"):
                found.add(target)
    return len(found) if readable else None
