"""Restarts of a job on several hosts.

The launcher of each host counts only the restarts that it has caused. After a worker failed on host
A, the launcher of A counts 1, and that of host B, which only joined again, still counts 0. So an
attempt is compared only with earlier attempts of the same host. The hosts whose ranks have started
again since belong to the same life of the job.
"""

from __future__ import annotations

from ddtop.model.state.memory import JobMemory, RankMemory
from ddtop.wire.frames import Envelope
from ddtop.wire.records import Hello


def is_current(job: JobMemory, envelope: Envelope) -> bool:
    """Whether the record is of the attempt that its host is in."""
    known = job.attempts.get(envelope.sender)
    return known is not None and known[0] == envelope.attempt


def admit(job: JobMemory, envelope: Envelope, hello: Hello) -> bool:
    """Find out which life of the job this process belongs to; False: to an earlier one."""
    sender, attempt = envelope.sender, envelope.attempt
    known = job.attempts.get(sender)
    if known is None:
        if job.generation and _is_before(job, hello):
            return False
        if attempt > job.attempt:
            _note(job, attempt)
        job.attempts[sender] = (attempt, job.generation)
        return True
    again = attempt > known[0]
    if attempt == known[0] and not _is_known(job, envelope, hello):
        again = _has_left(job, sender) if known[1] == job.generation else not _is_before(job, hello)
        if not again and known[1] < job.generation:
            return False
    if not again:
        return attempt == known[0]
    if known[1] == job.generation:
        _begin(job, sender, attempt, hello)
    job.attempts[sender] = (attempt, job.generation)
    for rank in list(job.ranks_of.get(sender, ())):
        if job.ranks[rank].generation < job.generation:
            job.remove(rank)
    return True


def _note(job: JobMemory, attempt: int) -> None:
    job.attempt = attempt
    job.notes.append(f"restarted: attempt {attempt}")


def _is_known(job: JobMemory, envelope: Envelope, hello: Hello) -> bool:
    memory = job.ranks.get(hello.rank) if hello.rank is not None else None
    return memory is not None and memory.is_from(envelope)


def _is_before(job: JobMemory, hello: Hello) -> bool:
    """Whether its process started long before those of this life of the job."""
    begun = job.generation_unix_ns
    return 0 < hello.started_unix_ns < begun - job.policy.restart_apart_s * 1e9


def _has_left(job: JobMemory, sender: str) -> bool:
    """Whether all processes of that host have ended, so that a process that says hello there was
    started again.

    False on a job's only host, where the launcher counts its restarts itself.
    """
    mine = job.ranks_of.get(sender)
    return (
        len(job.attempts) > 1
        and bool(mine)
        and all(job.ranks[rank].exit is not None for rank in mine or ())
    )


def _begin(job: JobMemory, sender: str, attempt: int, hello: Hello) -> None:
    """Begin another life of the job with this process.

    Ranks on other hosts stay if they started with it. A rank whose end is not known yet stays until
    it is known, or until another process takes the rank.
    """
    job.generation += 1
    job.generation_unix_ns = hello.started_unix_ns
    _note(job, max(job.attempt + 1, attempt))
    job.candidates.clear()
    job.rounds.clear()
    job.completed.clear()
    job.world_size = 0
    stays = False
    for rank, memory in list(job.ranks.items()):
        if memory.sender == sender:
            continue
        successor = _started_with(job, memory)
        if successor is not None:
            stays = True
            job.place(rank, successor)
            job.widen(successor.hello)
            job.attempts[successor.sender] = (job.attempts[successor.sender][0], job.generation)
        elif memory.exit is not None:
            job.remove(rank)
    if not stays:
        # Otherwise a faster host may already have reported the groups.
        job.groups.clear()
        job.sorted_groups = None


def _started_with(job: JobMemory, memory: RankMemory) -> RankMemory | None:
    """The process of that rank that belongs to the life of the job that has just begun."""
    if memory.exit is None and memory.hello.started_unix_ns and not _is_before(job, memory.hello):
        memory.generation = job.generation
        return memory
    for pid, hello in memory.others.items():
        if pid in memory.other_pids and hello.started_unix_ns and not _is_before(job, hello):
            successor = memory.successor(pid)
            successor.generation, successor.other_pids, successor.others = job.generation, {}, {}
            return successor
    return None
