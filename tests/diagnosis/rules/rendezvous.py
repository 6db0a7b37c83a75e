"""Jobs whose ranks all run and do not find each other."""

from ddtop.wire.records import ProcessState, Rendezvous, StoreFile
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


def another(job, number, pid, **told):
    """A further process claims this rank."""
    rank = job.ranks[number]
    first, rank.pid = rank.pid, pid
    kept, rank.told = rank.told, rank.told | told
    job.say(rank.hello(), rank)
    rank.pid, rank.told = first, kept


def starts_a_twin(inside=True, waits=True, **told):
    """Rank 0 of a job that trains starts a child, which joins the group of the job again."""
    job = meets(3)
    for rank in job.ranks:
        rank.phase, rank.trains, rank.told = "running", True, rank.told | {"joined": True}
        job.say(rank.hello(), rank)
    job.passes(10)
    if waits:
        job.ranks[0].stands_at("score", "eval.py", 30, waits_on="child")
        job.ranks[0].seen_outside = {"syscall": "wait4", "file": "child 4711"}
        job.others_wait(0)
    at = BASE + 11 * SECOND
    job.beside = (ProcessState(0, 4711, "S", init_since_unix_ns=at if inside else None),)
    given = {
        "claim": "init",
        "above": 4800,
        "launcher_pid": 4800,
        "init_unix_ns": at,
        "joined": False,
    }
    another(job, 0, 4711, **(given | told))
    return job.passes(8)


STRANGER = {"listener_pid": 99, "listener_ours": False, "listener_command": "python old.py"}
