"""The process behind a connection of the unix socket, as the kernel recorded it.

A connection speaks for the process that made it and for no other, as long as it is open. A forked
child that inherits it speaks for its parent, so it has to make its own. The start time is read when
the connection is first heard: if its maker is gone and the pid has a new owner, the two differ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ddtop import registry
from ddtop.link.rank_listener import Credentials


@dataclass(frozen=True, slots=True)
class Peer:
    """The process behind one connection.

    `foreign`: it is in another pid namespace, so its pids mean other processes here. Its records
    are shown, but it is never signalled or read. `pid`: the pid that it has for itself, None if
    that cannot be known.
    """

    pid: int | None
    start_ticks: int | None
    foreign: bool

    def may_say(self, pid: int) -> bool:
        """Whether its reports about this pid, in its own namespace, are accepted."""
        return pid > 0 and (self.pid is None or self.pid == pid)


def peer_of(who: Credentials) -> Peer:
    """The process that made a connection. Check: `ss -xp`, `readlink /proc/PID/ns/pid`."""
    if who.pid <= 0:
        return Peer(None, None, True)
    ours, theirs = _namespace("self"), _namespace(str(who.pid))
    if ours is not None and theirs is not None and ours != theirs:
        return Peer(_own_number(who.pid), None, True)
    # One that is gone already cannot be asked; its pid was ours to see.
    return Peer(who.pid, registry.start_ticks(who.pid), False)


def _namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _own_number(pid: int) -> int | None:
    """Its pid in its own namespace: the last number of the line NSpid."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                last = line.split()[-1]
                return int(last) if last.isdigit() else None
    except OSError:
        pass
    return None
