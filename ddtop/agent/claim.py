"""The moment a process becomes a rank: its page, its relay, its thread, its hooks."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

from ddtop import launch, private, registry
from ddtop.agent import current, identity, run_name, start_relay
from ddtop.agent.guard import guard
from ddtop.agent.plain import whole
from ddtop.agent.probes import parallel
from ddtop.agent.rank import Rank, say
from ddtop.agent.runtime import Runtime
from ddtop.launch.launcher import number
from ddtop.launch.launchers import is_elastic
from ddtop.procfs import command_line, parent_of
from ddtop.wire import page as layout
from ddtop.wire.frames import escape

# -- The rank that has started this process, directly or through others
#
# A rank starts helpers: a scorer, a server, a process that writes checkpoints. They inherit its
# variables, and many make a process group of their own. Each process that may be a rank has a state
# page, and the page says whether it has joined a group. A program that only carries the variables
# has no page (srun, mpirun, a shell, a profiler) or has joined nothing (a launcher's wrapper).


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
        if pid <= 1 or launch.begins_a_job(command_line(pid) or ()) or (found and found.member):
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


# -- The process becomes a rank: its page, its relay, its thread


def from_environment(who: identity.Identity) -> None:
    """A program begins whose launcher has given it a number.

    If a rank that has joined a group has started it, what it is depends on the group that it will
    join itself.
    """
    above = rank_above(os.getpid())
    if above is None or not above.member:
        become_rank(who, "env", above=above)


def become_rank(
    who: identity.Identity,
    source: str,
    backend: str | None = None,
    endpoint: str | None = None,
    above: RankAbove | None = None,
) -> None:
    """Start watching this process as rank `who.rank`."""
    try:
        who.script = escape(who.script)
        job, run, complaint = escape(run_name.name_run(who, os.environ, os.getppid(), endpoint))
        path = registry.socket_path(job, run)
        registry.state_dir()
        _, moved = registry.runtime_place()
    except (registry.RegistryError, OSError) as error:
        guard.off["runtime"] = str(error)
        say(who, f"ddtop is off in this job: {error}")
        return
    os.environ[identity.CLAIM] = f"{os.getpid()}:{launch.fingerprint(os.environ)}"
    if complaint:
        say(who, f"ddtop: {complaint}")
    if moved:
        say(who, f"ddtop: {moved}")
    # The agent's thread tries again where this fails, and says whether a relay answers.
    with contextlib.suppress(OSError):
        start_relay.start_relay(job, run, path)
    above_pid = above.pid if above else None
    Runtime(Rank(who, job, run, path, source, backend, above=above_pid)).start()


def entering_init(
    rank: object, world_size: object, backend: str | None, method: str | None = None
) -> None:
    """The program is about to call init_process_group with these arguments.

    -1 means that torch takes the value from the environment.
    """
    rank, world_size = whole(rank), whole(world_size)
    running, met = current.get(), _meets_at(method)
    if running is not None:
        running.met = met
        running.backend = backend or running.backend
        if running.destroyed:
            running.destroyed = False
        running.joined = False
        # Some libraries create a small world of their own first: that does not count.
        if world_size is not None and world_size > 1 and rank in (-1, running.who.rank):
            running.who.world_size = world_size
        running.send_hello_again()
        return
    environ = os.environ
    own = rank if rank is not None and rank >= 0 else number(environ, "RANK")
    given = world_size if world_size is not None and world_size > 0 else None
    size = given or number(environ, "WORLD_SIZE")
    if own is None or size is None or not 0 <= own < size:
        return
    # Do not ask for the parent's claim here: a process that joins a group is a rank, unless its
    # parent is that rank.
    above = rank_above(os.getpid())
    if above is not None and (above.makes_helper(own, size, met) or _runs_script_anew()):
        return
    seen = identity.identify({}, sys.orig_argv, os.getpid())
    # The command line of a spawned child does not name the script; the tree is named after the
    # program that started the child.
    script = seen.script
    if script == "python":
        tree = environ.get(identity.TREE, "").partition("|")[0].rpartition("-")[0]
        # Where Ray's daemons were started without DDTOP, nothing names the driver.
        script = tree or parallel.ray_actor((command_line("self") or ("",))[0]) or script
    local, attempt = number(environ, "LOCAL_RANK"), launch.restarts(environ)
    elastic = is_elastic(environ)
    who = identity.Identity(
        identity.RANK,
        script,
        rank=own,
        local_rank=local,
        world_size=size,
        attempt=attempt,
        elastic=elastic,
    )
    become_rank(who, "init", backend, _endpoint(method), above)
    if (running := current.get()) is not None:
        running.met = met


def entering_mpi() -> None:
    """mpi4py is about to call MPI_Init in a process that is not a rank yet.

    A process that does so under a launcher is a rank.
    """
    rank, size, local_rank = launch.numbers(os.environ, any_task=True)
    if rank is not None and size is not None and size > 1 and 0 <= rank < size:
        _become_mpi_rank(rank, size, local_rank, None)


def is_mpi_rank(rank: int, size: int, backend: str) -> None:
    """MPI has given this process its rank; no launcher had."""
    _, _, local_rank = launch.numbers(os.environ, any_task=True)
    _become_mpi_rank(rank, size, local_rank, backend)


def _become_mpi_rank(rank: int, size: int, local_rank: int | None, backend: str | None) -> None:
    above = rank_above(os.getpid())
    if above is not None and above.makes_helper(rank, size, 0):
        return
    seen = identity.identify({}, sys.orig_argv, os.getpid())
    who = identity.Identity(
        identity.RANK, seen.script, rank=rank, local_rank=local_rank, world_size=size
    )
    become_rank(who, "init", backend, above=above)


def _runs_script_anew() -> bool:
    """Whether multiprocessing still imports the script of its parent, which has no `__main__`
    guard. Such a child soon fails at the first process that it starts."""
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    return "_inheriting" in getattr(process, "__dict__", {})


def _meets_at(method: str | None) -> int:
    """A checksum of where the ranks meet: HOST:PORT, or the URL of a file. 0: not known."""
    place = method if method is not None and method.startswith("file://") else ""
    if method is None or method.startswith(("env://", "tcp://")):
        place = run_name.place_of(os.environ, _endpoint(method))
    return zlib.crc32(place.encode(errors="replace"))


def _endpoint(method: str | None) -> str | None:
    """HOST:PORT of `tcp://HOST:PORT?rank=0`."""
    return urlparse(method).netloc or None if method and method.startswith("tcp://") else None
