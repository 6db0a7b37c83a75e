"""Jobs whose ranks all run and do not find each other."""

from ddtop.wire.records import Rendezvous, StoreFile
from tests.diagnosis.rules.starting import early, enter
from tests.jobs import BASE, SECOND

PORT = 29500


def meets(world_size=3, absent=(), environments=None, hosts=1, attempt=0, **told):
    """All running ranks look for the store of rank 0 on this host."""
    job = early(world_size, absent, hosts, attempt)
    for rank in job.ranks:
        rank.told |= {"environment": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}} | told
    for number, variables in (environments or {}).items():
        job.ranks[number].told["environment"] = job.ranks[number].told["environment"] | variables
    return job.passes(1)


def way(number, **more):
    given = {
        "address": "127.0.0.1",
        "port": PORT,
        "sockets": ("ESTABLISHED",),
        "local": True,
        "listener_pid": 4800,
    }
    return Rendezvous(number, 4800 + number, **(given | {"listener_ours": True} | more))


def all_enter(job, *numbers, **more):
    for number in numbers:
        job.ranks[number].way = way(number, **more)
    enter(job, *numbers)


def file_store(age_s=86400, **more):
    """Ranks that meet at a file, which was last written this long before the job began."""
    modified = None if age_s is None else BASE - age_s * SECOND
    given = {"bytes": 911, "modified_unix_ns": modified, "writable": True}
    return {
        "environment": {},
        "init_method": "file:///data/store",
        "store_file": StoreFile("/data/store", **(given | more)),
    }
