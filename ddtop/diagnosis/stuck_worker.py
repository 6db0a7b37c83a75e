"""Why the DataLoader worker that must deliver a rank's next batch makes no progress."""

from __future__ import annotations

from ddtop.model.account import waits_on
from ddtop.model.facts import RankFacts, State
from ddtop.model.kernel_wait import wait_of
from ddtop.model.progress import is_helpless
from ddtop.wire.records import Loader, ProcessState, Stacks

DEAD, HALTED, LOCKED, DISK, STUCK, COLLECTIVE = (
    "gone", "stopped", "lock", "disk", "stuck", "collective",
)  # fmt: skip
"""The reasons."""


def cause_of(rank: RankFacts) -> str | None:
    """One of the words above; None if the rank waits for no worker, or the worker works."""
    loader = rank.loader.report
    if rank.loader.stuck_since_unix_ns is None or loader is None:
        return None
    if rank.gone or rank.state in (State.STOPPED, State.SILENT) or not _waits_for_it(rank, loader):
        return None
    if is_helpless(loader):
        return HALTED if loader.owing_state in ("T", "t") else DEAD
    return None if rank.process.working else _of_living(rank, loader)


def _of_living(rank: RankFacts, loader: Loader) -> str:
    if loader.owing_state == "D":
        return DISK
    if waits_on(worker_dump(rank)) == "collective":
        return COLLECTIVE
    wait = worker_wait(loader)
    return LOCKED if wait is not None and wait[0] == "lock" else STUCK


def _waits_for_it(rank: RankFacts, loader: Loader) -> bool:
    """Whether the main thread is in torch's DataLoader, or waits for a thread of the program that
    fetches batches ahead.
    """
    waits_on = rank.reported.waits_on
    # For an iterator that is shutting down, it does not matter whether a thread waits for its
    # workers.
    if loader.closing:
        return waits_on == "DataLoader"
    return rank.reported.activity == "loader" or waits_on in ("DataLoader", "queue", "lock")


def worker_wait(loader: Loader) -> tuple[str, str] | None:
    """What the worker does, according to the kernel: a word and a phrase that follows "is"."""
    return wait_of(
        ProcessState(None, loader.owing_pid or 0, loader.owing_state or "", loader.owing_wchan)
    )


def worker_dump(rank: RankFacts) -> Stacks | None:
    """The worker's stacks, if they were taken while it had to deliver this batch."""
    loader = rank.loader.report
    if loader is None or is_helpless(loader):
        return None
    since = min(loader.waiting_since_unix_ns or 1 << 62, rank.loader.stuck_since_unix_ns or 1 << 62)
    found = (
        answer
        for answer in rank.dump.worker_stacks
        if answer.pid == loader.owing_pid and answer.method and answer.taken_unix_ns >= since
    )
    return next(found, None)
