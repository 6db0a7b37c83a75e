"""Systems: jobs of this user on this host that belong together, such as the trainer and the rollout
engines of reinforcement learning.

Two jobs belong together if one Python program or one Ray node has started both, or if a rank of one
has a TCP connection to a rank of the other.

Source: the processes above the ranks, and the TCP table with the descriptors of the ranks. Caveat:
connections through a proxy or a unix socket, or to another host, are not seen. Check:
`pstree -s PID`, `ss -tanp`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from ddtop import launch, registry
from ddtop.procfs import command_line, command_name, is_python, parents
from ddtop.registry import JobEntry
from ddtop.relay.processes import sockets

ABOVE_MAX = 32
LOOKED_AT_MAX = 256
"""At most so many ranks: to read the descriptors of one takes a tenth of a millisecond or more."""

System = tuple[JobEntry, ...]


def systems_of(entries: Iterable[JobEntry]) -> list[System]:
    """The systems of two or more of these jobs. The job that started first comes first, in each
    system and in the list."""
    living = _living(entries)
    if len(living) < 2:
        return []
    systems = {entry: frozenset((entry,)) for entry in living}
    for one, other in (*_of_one_driver(living), *_connected(living)):
        joined = systems[one] | systems[other]
        systems |= dict.fromkeys(joined, joined)
    found = dict.fromkeys(
        tuple(entry for entry in living if entry in system) for system in systems.values()
    )
    return [system for system in found if len(system) > 1]


def of_one_name(entries: Iterable[JobEntry]) -> System:
    """Those of the runs of one name whose ranks live here, if there are several: a world that
    another one has spawned, programs to which one name was given. The oldest comes first."""
    living = tuple(_living(entries))
    return living if len(living) > 1 else ()


def _living(entries: Iterable[JobEntry]) -> dict[JobEntry, list[int]]:
    """The living ranks of the jobs that have some here, the oldest job first."""
    pids = {
        entry: [pid for pid, ticks in entry.ranks if registry.start_ticks(pid) == ticks]
        for entry in sorted(entries, key=lambda entry: entry.started_unix_ns)
        if entry.is_here
    }
    return {entry: ranks for entry, ranks in pids.items() if ranks}


def own_systems() -> list[System]:
    """The systems of all live jobs of this user here.

    Raises:
        RegistryError: the state folder cannot be used.
    """
    now = time.time_ns()
    entries = registry.without_parts(registry.read_entries(), now)
    return systems_of(entry for entry in entries if entry.live(now))


def system_of(entry: JobEntry, systems: Sequence[System]) -> System:
    """The system with this job; empty if it belongs to none."""
    key = (entry.job, entry.run)
    return next((one for one in systems if key in [(job.job, job.run) for job in one]), ())


def _of_one_driver(living: dict[JobEntry, list[int]]) -> Iterator[tuple[JobEntry, JobEntry]]:
    first: dict[int, JobEntry] = {}
    for entry, pids in living.items():
        for pid in parents(pids[0], ABOVE_MAX):
            if _is_driver(pid):
                yield first.setdefault(pid, entry), entry


def _is_driver(pid: int) -> bool:
    """Whether what it starts belongs together. A shell or a terminal starts jobs that do not."""
    if command_name(pid) == "raylet":
        return True
    return is_python(pid) and not launch.begins_a_job(command_line(pid) or ())


def _connected(living: dict[JobEntry, list[int]]) -> Iterator[tuple[JobEntry, JobEntry]]:
    ranks = [(pid, entry) for entry, pids in living.items() for pid in pids][:LOOKED_AT_MAX]
    owner = {inode: entry for pid, entry in ranks for inode in sockets.inodes(pid) or ()}
    for one, far in sockets.both_ends(sockets.table(ranks[0][0]) or ()):
        if (own := owner.get(one.inode)) is not (other := owner.get(far)) and own and other:
            yield own, other
