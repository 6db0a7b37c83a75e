"""Checks of `ddtop doctor` for jobs of several hosts.

Is the hub's address known from the environment, can the hub be reached, and do its key and clock
agree with ours?
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from ddtop import launch, registry
from ddtop.agent import run_name
from ddtop.agent.environment import redacted_environment
from ddtop.agent.identity import RANK, Identity
from ddtop.cli import routing
from ddtop.cli.find_job import HUB_VARIABLE as HUB
from ddtop.cli.output import BAD, GOOD, NOTE, CheckLine
from ddtop.follow.engine import UnreachableError
from ddtop.follow.looks import present_of
from ddtop.launch.launchers import is_elastic
from ddtop.relay.hub.topology import Topology, hub_wanted, is_here, names_of_this_host, topology_of
from ddtop.wire import records
from ddtop.wire.records import Hello
from ddtop.words.units import plural

CLOCK_S = 1.5
"""A relay sends a frame with its time once a second."""
WAITED_S = 60.0
"""The age of a job in seconds at which all ranks have joined, so that all addresses are known."""


def spans() -> CheckLine:
    """Does the job of this environment have several hosts, and where is its hub?

    In a job it runs as `srun ddtop doctor`.
    """
    environ = os.environ
    rank, size, local = launch.numbers(environ, any_task=True)
    if rank is None or size is None:
        text = "not inside a job; there, this line says where the hub is: srun ddtop doctor"
        return GOOD, "hosts", text
    identity = Identity(
        RANK,
        "doctor",
        rank=rank,
        local_rank=local,
        world_size=size,
        elastic=is_elastic(environ),
    )
    topology = _topology(identity, environ)
    if not topology.spans:
        return GOOD, "hosts", f"rank {rank} of {size}: a job on this host alone"
    name = environ.get("DDTOP_JOB") or launch.chosen_name(environ)
    if topology.is_hub:
        ports = f"one of the ports {_ports(topology)}" if name else "a port"
        ports = f"port {topology.wanted[1]}" if topology.wanted else ports
        text = f"rank 0 of {size} is here: this would be the hub, on {ports}"
        return GOOD, "hosts", f"{text}; the other hosts must reach it"
    ranks = f"rank {rank} of {size}, on several hosts"
    if topology.wanted is None and not topology.hosts:
        advice = f"set {HUB}=HOST:PORT on all of them"
        return BAD, "hosts", f"{ranks}, and nothing says where rank 0 is: {advice}"
    place = (
        f"{topology.wanted[0]}:{topology.wanted[1]}"
        if topology.wanted
        else " or ".join(topology.hosts)
    )
    ports = f", ports {_ports(topology)}" if name and not topology.wanted else ""
    return GOOD, "hosts", f"{ranks}: the hub would be at {place}{ports}"


def _topology(identity: Identity, environ: Mapping[str, str]) -> Topology:
    """What the relay of this rank would conclude about its hub."""
    job = environ.get("DDTOP_JOB") or launch.chosen_name(environ)
    endpoint = run_name.endpoint_in(environ)
    job = job or run_name.name_across_hosts(identity, environ, os.getppid(), endpoint, None)
    name = job or "doctor"
    hello = Hello(
        name, "", 0, identity.rank, identity.local_rank, identity.world_size, socket.gethostname(),
        os.getpid(), 0, environment=redacted_environment(environ),
    )  # fmt: skip
    own_names = names_of_this_host()
    return topology_of(registry.clean_job_name(name), [hello], environ, own_names, WAITED_S)


def _ports(topology: Topology) -> str:
    return ", ".join(map(str, sorted(topology.ports)))


def hub() -> CheckLine:
    """Does the hub that is named here, or one of a live job of this user, answer to this host?"""
    named = os.environ.get(HUB, "")
    if named:
        return _check_named_hub(named)
    now = time.time_ns()
    try:
        entries = [
            read_entry
            for read_entry in registry.read_entries()
            if read_entry.role == records.HUB and read_entry.live(now)
        ]
    except registry.RegistryError as error:
        return BAD, "hub", str(error)
    for entry in entries:
        if entry.sender != registry.host_identity():
            address, port = entry.endpoint()
            why = routing.no_contact(address, port)
            return _answers(f"{entry.job} at {address}:{port}", entry, why)
    elsewhere = "other hosts find it in the shared state folder, or where the ranks meet"
    return GOOD, "hub", f"{HUB} is not set: {elsewhere}"


def _check_named_hub(text: str) -> CheckLine:
    """The check of the hub in $DDTOP_HUB."""
    place, _ = hub_wanted(text)
    if place is None:
        return BAD, "hub", f"{HUB}={text[:60]!r} is not HOST:PORT"
    host, port = place
    why = routing.no_contact(host, port)
    named = f"{HUB}={text}"
    if why is not None and is_here(host, names_of_this_host()):
        later = "a job with rank 0 here will"
        return GOOD, "hub", f"{named}: on this host, where nothing listens yet; {later}"
    if why is not None:
        advice = "this is right if no job runs now; otherwise ask for that port to be opened"
        return NOTE, "hub", f"{named} is {why}; {advice}"
    return _answers(named, registry.at_port("", host, port), None)


def _answers(hub_text: str, entry: registry.JobEntry, why: str | None) -> CheckLine:
    """Does this relay answer to the key here, and does its clock agree? `why`: no contact."""
    if why is not None:
        return NOTE, "hub", f"{hub_text} is {why}"
    try:
        follower = present_of(entry, CLOCK_S)
    except (UnreachableError, registry.RegistryError):
        text = "takes connections, but no relay with this key answers"
        return (
            BAD,
            "hub",
            f"{hub_text} {text}: it has another key, or another program listens there",
        )
    ahead_ns = follower.now_unix_ns() - time.time_ns()
    if abs(ahead_ns) > follower.policy.clock_apart_s * 1e9:
        apart = f"{abs(ahead_ns) / 1e9:.0f} s {'ahead' if ahead_ns > 0 else 'behind'}"
        return NOTE, "hub", f"{hub_text} answers, its clock is {apart}: fix it (chrony, ntpd)"
    ranks = plural(len(follower.job.ranks), "rank")
    job = follower.job.name or "a job"
    apart = f"clocks differ by less than {follower.policy.clock_apart_s:g} s"
    text = f"answers to this key: {job}, {ranks}; {apart}"
    return GOOD, "hub", f"{hub_text} {text}"


CHECKS: tuple[Callable[[], CheckLine], ...] = (spans, hub)
