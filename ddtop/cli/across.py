"""`doctor` on jobs of several hosts: what the environment here says of them, whether the hub can be reached, whether key and clock fit."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from ddtop import launch, registry
from ddtop.agent import multi_host
from ddtop.agent.environment import redacted_environment
from ddtop.agent.identity import RANK, Identity
from ddtop.cli import reaching
from ddtop.cli.jobs import HUB
from ddtop.launch.torchrun import is_elastic
from ddtop.relay.hub.topology import Whereabouts, hub_wanted, is_here, names_of_this_host, whereabouts
from ddtop.wire import hosts
from ddtop.wire.records import Hello
from ddtop.words.units import plural

GOOD, BAD, NOTE = "ok", "bad", "note"
Line = tuple[str, str, str]
CLOCK_NS = 2_000_000_000
"""Less is not told apart by a look at the frames' own times."""
CLOCK_S = 1.5
"""A relay speaks once a second; its clock is read from that."""
WAITED_S = 60.0


def spans() -> Line:
    """Whether the job in whose environment this runs (`srun ddtop doctor`) has several hosts, and where its hub would be."""
    environ = os.environ
    rank, size, local = launch.numbers(environ, any_task=True)
    if rank is None or size is None:
        return GOOD, "hosts", "nothing here is of a job; inside one this says where its hub is: srun ddtop doctor"
    who = Identity(RANK, "doctor", rank, local, size, 0, is_elastic(environ))
    found = _where(who, environ)
    if not found.spans:
        return GOOD, "hosts", f"rank {rank} of {size}: a job on this host alone"
    name = environ.get("DDTOP_JOB") or launch.chosen_name(environ)
    if found.is_hub:
        ports = f"port {found.wanted[1]}" if found.wanted else f"one of the ports {_ports(found)}" if name else "a port"
        return (
            GOOD,
            "hosts",
            f"rank 0 of {size} is here: this would be the hub, on {ports}; the other hosts must reach it",
        )
    if found.wanted is None and not found.hosts:
        text = f"rank {rank} of {size}, on several hosts, and nothing says where rank 0 is: set {HUB}=HOST:PORT on all of them"
        return BAD, "hosts", text
    place = f"{found.wanted[0]}:{found.wanted[1]}" if found.wanted else " or ".join(found.hosts)
    ports = f", ports {_ports(found)}" if name and not found.wanted else ""
    return GOOD, "hosts", f"rank {rank} of {size}, on several hosts: the hub would be at {place}{ports}"


def _where(who: Identity, environ: Mapping[str, str]) -> Whereabouts:
    job = environ.get("DDTOP_JOB") or launch.chosen_name(environ)
    job = (
        job
        or multi_host.name_across_hosts(who, environ, os.getppid(), multi_host.endpoint_in(environ), None)
        or "doctor"
    )
    hello = Hello(
        job, "", 0, who.rank, who.local_rank, who.world_size, socket.gethostname(), os.getpid(), 0,
        environment=redacted_environment(environ),
    )  # fmt: skip
    return whereabouts(registry.clean_job_name(job), [hello], environ, names_of_this_host(), WAITED_S)


def _ports(found: Whereabouts) -> str:
    return ", ".join(map(str, sorted(found.ports)))


def hub() -> Line:
    """Whether the hub that is named here, or one of a live job of this user, can be asked from this host."""
    named = os.environ.get(HUB, "")
    if named:
        return _named(named)
    try:
        entries = [one for one in registry.read_entries() if one.role == hosts.HUB and one.live(time.time_ns())]
    except registry.RegistryError as error:
        return BAD, "hub", str(error)
    for entry in entries:
        if entry.sender != registry.host_identity():
            address, port = entry.endpoint()
            return _asked(f"{entry.job} at {address}:{port}", entry, reaching.no_contact(address, port))
    return GOOD, "hub", f"{HUB} is not set: other hosts find it in the shared state folder, or where the ranks meet"


def _named(text: str) -> Line:
    place, _ = hub_wanted(text)
    if place is None:
        return BAD, "hub", f"{HUB}={text[:60]!r} is not HOST:PORT"
    host, port = place
    why = reaching.no_contact(host, port)
    if why is not None and is_here(host, names_of_this_host()):
        return GOOD, "hub", f"{HUB}={text}: on this host, nobody listens there yet; a job with rank 0 here will"
    if why is not None:
        return NOTE, "hub", f"{HUB}={text} is {why}; right where no job runs now, else ask for that port to be opened"
    return _asked(f"{HUB}={text}", registry.at_port("", host, port), None)


def _asked(what: str, entry: registry.JobEntry, why: str | None) -> Line:
    from ddtop.viewer.follower import UnreachableError, join

    if why is not None:
        return NOTE, "hub", f"{what} is {why}"
    try:
        follower, link = join(entry, history_s=0.0)
    except (UnreachableError, registry.RegistryError):
        text = "takes connections, but no relay with this key answers: the key is another, or so is the program there"
        return BAD, "hub", f"{what} {text}"
    for data in link.receive(CLOCK_S):
        follower.take(data)
    link.close()
    apart_ns = follower.now_unix_ns() - time.time_ns()
    if abs(apart_ns) > CLOCK_NS:
        text = (
            f"its clock is {abs(apart_ns) / 1e9:.0f} s {'ahead' if apart_ns > 0 else 'behind'}: mend it (chrony, ntpd)"
        )
        return NOTE, "hub", f"{what} answers, {text}"
    ranks = plural(len(follower.job.ranks), "rank")
    return (
        GOOD,
        "hub",
        f"{what} answers to this key: {follower.job.name or 'a job'}, {ranks}; clocks differ by less than 2 s",
    )


CHECKS: tuple[Callable[[], Line], ...] = (spans, hub)
