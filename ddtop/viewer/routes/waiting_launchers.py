"""Launchers that have not started a rank yet: torchrun waits for its nodes, or for the store.

Nothing of such a job has an agent, and there is no relay. What is known is its command line, its
sockets and, where it has no connection, its stack.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace

from ddtop import launch
from ddtop.agent.identity import LAUNCHER, identify
from ddtop.diagnosis.diagnoses import conclude, diagnose
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.model.job import Job
from ddtop.model.state.facts import Snapshot, WaitingLauncher
from ddtop.procfs import children, stat_fields
from ddtop.relay.processes import sockets
from ddtop.viewer.routes.outside_jobs import OutsideJob
from ddtop.viewer.routes.outside_processes import HostProcesses, Process, read_one
from ddtop.viewer.routes.outside_targets import frames_of
from ddtop.viewer.thresholds import chosen

STORE_PORT = "29400"
"""torchrun's default of the port of --rdzv-endpoint."""
RANKS_CPU_S = 1.0
"""CPU time of children that it has waited for: so much shows that it has had ranks. The import of
torch alone takes longer."""
_RENDEZVOUS = "/distributed/elastic/rendezvous/"


def without_ranks(host: HostProcesses) -> list[OutsideJob]:
    """The launchers of this host that have no child, each as a job without ranks."""
    parents = {one.parent for one in host.processes.values()}
    found = [one for one in host.processes.values() if one.pid not in parents and _waits(one)]
    return [
        OutsideJob(
            f"{identify(one.environment, one.argv, one.pid).script}-{one.pid}",
            (one.pid,),
            (),
            0,
            False,
            one.owner,
            one.started_unix_ns,
        )
        for one in found
    ]


def _waits(one: Process) -> bool:
    """Whether it is a launcher that has not had ranks."""
    fields = stat_fields(one.pid)
    if fields is None or not one.python or not one.argv:
        return False
    role = identify(one.environment, one.argv, one.pid).role
    return role == LAUNCHER and _cpu_s(fields[13:15]) < RANKS_CPU_S


def _cpu_s(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def judged(name: str, pids: Iterable[int]) -> tuple[Snapshot, Verdict] | None:
    """What those of these processes wait for that are such launchers; None if none is."""
    waiting = [one for one in map(read_one, pids) if one is not None and _waits(one)]
    found = tuple([look(one) for one in waiting if not children(one.pid)])
    if not found:
        return None
    policy = chosen()
    snapshot = replace(Job(name, policy).snapshot(time.time_ns()), launchers=found)
    verdict = conclude(diagnose(snapshot, policy), snapshot, policy)
    return snapshot, verdict if verdict.findings else replace(verdict, health=UNKNOWN)


def look(one: Process) -> WaitingLauncher:
    """What this launcher waits for."""
    given = launch.node_options(one.environment, lambda: iter([one.argv]))
    place = given.endpoint or f"localhost:{launch.MASTER_PORT}"
    address, _, text = (place if ":" in place else f"{place}:{STORE_PORT}").rpartition(":")
    port = int(text) if text.isdigit() else 0
    own = sockets.inodes(one.pid) or ()
    mine = [each for each in sockets.table(one.pid) or () if each.inode in own]
    linked = [each for each in mine if each.state == "ESTABLISHED"]
    ends = {(each.local, each.port) for each in linked if each.remote_port == port}
    there, waited_s = None, 0.0
    if any(each.state == "LISTEN" and each.port == port for each in mine):
        peers = {(each.remote, each.remote_port) for each in linked if each.port == port}
        there = 1 + len(peers - ends)
    if ends or _dials(one.pid):
        used_s = _cpu_s((stat_fields(one.pid) or [])[11:13])
        waited_s = max(0.0, time.time() - one.started_unix_ns / 1e9 - used_s)
    return WaitingLauncher(
        one.pid,
        identify(one.environment, one.argv, one.pid).script,
        waited_s,
        f"{address}:{port}",
        given.nodes_min,
        there,
        None if ends else sockets.connect(address, port)[0],
    )


def _dials(pid: int) -> bool:
    """Whether it is in torch's rendezvous, not in an import of it."""
    return any(
        _RENDEZVOUS in frame.file and frame.function != "<module>" for frame in frames_of(pid)
    )
