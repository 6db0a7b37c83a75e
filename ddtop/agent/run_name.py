"""The run of a rank, and the name of its job.

The children of a launcher share its pid and start time. Ranks that are started one by one from
plain shells join through a small locked file. They belong together if user, script and folder are
equal, even if MASTER_PORT or WORLD_SIZE differ, because a wrong value must not split the job that
has to be diagnosed. They also belong together if MASTER_ADDR, MASTER_PORT and WORLD_SIZE are all
equal, even if their scripts differ. Each host has its own run; a job has one name on all its hosts
(`multi_host`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Mapping

import msgspec

from ddtop import launch, registry
from ddtop.agent.identity import TREE, Identity
from ddtop.agent.probes import parallel
from ddtop.launch.launchers import master_pod, step_name
from ddtop.launch.start import LauncherStart, NodeOptions
from ddtop.procfs import command_line, command_lines
from ddtop.redaction import redact
from ddtop.wire.records import is_loopback

# -- The name of a job on several hosts. Each host makes it from values that all of them have
#
# At this time the hosts are not connected. The shared folder, the port of the hub and the viewers
# use this name. Not every process knows the id of the batch job: processes that ssh or pdsh starts
# on other nodes do not, and each `srun -N1` is a separate step. So the id is used only if srun says
# that one step has several nodes. Otherwise the rendezvous address is used first, because all ranks
# must know it.


def name_across_hosts(
    identity: Identity,
    environ: Mapping[str, str],
    parent_pid: int,
    endpoint: str | None,
    start: LauncherStart | None,
) -> str | None:
    """The name of this rank's job if its ranks are on several hosts, or of several launchers.

    None if this rank cannot know of others. `endpoint` is the rendezvous address (HOST:PORT) that
    this rank was given; `start` is the start of MPI's launcher.
    """
    nodes = NodeOptions(None, 1)
    if identity.elastic:
        nodes = launch.node_options(environ, command_lines(parent_pid))
    named_endpoint = (
        nodes.endpoint if _is_elsewhere(nodes.endpoint) else endpoint_in(environ, endpoint)
    )
    named_endpoint = named_endpoint if _is_elsewhere(named_endpoint) else None
    if not _spans(identity, environ, nodes, named_endpoint):
        return None
    if start is not None:
        return start.label if start.whole else f"{identity.script}-{start.label}"
    name = launch.start_across_nodes(environ)
    if name is not None:
        return name
    if named_endpoint is not None or environ.get("DDTOP_HUB"):
        return _named_after(identity.script, named_endpoint or environ["DDTOP_HUB"])
    job, own = launch.batch_job(environ), nodes.endpoint or endpoint_in(environ)
    if job is None and identity.elastic and own:
        # The address is `localhost`: several launchers on one host.
        return _named_after(identity.script, f"{os.uname().nodename}:{own.rpartition(':')[2]}")
    return job


def endpoint_in(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """The rendezvous address, HOST:PORT: `given` to init_process_group, or from MASTER_ADDR."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or is_loopback(host):
        host = master_pod(environ) or host
    return given or (f"{host}:{port}" if host else None)


def _spans(
    identity: Identity, environ: Mapping[str, str], nodes: NodeOptions, named_endpoint: str | None
) -> bool:
    if identity.elastic and nodes.nodes_max > 1 and named_endpoint is not None:
        # Also if only one node has joined so far: torchrun --nnodes 1:4.
        return True
    sizes = launch.local_and_world_size(environ)
    if sizes is not None:
        return sizes[0] < sizes[1]
    if environ.get("DDTOP_HUB"):
        return True
    nodes_of_world = launch.nodes_of_world(environ, identity.world_size)
    return (
        nodes_of_world > 1
        if nodes_of_world is not None
        else named_endpoint is not None and (identity.world_size or 0) > 1
    )


def _is_elsewhere(endpoint: str | None) -> bool:
    """Whether this address has the same meaning on another host."""
    host = (endpoint or "").rpartition(":")[0].strip("[]")
    return bool(host) and not is_loopback(host)


