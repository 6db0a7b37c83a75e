"""Ranks that crashed although nobody told them to: ddtop has failed until the opposite is shown.

Such a rank dies of SIGSEGV, SIGBUS, SIGABRT or SIGILL as the first of its job. The deaths that
follow may be its consequence: gloo aborts when a peer has gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ddtop import journal
from ddtop.wire import frames
from ddtop.wire.records import Exit

SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL)
KERNEL_LOG = Path("/dev/kmsg")
LATELY_S = 300.0


class CrashError(Exception):
    """A rank crashed. The text has the lines of `crashes`."""


def crashes(state: Path) -> list[str]:
    """A sentence for each rank that the relays with this state folder saw crash, with the kernel's
    lines about it."""
    found = []
    for path in sorted(state.glob("*.journal*")):
        with contextlib.suppress(journal.JournalError):
            for frame in journal.read(path).frames:
                envelope = frames.open_envelope(frame)
                record = frames.open_record(envelope) if envelope.kind == Exit.__name__ else None
                if isinstance(record, Exit) and _is_crash(record):
                    name = signal.Signals(record.signal or 0).name
                    where = " while ddtop read its frames" if record.walking else ""
                    lines = "".join(f"\n  {line}" for line in kernel_lines(record.pid))
                    found.append(f"rank {record.rank} (pid {record.pid}): {name}{where}{lines}")
    return sorted(set(found))


def _is_crash(record: Exit) -> bool:
    return record.signal in SIGNALS and (record.order == 0 or record.walking)


def kernel_lines(pid: int) -> list[str]:
    """What the kernel's log of the last minutes says of this process, or of a thread that is called
    ddtop. Empty where the log cannot be read.
    """
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    found = []
    try:
        while record := os.read(log, 8192):
            head, _, rest = record.partition(b";")
            text = rest.partition(b"\n")[0].decode("utf-8", "replace")
            ago_s = time.monotonic() - int(head.split(b",")[2]) / 1e6
            if ago_s < LATELY_S and (f"[{pid}]" in text or "ddtop[" in text):
                found.append(text)
    except OSError:
        pass  # BlockingIOError: that was the last line. Others: the log may not be read.
    finally:
        os.close(log)
    return found
