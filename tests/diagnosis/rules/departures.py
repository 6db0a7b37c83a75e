"""Jobs whose ranks end: without agents, and after a hang that was over."""

from ddtop.wire.records import COLLECTIVE, RUN, FailedSave, OutsideLook
from tests.jobs import FakeJob, hung, trained, unix_ns

RESET = "Connection closed by peer [10.0.0.2]:41233"


def looked_at(world_size=3, wait_s=0.05, **told):
    """A job that was started without ddtop, all ranks in all_reduce for `wait_s` at each look."""
    job = FakeJob(world_size, run=RUN)
    for rank in job.ranks:
        rank.told |= told
        job.greet(rank)
    job.trains(6)
    for rank in job.ranks:
        since = unix_ns(job.now - wait_s)
        rank.says["outside"] = OutsideLook(COLLECTIVE, "all_reduce", since, wait_s > 1)
    return job.passes(0.5)


def cancelled_after_a_hang(over_for_s=0):
    """A hang of ten seconds; the job trained again for this long, then SIGTERM came."""
    job = hung(10, joined_s=0.0)
    if over_for_s:
        job.goes_on()
        job.trains(over_for_s)
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.01 * rank.number)
    return job.passes(3)


def all_raise(
    *apart_s, lines=(40, 40, 40, 40), text="mat1 and mat2 shapes cannot be multiplied (4x9 and 8x8)"
):
    job = trained()
    for rank, later_s, line in zip(job.ranks, apart_s, lines, strict=True):
        rank.raises("RuntimeError", text, ago_s=-later_s, line=line)
        rank.ends(1, later_s=later_s + 0.2)
    return job.passes(6)


TORCHS = "[enforce fail at inline_container.cc:863] . PytorchStreamWriter failed writing file"


MIB = 1 << 20


def saves_and_ends(kind=None, text=TORCHS, free_bytes=0, ago_s=1.0, code=1):
    """torch.save of rank 2 fails; then the rank raises that exception, or leaves without one."""
    job = trained()
    rank = job.ranks[2]
    rank.says["failed_save"] = FailedSave(
        "torch.save",
        "/ckpt/e7.pt",
        f"RuntimeError: {TORCHS}",
        unix_ns(job.now - ago_s),
        free_bytes,
        64 * MIB,
    )
    if kind is not None:
        rank.raises(kind, text)
    job.say(rank.state(), rank)
    rank.ends(code)
    return job.passes(3)


def left_with(code):
    """Rank 2 has ended with that exit code, without an exception, and the others wait for it."""
    job = trained()
    job.ranks[2].ends(code, exiting=False)
    job.others_wait(2)
    job.passes(3)
    return job