def _named_after(script: str, endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    # Only the first label, because some ranks have the full host name and some the short one. A job
    # name has at most 64 characters.
    if not host.replace(".", "").isdigit() and ":" not in host:
        host = host.partition(".")[0]
    end = f"-{host}-{port}"
    return script[: max(registry.JOB_NAME_MAX - len(end), 8)] + end


# -- The run of a rank, and the name of its job


JOIN_S = 120.0
"""Plain ranks that start within this time of the first one are one run. This is enough for a person
who opens tmux panes by hand.
"""


def launcher_tree(script: str, pid: int) -> str:
    """What a launcher puts into DDTOP_TREE for its descendants: `name|run`."""
    return f"{script}-{pid}|{pid}.{registry.start_ticks(pid) or 0}"


def name_run(
    identity: Identity, environ: Mapping[str, str], parent_pid: int, endpoint: str | None = None
) -> tuple[str, str, str | None]:
    """(job, run, complaint).

    The complaint says why a wanted name could not be used. `endpoint` is the rendezvous address
    (HOST:PORT), if it is not in the environment.

    Raises:
        RegistryError: the runtime folder cannot be used.
    """
    tree_name, _, tree_run = environ.get(TREE, "").partition("|")
    wanted = environ.get("DDTOP_JOB") or launch.chosen_name(environ)
    start = launch.find_start(environ, command_lines(parent_pid)) if not identity.elastic else None
    if start is not None:
        run = start.run
        default = start.label if start.whole else f"{identity.script}-{start.label}"
        # Each task of srun that was not a rank at first has named a different process tree.
        is_own = tree_name == f"{identity.script}-{os.getpid()}"
        default = default if is_own else tree_name or default
    elif identity.elastic:
        run = tree_run or f"{parent_pid}.{registry.start_ticks(parent_pid) or 0}"
        default = tree_name or f"{identity.script}-{parent_pid}"
    else:
        first, run = join_plain(identity, environ, endpoint)
        default = first.tree or f"{first.script}-{first.pid}"
        met = place_of(environ, endpoint)
        if met and (met, identity.world_size) == (first.place, first.world_size):
            # They use one rendezvous, so they are one job with one name.
            wanted = first.wanted
        identity = Identity(
            role=identity.role,
            script=first.script,
            rank=identity.rank,
            local_rank=identity.local_rank,
            world_size=identity.world_size,
            attempt=identity.attempt,
            elastic=identity.elastic,
        )
        # The first one's: a rank with a wrong MASTER_PORT belongs to the job of the ranks that it
        # cannot find.
        endpoint = first.master
    default = name_across_hosts(identity, environ, parent_pid, endpoint, start) or default
    if not wanted:
        return registry.clean_job_name(redact(default)), run, None
    name = registry.clean_job_name(wanted := redact(wanted))
    complaint = None
    if name != wanted:
        is_short = len(wanted) <= 40
        shown = wanted if is_short else f"{wanted[:40]}... ({len(wanted)} characters)"
        complaint = (
            f"the job name {shown!r} cannot be used as a file name; this job is called {name}"
        )
    return name, run, complaint


ALL_GONE_S = 15.0
"""After this time, a run without living members takes no more ranks: a later rank belongs to the
next try. Before that, it is a rank that started late, after one that crashed at once."""
RUNS_MAX = 64
"""How many runs of the last two minutes are remembered, over all jobs of this user."""


class _Member(msgspec.Struct):
    rank: int
    pid: int
    start_ticks: int
    master: str
    world_size: int = 0
    place: str = ""
    script: str = ""
    tree: str = ""
    wanted: str | None = None


class _PlainRun(msgspec.Struct):
    run: str
    started_s: float
    members: list[_Member]
    key: str = ""


def join_plain(
    identity: Identity, environ: Mapping[str, str], endpoint: str | None = None
) -> tuple[_Member, str]:
    """(first member, run) of the plain run that this rank belongs to; makes one if there is none.

    A rank of another script or folder belongs to a run if a living member has the same address,
    port and world size.

    A living process may have the same rank. With the same MASTER_ADDR:MASTER_PORT both belong to
    one run: two processes claim one rank. With another one this rank is a second job.

    Of several runs the rank takes the one with the same master and the same size. It never joins a
    run where both differ.
    """
    rank = identity.rank if identity.rank is not None else -1
    actor = parallel.ray_actor((command_line("self") or ("",))[0])
    key = f"{os.getcwd()}|{script_path()}|{_tree_of(environ)}"
    if actor:
        # The driver makes all actors, and gives each group a port: none has a wrong one.
        key += f"|{actor}|{place_of(environ, endpoint)}"
    key = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    path = registry.runtime_dir() / registry.JOIN_FILE
    master = endpoint_in(environ, endpoint) or f":{environ.get('MASTER_PORT', '')}"
    me = _Member(
        rank, os.getpid(), registry.start_ticks(os.getpid()) or 0, master, identity.world_size or 0
    )
    me.place, me.script = place_of(environ, endpoint), redact(identity.script)
    tree = redact(environ.get(TREE, "").partition("|")[0])
    me.tree = f"{tree}-{actor}" if tree and actor else tree
    me.wanted = redact(environ.get("DDTOP_JOB") or launch.chosen_name(environ) or "") or None
    now_s = time.time()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not os.fstat(descriptor).st_nlink:
            # A relay that ended has just removed it.
            return join_plain(identity, environ, endpoint)
        try:
            runs = msgspec.json.decode(file.read(1 << 20), type=list[_PlainRun])
        except ValueError:
            runs = []
        runs = [run for run in runs if now_s - run.started_s < JOIN_S]
        plain_runs = [run for run in reversed(runs) if run.key == key or _is_met(run, me)]
        fitting = [run for run in plain_runs if _fits(run, me, now_s)]
        plain_run = max(fitting, key=lambda run: _agreement(run, me), default=None)
        if plain_run is None or not _agreement(plain_run, me):
            plain_run = _PlainRun(f"p{me.pid}.{me.start_ticks}", now_s, [], key)
            taken = {run.members[0].tree for run in runs if any(map(_lives, run.members))}
            if actor and me.tree in taken:
                # Another group of the same class: actors and critics of one class of workers.
                me.tree = f"{me.tree}-{me.pid}"
            runs.append(plain_run)
        plain_run.members.append(me)
        file.seek(0)
        file.truncate()
        file.write(msgspec.json.encode(runs[-RUNS_MAX:]))
    return plain_run.members[0], plain_run.run


def _tree_of(environ: Mapping[str, str]) -> str:
    """What started this rank: the watched parent program, or the step of srun.

    Tasks that become ranks only when they join a group have each named a different process tree. If
    the ranks meet in a file, only the step connects them.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if "SLURM_STEP_ID" in environ and tasks.isdigit() and int(tasks) > 1:
        return step_name(environ)
    tree = environ.get(TREE, "")
    # A process that was not a rank at first has named a tree after itself: nobody else is in it.
    return "" if tree.partition("|")[0].endswith(f"-{os.getpid()}") else tree


def place_of(environ: Mapping[str, str], endpoint: str | None = None) -> str:
    """The rendezvous address (HOST:PORT) of this rank; empty if a part is missing.

    All names of this host are `localhost`.
    """
    host, _, port = (endpoint or "").rpartition(":")
    host, port = host or environ.get("MASTER_ADDR", ""), port or environ.get("MASTER_PORT", "")
    host = host.strip("[]")
    return f"{'localhost' if is_loopback(host) else host}:{port}" if host and port else ""


def _is_met(run: _PlainRun, me: _Member) -> bool:
    """Whether a living member has the same address and world size: two jobs cannot listen there."""
    if not me.place or me.world_size <= 1:
        return False
    where = (me.place, me.world_size)
    others = [member for member in run.members if member.rank != me.rank]
    return any((member.place, member.world_size) == where and _lives(member) for member in others)


def _agreement(run: _PlainRun, me: _Member) -> int:
    """2: a member has the same master and world size, 1: one of both, 0: none.

    A dead member with another size does not count.
    """
    found = [
        (member.master == me.master) + (member.world_size == me.world_size)
        for member in run.members
        if member.world_size == me.world_size or _lives(member)
    ]
    return max(found, default=0)


def _fits(run: _PlainRun, me: _Member, now_s: float) -> bool:
    if now_s - run.started_s > ALL_GONE_S and not any(_lives(member) for member in run.members):
        return False
    taken = [member for member in run.members if member.rank == me.rank]
    living = [member for member in taken if _lives(member)]
    return living[-1].master == me.master if living else not taken


def _lives(member: _Member) -> bool:
    return registry.start_ticks(member.pid) == member.start_ticks


def script_path() -> str:
    """The program's own file, `-` where the command line does not name it."""
    has_file = bool(sys.argv) and sys.argv[0] not in ("", "-c", "-m")
    return os.path.abspath(sys.argv[0]) if has_file else "-"
