"""Whether the OOM killer ended a process: the kernel's log, or the count of the control group.

The log names the process, the count does not. If the log says that another process was killed, the
count rose for that one. Check: `dmesg | grep -i 'killed process'`,
`grep oom_kill /sys/fs/cgroup/.../memory.events`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_RECORDS_MAX = 50_000
_READ_S = 0.2
_LINE_MAX = 300
_INITIAL_PIDS = "pid:[4026531836]"
"""The host's own pid namespace: the log has the pids of that namespace."""
_KILLED = re.compile(r"Kill(?:ed)? process (\d+)\b")
_CHOSEN = re.compile(r"^oom-kill:.*\bpid=(\d+)\b")


@dataclass(frozen=True, slots=True)
class Kill:
    """One line of the log that names a process which the OOM killer chose or killed."""

    pid: int
    line: str


def verdict(
    pid: int, count_before: int | None, count_now: int | None, kills: tuple[Kill, ...] | None
) -> tuple[bool | None, str | None]:
    """(the OOM killer ended this process, the log's line) of a process that died of SIGKILL.

    None if it is not known.

    `kills`: what the log says of the last minutes, None where it cannot be read.
    """
    for kill in reversed(kills or ()):
        if kill.pid == pid:
            return True, kill.line
    if kills:
        return False, None
    if count_before is not None and count_now is not None:
        return count_now > count_before, None
    return (None, None) if kills is None else (False, None)


def read_log(recent_s: float, path: Path = LOG) -> tuple[Kill, ...] | None:
    """The OOM killer's lines of the last `recent_s` seconds.

    None where the log cannot be read or counts other pids than ours.

    Bounded: at most 0.2 s, and never waits for a line to come.
    """
    try:
        if os.readlink("/proc/self/ns/pid") != _INITIAL_PIDS:
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The log's clock is not adjusted by NTP: after a month it may be wrong by a minute.
        now_boot_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        return kills_in(_records(descriptor), now_boot_ns, recent_s)
    except PermissionError:
        return None
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterable[bytes]:
    end = time.monotonic() + _READ_S
    for _ in range(_RECORDS_MAX):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BrokenPipeError:
            continue  # overwritten while we read: the next read goes on with the oldest there is
        except BlockingIOError:
            return
        if not record or time.monotonic() > end:
            return
        yield record


def kills_in(records: Iterable[bytes], now_boot_ns: int, recent_s: float) -> tuple[Kill, ...]:
    """The kills of the last `recent_s` seconds among records as /dev/kmsg has them.

    `6,1234,5678901,-;text`, the third in us since boot.
    """
    found = []
    for record in records:
        head, _, text = record.partition(b";")
        try:
            at_ns = int(head.split(b",")[2]) * 1000
        except (ValueError, IndexError):
            continue
        if now_boot_ns - at_ns > recent_s * 1e9:
            continue
        line = text.partition(b"\n")[0].decode("utf-8", "replace")
        match = _KILLED.search(line) or _CHOSEN.search(line)
        if match is not None:
            found.append(Kill(int(match[1]), line[:_LINE_MAX]))
    return tuple(found)
