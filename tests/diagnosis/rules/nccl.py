"""Jobs that wait in NCCL, and what NCCL's RAS service reports of them."""

import msgspec

from ddtop.wire.records import CommStatus, Communicator, OutsideLook, RasAnswer, RasRank
from tests.jobs import FakeJob, unix_ns


def nccl_job(torch="2.13.0", **environment):
    job = FakeJob(4)
    for rank in job.ranks:
        rank.told |= {"backend": "nccl", "environment": environment, "torch": torch}
        job.greet(rank)
    return job


def service(*states, counts=None, usual=812, pids=None, hosts=None):
    """The answer of the RAS service: one rank per state, with these launches of all_reduce."""
    launches = counts or [812] * len(states)
    pids = pids or [4800 + number for number in range(len(states))]
    hosts = hosts or ["10.0.0.1"] * len(states)
    ranks = tuple(
        RasRank(number, hosts[number], pids[number], state, number, {"AllReduce": launches[number]})
        for number, state in enumerate(states)
    )
    state = "ok" if set(states) == {"ok"} else "bad"
    return RasAnswer(
        (Communicator("0x5c", len(states), ranks, state=state, usual={"AllReduce": usual}),),
        "2.29.7",
    )


def frozen_job(*frozen, counts=(812, 812, 811, 812), same_ms=10_000, text=False):
    """C code holds the GIL of the ranks; rank 2 sleeps. NCCL's answers come all the same."""
    job = nccl_job().trains(10)
    job.ranks[2].trains = False
    job.ranks[2].stands_at("sleep")
    for number in frozen:
        job.ranks[number].freezes()
    job.passes(6)
    said = msgspec.structs.replace(
        service("ok", "ok", "ok", "ok", counts=list(counts)), same_ms=same_ms, text=text
    )
    if text:
        (one,) = said.communicators
        late = msgspec.structs.replace(
            one, ranks=(msgspec.structs.replace(one.ranks[2], state="behind"),)
        )
        said = msgspec.structs.replace(said, communicators=(late,))
    job.say(CommStatus(said))
    return job.passes(4)


def launches_outside(counts, same_ms=5_500, kind="unclear"):
    """Ranks without agents: 0, 1 and 3 are at one line that synchronizes with the GPU, 2 sleeps."""
    job = nccl_job().trains(10)
    since = unix_ns(job.now - 20.0)
    for number in (0, 1, 3):
        # A rank that spins in a wait has gone to sleep for a moment lately.
        lately = unix_ns(job.now)
        call = "a synchronization with the GPU"
        job.ranks[number].says["outside"] = OutsideLook(kind, call, lately, False)
    job.ranks[2].trains = False
    job.ranks[2].stands_at("sleep")
    job.ranks[2].says["outside"] = OutsideLook(None, None, since, True, apart_looks=9)
    job.passes(1)
    answer = service("ok", "ok", "ok", "ok", counts=list(counts))
    job.say(CommStatus(msgspec.structs.replace(answer, same_ms=same_ms)))
    return job.passes(1)


def stuck(job, answer=None, seconds=8):
    job.trains(10)
    job.others_wait()
    job.passes(seconds / 2)
    if answer is not None:
        job.say(CommStatus(answer))
    job.passes(seconds / 2)
    return job
