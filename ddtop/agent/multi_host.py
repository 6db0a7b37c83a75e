"""What a job of several hosts is called: on each of them by what all of them were told, because none can ask another yet.

The shared folder, the port at which the hub is looked for, and the viewers know a job by this name. A batch system's id is not told to
all: what ssh or pdsh starts on the other nodes has none, and each `srun -N1` is a step of its own. So it counts where srun says that
one step has several nodes; else the address at which the ranks meet goes first, which they must all know.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ddtop import registry
from ddtop.agent import launchers
from ddtop.agent.identity import Identity, number
from ddtop.wire.rendezvous import is_loopback, master_pod

_LOCAL_AND_ALL = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
    ("PMI_LOCAL_SIZE", "PMI_SIZE"),
)
"""Ranks on this host and ranks at all, by torchrun, Open MPI, Hydra and Cray's PMI."""


def name_across_hosts(
    who: Identity, environ: Mapping[str, str], parent_pid: int, endpoint: str | None, start: launchers.Start | None
) -> str | None:
    """The name of this rank's job if its ranks are on several hosts, or of several launchers, as far as one of them can know; None: of one.

    `endpoint`: HOST:PORT where the rank itself was told to meet the others; `start`: the MPI launcher's.
    """
    met = launchers.meeting(environ, parent_pid) if who.elastic else launchers.Meeting(None, 1)
    told = met.endpoint if _is_elsewhere(met.endpoint) else endpoint_in(environ, endpoint)
    told = told if _is_elsewhere(told) else None
    if not _spans(who, environ, met, told):
        return None
    if start is not None:
        return start.label if start.whole else f"{who.script}-{start.label}"
    if launchers.nodes_of_step(environ) > 1:
        return f"{environ.get('SLURM_JOB_ID')}.{environ['SLURM_STEP_ID']}"
    if told is not None or environ.get("DDTOP_HUB"):
        return _named_after(who.script, told or environ["DDTOP_HUB"])
    job, own = launchers.batch_job(environ), met.endpoint or endpoint_in(environ)
    if job is None and who.elastic and own:
        # They call it `localhost`: several launchers on this one host.
        return _named_after(who.script, f"{os.uname().nodename}:{own.rpartition(':')[2]}")
    return job


def endpoint_in(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """HOST:PORT at which the ranks meet: `given` to init_process_group, else MASTER_ADDR:MASTER_PORT."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or is_loopback(host):
        host = master_pod(environ) or host
    return given or (f"{host}:{port}" if host else None)


def _spans(who: Identity, environ: Mapping[str, str], met: launchers.Meeting, told: str | None) -> bool:
    if who.elastic and met.nodes_max > 1 and told is not None:
        # Also where only one node has come yet: torchrun --nnodes 1:4.
        return True
    for names in _LOCAL_AND_ALL:
        here, all_of_them = number(environ, names[0]), number(environ, names[1])
        if here is not None and all_of_them is not None:
            return here < all_of_them
    if environ.get("DDTOP_HUB"):
        return True
    nodes, tasks = launchers.nodes_of_step(environ), number(environ, "SLURM_STEP_NUM_TASKS")
    if nodes and (launchers.step_numbers_ranks(environ) or tasks == who.world_size):
        return nodes > 1
    return told is not None and (who.world_size or 0) > 1


def _is_elsewhere(endpoint: str | None) -> bool:
    """Whether other hosts could mean the same by it."""
    host = (endpoint or "").rpartition(":")[0].strip("[]")
    return bool(host) and not is_loopback(host)


def _named_after(script: str, endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    # The first label: some are told the whole name and some the short one, and a name has 64 characters.
    if not host.replace(".", "").isdigit() and ":" not in host:
        host = host.partition(".")[0]
    end = f"-{host}-{port}"
    return script[: max(registry.JOB_NAME_MAX - len(end), 8)] + end
