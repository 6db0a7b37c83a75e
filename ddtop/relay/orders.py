"""What a viewer may order: which ranks it means, and the sending of a signal to one of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ddtop import registry
from ddtop.relay.processes.sample import Watched
from ddtop.wire.records import Hello
from ddtop.words.ranks import rank_ranges

RANKS_MAX = 1 << 17
PID_MAX = 1 << 22
"""The largest pid that the kernel uses."""
_SIGNALS = frozenset(int(one) for one in signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


class OrderError(ValueError):
    """The order cannot be followed; the text says why."""


def ranks_of(text: str) -> frozenset[int] | None:
    """`0,3-5` as numbers; None for all.

    Raises:
        OrderError: not such a list.
    """
    if not text:
        return None
    ranges = rank_ranges(text)
    if ranges is None:
        raise OrderError(f"{text[:40]!r} is no list of ranks like 0,3-5")
    last = max(one.stop for one in ranges) - 1
    if last >= RANKS_MAX:
        raise OrderError(f"rank {last} is out of range")
    return frozenset(rank for one in ranges for rank in one)


def pids_of(text: str) -> frozenset[int]:
    """`17,18` as numbers.

    Raises:
        OrderError: not such a list.
    """
    found = [number(part) for part in text.split(",")] if text else []
    if len(found) > RANKS_MAX or any(one is None for one in found):
        raise OrderError(f"{text[:40]!r} is no list of pids")
    return frozenset(one for one in found if one is not None)


def number(text: str) -> int | None:
    """A pid, a rank or the like; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def has_sound_numbers(hello: Hello) -> bool:
    """Whether the numbers of a Hello are such as an agent sends.

    They have to be checked: the relay sends the dump signal and looks up the descriptor.
    """
    number, descriptor, pid = hello.dump_signal, hello.dump_fd, hello.pid
    return (
        1 <= pid <= PID_MAX
        and (number is None or number in _SIGNALS)
        and (descriptor is None or 0 <= descriptor < 1 << 31)
    )


def send_signal(watched: Watched | None, arguments: tuple[str, ...]) -> str:
    """Send the signal of these arguments (rank, pid, number); returns a sentence that says so.

    It is sent only to the process that itself sent the Hello (its pidfd and start time are
    checked), that belongs to this user, that is not pid 1, and that still has the rank and pid that
    the person saw when deciding.

    Raises:
        OrderError: one of these is not true, or the kernel refuses.
    """
    numbers = [one for text in arguments if (one := number(text)) is not None]
    if len(arguments) != 3 or len(numbers) != 3:
        raise OrderError("signal needs a rank, a pid and a number")
    rank, pid, which = numbers
    if which not in {int(one) for one in signal.valid_signals()}:
        raise OrderError(f"there is no signal {which}")
    if watched is None or watched.hello.rank != rank or watched.hello.pid != pid:
        raise OrderError(f"rank {rank} with pid {pid} is not running here (any more)")
    if pid == 1:
        raise OrderError("pid 1 is never signalled: all of its container would end with it")
    if not watched.spoke:
        raise OrderError(f"pid {pid} has not itself reported to this relay as rank {rank}")
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
        if owner != os.getuid() or registry.start_ticks(pid) != watched.hello.start_ticks:
            raise OrderError(f"pid {pid} is not the process it was")
        if watched.pidfd is None:
            why = "no pidfd here, so a signal could reach another process"
            raise OrderError(f"{why}; by hand: kill -{which} {pid}")
        signal.pidfd_send_signal(watched.pidfd, which)
    except OSError as error:
        raise OrderError(f"rank {rank} (pid {pid}): {error.strerror}") from None
    return f"sent {_name(which)} to rank {rank} (pid {pid})"


def _name(which: int) -> str:
    try:
        return signal.Signals(which).name
    except ValueError:
        return f"signal {which}"
