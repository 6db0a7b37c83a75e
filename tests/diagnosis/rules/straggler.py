"""`straggler`: the job moves, and in most steps all ranks wait for the same ones."""

from ddtop.wire.records import Arrivals, HostLoad, Limit, Loader, ProcessLoad, Spot, arrivals_of
from tests.arriving import entered
from tests.jobs import SECOND, FakeJob

AUG = "/home/ada/aug.py"


def job_with(slow=(1,), share=0.6, ranks=4):
    """The others wait this share of each step for the slow ranks."""
    job = FakeJob(ranks)
    for rank in job.ranks:
        rank.waits_share = 0.02 if rank.number in slow else share
    return job


def answers(job, slow=(1,), step_ms=100.0, cost_ms=60.0, request="r1", steps=100):
    """All ranks report when they enqueued their last collectives. Each step has one collective."""
    times = entered(
        len(job.ranks),
        steps,
        lambda rank, number: (
            step_ms - cost_ms + (cost_ms if rank in slow else 0) + (rank * 7 + number) % 5
        ),
    )
    for rank, one in zip(job.ranks, times, strict=True):
        record = arrivals_of("0", one)
        job.say(Arrivals(request, (record,), steps), rank)


def read_once(job, **read):
    """The ranks train until their arrivals are read, and for two seconds more."""
    job.trains(12)
    answers(job, **read)
    return job.trains(2)


def counting(job, rank, said=None, **per_s):
    """These counters in the rank's reports grow at these rates. `said`: what stands beside them."""
    job.ranks[rank].says = dict.fromkeys(per_s, 0)

    def pass_on(seconds):
        for _ in range(round(seconds / 0.5)):
            job.ranks[rank].says = (said or {}) | {
                name: job.ranks[rank].says[name] + round(per_s[name] * 0.5) for name in per_s
            }
            job.trains(0.5)

    return pass_on


def crowded_by_others(job, cores, spots):
    """All ranks wait for a CPU for 45% of the time, and together use this many cores."""
    job.host_says = {"load": HostLoad(runnable=60)}
    for rank in job.ranks:
        rank.cores = cores / len(job.ranks)
    for passed in range(26):
        for rank in job.ranks:
            rank.seen_outside = {"load": ProcessLoad(run_delay_ns=round(passed * 0.45 * SECOND))}
            found = spots[0] if rank.number == 1 else spots[1]
            rank.says = {"spots": (Spot("Augment.rotate", AUG, 88, found),), "spots_samples": 100}
        if passed == 24:
            answers(job, cost_ms=50.0)
        job.trains(1)


def pressed(job, seconds, slow, others):
    """Counters of `ProcessLoad` grow at one rate on rank 1, and at another on the others."""
    for second in range(seconds):
        for rank in job.ranks:
            per_s = slow if rank.number == 1 else others
            counters = {name: round(second * value) for name, value in per_s.items()}
            rank.seen_outside = {"load": ProcessLoad(**counters)}
        job.trains(1)


def lacking_cpu(cores, **load):
    """Rank 1 waits 70% of the time for a CPU, the others 5%. Together the ranks use so many
    cores."""
    job = job_with()
    job.host_says = {"load": HostLoad(runnable=7)}
    for passed in range(26):
        for rank in job.ranks:
            rank.cores = cores / len(job.ranks)
            delay_ns = round(passed * (0.7 if rank.number == 1 else 0.05) * SECOND)
            rank.seen_outside = {"load": ProcessLoad(run_delay_ns=delay_ns, **load)}
        if passed == 24:
            answers(job)
        job.trains(1)
    return job


GIB = 1 << 30


def late_and_limited(*used, spots=100):
    """Rank 1 is late in one function. Each rank uses so many of its 100 GiB of address space."""
    job = job_with()
    for rank, gib in zip(job.ranks, used, strict=True):
        rank.seen_outside = {
            "load": ProcessLoad(limits=(Limit("RLIMIT_AS", gib * GIB, 100 * GIB),))
        }
    job.ranks[1].says = {"spots": (Spot("fit", AUG, 88, spots),), "spots_samples": 100}
    return read_once(job)


def by_loaders(depth, capacity=2, workers=1, own=0.95, ranks=4):
    """Rank 1 waits for its loader, the others for rank 1. So many batches of theirs are ready."""
    job = job_with(share=0.9, ranks=ranks)
    for rank in job.ranks:
        late = rank.number == 1
        rank.loader = Loader(workers, 0 if late else depth, capacity, workers)
        rank.loader_share = own if late else 0.04
    return read_once(job, cost_ms=90.0)
