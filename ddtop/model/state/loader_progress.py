"""Since when the DataLoader worker that must deliver the next batch makes no progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.policy import Policy
from ddtop.wire.loader import Loader

_HELPLESS = (None, "Z", "X", "T", "t")
_ASLEEP = "nanosleep"


@dataclass(frozen=True, slots=True)
class Owing:
    """What is known of the worker that must deliver the next batch. Times are unix ns."""

    #: (pid of the worker, batches, exhausted): another batch or worker is another wait.
    key: tuple[int | None, int, int]
    #: It is gone or stopped.
    helpless: bool
    #: Since when nothing of it moved, or since when it is gone or stopped.
    still_since_unix_ns: int
    #: When something of it last moved while this batch was waited for; None: nothing has.
    moved_unix_ns: int | None = None

    def moved(self, by_ns: int) -> Owing:
        """All times plus `by_ns`: the offset of their clock was corrected."""
        at = self.moved_unix_ns
        return replace(
            self,
            still_since_unix_ns=self.still_since_unix_ns + by_ns,
            moved_unix_ns=at + by_ns if at else at,
        )


def helpless(loader: Loader) -> bool:
    """Whether that worker is gone or stopped: it cannot work, whatever it has used before."""
    return loader.owing_state in _HELPLESS


def follow(
    known: Owing | None,
    before: Loader | None,
    now: Loader | None,
    at_unix_ns: int,
    seconds: float,
    policy: Policy,
) -> Owing | None:
    """What is known after the report `now` of `at_unix_ns`, `seconds` after the report `before`.

    None while no worker has to deliver a batch.
    """
    if (
        now is None
        or now.owing_pid is None
        or (now.waiting_since_unix_ns is None and not now.closing)
    ):
        return None
    cannot = helpless(now)
    if not cannot and now.workers_cpu_ns is None:
        return None
    key = (now.owing_pid, now.batches, now.exhausted)
    if known is None or before is None or (known.key, known.helpless) != (key, cannot):
        return Owing(key, cannot, at_unix_ns)
    if not cannot and _moved(before, now, seconds, policy):
        return Owing(key, False, at_unix_ns, at_unix_ns)
    return known


def moves(owing: Owing | None, now_unix_ns: int, policy: Policy) -> bool:
    """Whether something of that worker has moved lately: then its rank works, though its process
    waits."""
    moved = owing.moved_unix_ns if owing is not None else None
    return moved is not None and now_unix_ns - moved <= policy.still_limit_s * 1e9


def _moved(before: Loader, now: Loader, seconds: float, policy: Policy) -> bool:
    if _grown(before.workers_cpu_ns, now.workers_cpu_ns) > policy.cpu_working_ratio * seconds * 1e9:
        return True
    if _grown(before.owing_io_bytes, now.owing_io_bytes) > policy.io_working_bytes_per_s * seconds:
        return True
    # A download shows in no other counter. A loop that sleeps between two polls is no download.
    wakes = _grown(before.owing_switches, now.owing_switches)
    return wakes > policy.socket_working_switches_per_s * seconds and _ASLEEP not in (
        now.owing_wchan or ""
    )


def _grown(before: int | None, now: int | None) -> int:
    return now - before if before is not None and now is not None else 0
