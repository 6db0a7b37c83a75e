"""Ranks that wait for an answer, a key or a lock."""

from __future__ import annotations

from ddtop.wire.records import CONNECTION, KEY, Link, Sleeper
from tests.jobs import trained

ASLEEP = Sleeper("S", "wait_woken", "recvfrom")


def key(does=""):
    return Link(KEY, '"done/7/2"', does=does)


def request(rank, pid=4711):
    return Link(
        CONNECTION, "127.0.0.1:4455", "serve.py", pid, ASLEEP, does="ESTABLISHED", rank=rank
    )


def waiting(root, *links, ranks=(0, 1), job=None):
    """These ranks wait for that; rank 2 does what `root` says."""
    job = job or trained(3)
    for rank in ranks:
        job.ranks[rank].stands_at("collect", line=30, waits_on="socket")
        chain = "chain" if links[0].resource == KEY else None
        if chain:
            job.ranks[rank].says = {"chain": links}
        else:
            job.ranks[rank].seen_outside["chain"] = links
    job.ranks[2].stands_at("load", line=9, **root)
    return job


LOCK = {"waits_on": "lock"}
