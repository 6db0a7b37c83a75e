"""The rank that has started this process, directly or through others.

A rank starts helpers: a scorer, a server, a process that writes checkpoints. They inherit its
variables, and many make a process group of their own. Each process that may be a rank has a state
page, and the page says whether it has joined a group. A program that only carries the variables has
no page (srun, mpirun, a shell, a profiler) or has joined nothing (a launcher's wrapper).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ddtop import private, registry
from ddtop.agent.ancestors import command_line
from ddtop.launch.command_line import begins_a_job
from ddtop.procfs import parent_of
from ddtop.wire import page as layout

STEPS_MAX = 32
"""Limit of a chain of parents."""
HEAD_BYTES = layout.SLOTS_AT * 8


class RankAbove(NamedTuple):
    """What the state page of a process says about the group of all ranks that it has joined.

    `member`: its number there plus 1, 0 where it has joined none, negative where it has left.
    `met`: a checksum of where the members have met, 0 where that is not known.
    """

    pid: int
    member: int
    members: int
    met: int

    def makes_helper(self, rank: int, size: int, met: int) -> bool:
        """Whether a process below this one, which is about to join a group as `rank` of `size`,
        is a helper: it makes a group of its own.

        A process that joins the group of this rank under another number is a rank, as below rank 0
        of Lightning. So is a process that joins it under the same number: that is a fault, and it
        must be seen.
        """
        if not self.member or self.members == 1 < size:
            return False
        if self.member < 0:
            # It has left its group: many programs prepare data in one, and start the training then.
            return size < self.members
        elsewhere = bool(met and self.met) and met != self.met
        same = bool(met) and (met, size) == (self.met, self.members)
        return elsewhere or (rank == self.member - 1 and not same)


def rank_above(pid: int) -> RankAbove | None:
    """The nearest process above `pid` that has joined a group, else the nearest that may be a rank.

    The search ends at a launcher: what is below it is a job of its own.
    """
    found = None
    for _ in range(STEPS_MAX):
        pid = parent_of(pid) or 0
        if pid <= 1 or begins_a_job(command_line(pid) or ()) or (found and found.member):
            break
        one = _of_page(pid)
        if found is None or (one is not None and one.member):
            found = one
    return found


def _of_page(pid: int) -> RankAbove | None:
    name = f"{registry.pages_folder()}/{pid}-{registry.start_ticks(pid)}.page"
    for folder in ("/dev/shm", "/tmp"):
        try:
            data = private.read(Path(folder, name), HEAD_BYTES)
        except OSError:
            continue
        words = memoryview(data).cast("q") if len(data) == HEAD_BYTES else (0,)
        if words[layout.MAGIC_AT] == layout.MAGIC:
            return RankAbove(pid, *words[layout.MEMBER_AT : layout.MET_AT + 1])
    return None
