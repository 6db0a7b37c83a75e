"""Jobs whose ranks wait in init_process_group for ranks that have not joined."""

from ddtop.wire.records import Candidacy, HelperEnd, ProcessState
from tests.jobs import SECOND, FakeJob, unix_ns

SLEEP = {"wchan": "hrtimer_nanosleep", "syscall": "clock_nanosleep"}


def early(world_size=4, absent=(), hosts=1, attempt=0):
    """A job whose ranks have just begun."""
    job = FakeJob(world_size, hosts=hosts, absent=absent, attempt=attempt)
    for rank in job.ranks:
        rank.phase, rank.trains, rank.iteration = "starting", False, None
        rank.works_at("<module>", line=1, waits_on="import")
    return job


def enter(job, *numbers):
    """These ranks are in init_process_group, and wait."""
    for number in numbers:
        job.ranks[number].stands_at(
            "main", line=30, waits_on="collective", callee="init_process_group"
        )
        job.ranks[number].is_in_init()


def works_before_init_with_a_short_timeout():
    """Rank 2 is late by 33 s, and the group has timeout=timedelta(seconds=60)."""
    job = early(3)
    job.ranks[2].works_at("tokenise", line=12)
    for rank in job.ranks:
        rank.told["init_timeout_ms"] = 60_000
    enter(job, 0, 1)
    return job.passes(33)


def missing(**variables):
    job = early(4, absent=[3])
    for rank in job.ranks:
        rank.told["environment"] = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"} | variables
    job.passes(2)
    enter(job, 0, 1, 2)
    return job


def spawned(cpu_per_s=0, switches_per_s=0, seconds=14, state="S", timeout_ms=None, **candidacy):
    """The process of rank 2 sleeps before init_process_group, and has no rank number yet."""
    job = early(3, absent=[2])
    for rank in job.ranks:
        rank.claim = "init"
        rank.told["init_timeout_ms"] = timeout_ms
    job.passes(1)
    enter(job, 0, 1)
    if candidacy:
        began = unix_ns(job.now)
        job.host_says = {"candidacies": (Candidacy(4999, started_unix_ns=began, **candidacy),)}
    for second in range(seconds):
        if second > 2:
            cpu_ns, switches = int(cpu_per_s * second * SECOND), switches_per_s * second
            place = SLEEP if state == "S" else {}
            job.candidates = (
                ProcessState(None, 4999, state, cpu_ns=cpu_ns, switches=switches, **place),
            )
        job.passes(1)
    return job


def killed(*pids, signal=9, absent=(3,)):
    """mp.Process: the children have no number yet, and these have died."""
    job = early(4, absent=absent)
    for rank in job.ranks:
        rank.claim = "init"
    dead = tuple(HelperEnd(pid, unix_ns(1.0), None, signal) for pid in pids)
    job.host_says = {"helpers": dead}
    enter(job, *(number for number in range(4) if number not in absent))
    return job.passes(4)


def late(**more):
    job = early(3).passes(2)
    job.ranks[2].stands_at("wait_for_licence", line=88, **more)
    enter(job, 0, 1)
    return job
