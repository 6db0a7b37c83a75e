"""Which run a rank belongs to, and what its job is called.

A launcher's children share its pid and start time. Ranks started one by one from plain shells join through a small locked
file: by user, script and folder, whatever MASTER_PORT or WORLD_SIZE says, because a wrong one must not split the very job that has
to be diagnosed; and by MASTER_ADDR, MASTER_PORT and WORLD_SIZE together, whatever their scripts are. A run is a host's own; a job has one name on all its hosts
(`spanning`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Mapping

import msgspec

from ddtop import registry
from ddtop.agent import launchers, multi_host
from ddtop.agent.identity import TREE, Identity, chosen_run_id
from ddtop.wire.rendezvous import is_loopback

JOIN_S = 120.0
"""Plain ranks that start within this time of the first one are one run: a person opening tmux panes by hand."""


def launcher_tree(script: str, pid: int) -> str:
    """What a launcher puts into DDTOP_TREE for its descendants: `name|run`."""
    return f"{script}-{pid}|{pid}.{registry.start_ticks(pid) or 0}"


def name_run(
    who: Identity, environ: Mapping[str, str], parent_pid: int, endpoint: str | None = None
) -> tuple[str, str, str | None]:
    """(job, run, complaint): the complaint is a sentence for the user if the wanted name could not be used.

    `endpoint`: HOST:PORT where this rank was told to meet the others, if not by its environment.

    Raises:
        RegistryError: the runtime folder cannot be used.
    """
    tree_name, _, tree_run = environ.get(TREE, "").partition("|")
    wanted = environ.get("DDTOP_JOB") or chosen_run_id(environ)
    start = launchers.mpi_start(environ, parent_pid) if not who.elastic else None
    if start is not None:
        run = start.run
        default = start.label if start.whole else f"{who.script}-{start.label}"
        default = tree_name or default
    elif who.elastic:
        run = tree_run or f"{parent_pid}.{registry.start_ticks(parent_pid) or 0}"
        default = tree_name or f"{who.script}-{parent_pid}"
    else:
        first, run = join_plain(who, environ, endpoint)
        default = first.tree or f"{first.script}-{first.pid}"
        met = place_of(environ, endpoint)
        if met and (met, who.world_size) == (first.place, first.world_size):
            # They meet, so they are one job, under one name.
            wanted = first.wanted
        who = Identity(who.role, first.script, who.rank, who.local_rank, who.world_size, who.attempt, who.elastic)
        # Of the first one: a rank with a wrong MASTER_PORT is to be seen beside those that it does not meet.
        endpoint = first.master
    default = multi_host.name_across_hosts(who, environ, parent_pid, endpoint, start) or default
    if not wanted:
        return registry.clean_job_name(default), run, None
    name = registry.clean_job_name(wanted)
    complaint = None
    if name != wanted:
        shown = wanted if len(wanted) <= 40 else f"{wanted[:40]}... ({len(wanted)} characters)"
        complaint = f"the job name {shown!r} cannot be a file name, this job is called {name}"
    return name, run, complaint


ALL_GONE_S = 15.0
"""A run all of whose members have ended takes no more after this: what comes then is the next try. Before, it is a rank that
started late beside one that crashed at once."""


RUNS_MAX = 64
"""Runs of the last two minutes that are remembered, of all jobs of this user."""


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


def join_plain(who: Identity, environ: Mapping[str, str], endpoint: str | None = None) -> tuple[_Member, str]:
    """(first member, run) of the plain run that this rank belongs to; makes one if there is none.

    Ranks of another script or folder belong to it where a living member meets at the same address and port, with as many ranks.

    A rank whose number is taken by a living process with the same MASTER_ADDR:MASTER_PORT belongs to that run (two
    processes claim one rank); with another master it is a second job beside the first. Of several runs that it could belong
    to it takes the one that agrees in both, master and size; one that agrees in neither is none of its own.
    """
    rank = who.rank if who.rank is not None else -1
    key = f"{os.getcwd()}|{script_path()}|{environ.get(TREE, '')}"
    key = hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    path = registry.runtime_dir() / "plain-runs.json"
    master = multi_host.endpoint_in(environ, endpoint) or f":{environ.get('MASTER_PORT', '')}"
    me = _Member(rank, os.getpid(), registry.start_ticks(os.getpid()) or 0, master, who.world_size or 0)
    me.place, me.script = place_of(environ, endpoint), who.script
    me.tree, me.wanted = environ.get(TREE, "").partition("|")[0], environ.get("DDTOP_JOB") or chosen_run_id(environ)
    now_s = time.time()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            runs = msgspec.json.decode(file.read(1 << 20), type=list[_PlainRun])
        except ValueError:
            runs = []
        runs = [run for run in runs if now_s - run.started_s < JOIN_S]
        fitting = [run for run in reversed(runs) if (run.key == key or _is_met(run, me)) and _fits(run, me, now_s)]
        mine = max(fitting, key=lambda run: _agreement(run, me), default=None)
        if mine is None or not _agreement(mine, me):
            mine = _PlainRun(f"p{me.pid}.{me.start_ticks}", now_s, [], key)
            runs.append(mine)
        mine.members.append(me)
        file.seek(0)
        file.truncate()
        file.write(msgspec.json.encode(runs[-RUNS_MAX:]))
    return mine.members[0], mine.run


def place_of(environ: Mapping[str, str], endpoint: str | None = None) -> str:
    """HOST:PORT at which this rank meets the others, one word for all names of this host; empty where that is not complete."""
    host, _, port = (endpoint or "").rpartition(":")
    host, port = host or environ.get("MASTER_ADDR", ""), port or environ.get("MASTER_PORT", "")
    host = host.strip("[]")
    return f"{'localhost' if is_loopback(host) else host}:{port}" if host and port else ""


def _is_met(run: _PlainRun, me: _Member) -> bool:
    """A living member looks for as many ranks at the same place: no other job can listen there at the same time."""
    return any(
        one.place == me.place and one.world_size == me.world_size and one.rank != me.rank and _lives(one)
        for one in run.members
        if me.place and me.world_size > 1
    )


def _agreement(run: _PlainRun, me: _Member) -> int:
    """2: a member has the same master and world size, 1: one of them, 0: none. A dead one with another size is no fellow."""
    found = [
        (one.master == me.master) + (one.world_size == me.world_size)
        for one in run.members
        if one.world_size == me.world_size or _lives(one)
    ]
    return max(found, default=0)


def _fits(run: _PlainRun, me: _Member, now_s: float) -> bool:
    if now_s - run.started_s > ALL_GONE_S and not any(_lives(member) for member in run.members):
        return False
    taken = [member for member in run.members if member.rank == me.rank]
    living = [member for member in taken if _lives(member)]
    if living:
        return living[-1].master == me.master
    return not taken


def _lives(member: _Member) -> bool:
    return registry.start_ticks(member.pid) == member.start_ticks


def script_path() -> str:
    """The program's own file, as far as the command line tells."""
    return os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "-"
