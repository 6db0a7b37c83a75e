"""Hosts with the reports of their relays."""

from ddtop.policy import POLICY
from ddtop.present.hosts import hosts_facts, names_of
from ddtop.present.map import codes_of, hosts_of_ranks
from ddtop.wire.records import HostState
from tests.ui import builders
from tests.ui.changed import replace

GIB = 1 << 30


REPORT = HostState(
    host="node001",
    cores=64,
    cpu_ratio=0.4,
    memory_total_bytes=512 * GIB,
    memory_available_bytes=128 * GIB,
    shm_total_bytes=256 * GIB,
    shm_free_bytes=200 * GIB,
    relay_rss_bytes=30 << 20,
    dropped=2,
    garbled=1,
)


def facts(snapshot, at_fault=()):
    codes = codes_of(snapshot, at_fault)
    return hosts_facts(snapshot, hosts_of_ranks(names_of(snapshot.ranks)), codes, POLICY), codes


def reported(world_size=16, culprit=13):
    snapshot, _ = builders.hang(world_size, culprit)
    return replace(snapshot, hosts=(REPORT,), host_ages_s=(0.4,))
