"""The name of a job on several hosts. Each host makes it from values that all of them have.

At this time the hosts are not connected. The shared folder, the port of the hub and the viewers use
this name. Not every process knows the id of the batch job: processes that ssh or pdsh starts on
other nodes do not, and each `srun -N1` is a separate step. So the id is used only if srun says that
one step has several nodes. Otherwise the rendezvous address is used first, because all ranks must
know it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ddtop import launch, registry
from ddtop.agent.ancestors import ancestors
from ddtop.agent.identity import Identity
from ddtop.launch.kubernetes import master_pod
from ddtop.launch.start import LauncherStart, NodeOptions
from ddtop.wire.rendezvous import is_loopback


def name_across_hosts(
    who: Identity,
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
    if who.elastic:
        nodes = launch.node_options(environ, ancestors(parent_pid))
    named_endpoint = (
        nodes.endpoint if _is_elsewhere(nodes.endpoint) else endpoint_in(environ, endpoint)
    )
    named_endpoint = named_endpoint if _is_elsewhere(named_endpoint) else None
    if not _spans(who, environ, nodes, named_endpoint):
        return None
    if start is not None:
        return start.label if start.whole else f"{who.script}-{start.label}"
    name = launch.start_across_nodes(environ)
    if name is not None:
        return name
    if named_endpoint is not None or environ.get("DDTOP_HUB"):
        return _named_after(who.script, named_endpoint or environ["DDTOP_HUB"])
    job, own = launch.batch_job(environ), nodes.endpoint or endpoint_in(environ)
    if job is None and who.elastic and own:
        # The address is `localhost`: several launchers on one host.
        return _named_after(who.script, f"{os.uname().nodename}:{own.rpartition(':')[2]}")
    return job


def endpoint_in(environ: Mapping[str, str], given: str | None = None) -> str | None:
    """The rendezvous address, HOST:PORT: `given` to init_process_group, or from MASTER_ADDR."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or is_loopback(host):
        host = master_pod(environ) or host
    return given or (f"{host}:{port}" if host else None)


def _spans(
    who: Identity, environ: Mapping[str, str], nodes: NodeOptions, named_endpoint: str | None
) -> bool:
    if who.elastic and nodes.nodes_max > 1 and named_endpoint is not None:
        # Also if only one node has joined so far: torchrun --nnodes 1:4.
        return True
    sizes = launch.local_and_world_size(environ)
    if sizes is not None:
        return sizes[0] < sizes[1]
    if environ.get("DDTOP_HUB"):
        return True
    nodes_of_world = launch.nodes_of_world(environ, who.world_size)
    if nodes_of_world is not None:
        return nodes_of_world > 1
    return named_endpoint is not None and (who.world_size or 0) > 1


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
