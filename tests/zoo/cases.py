"""The faults and the healthy jobs, each with what a viewer should read."""

from __future__ import annotations

import signal
from dataclasses import dataclass

Said = tuple[str, tuple[int, ...]]
"""Kind and ranks of a finding."""

TORCHRUN, PLAIN, ALONE = "torchrun", "plain", "alone"
NOT_IN, EARLY, MISMATCH = "not-in-collective", "left-early", "collective-mismatch"
CRASHED, KILLED, CYCLE, UNMATCHED = "rank-crashed", "rank-killed", "wait-cycle", "unmatched-p2p"


@dataclass(frozen=True)
class Case:
    """One job. `expected`: any of these is right; empty for a healthy one.

    `launch`: by torchrun, as plain processes, or alone (the program starts its ranks). `tolerated`:
    true, though not what is asked for: a warning about a rank that works, a crash before an elastic
    restart. `warning_only`: a critical finding would come before its time. `act`: sent to the
    launcher once a rank says `{"ready": true}`.
    """

    name: str
    program: str
    shape: str
    launch: str = TORCHRUN
    ranks: int = 3
    expected: tuple[Said, ...] = ()
    tolerated: tuple[Said, ...] = ()
    warning_only: bool = False
    act: signal.Signals | None = None
    restarts: int = 0
    words: tuple[str, ...] = ()
    within_s: float | None = None


def _fault(
    name: str,
    program: str,
    kind: str,
    culprits: tuple[int, ...],
    *others: Said,
    launch: str = TORCHRUN,
    ranks: int = 3,
    shape: str = "",
    warning_only: bool = False,
    act: signal.Signals | None = None,
    words: tuple[str, ...] = (),
    within_s: float | None = None,
) -> Case:
    """A case whose shape has its name, unless told otherwise; `others` would be right too."""
    return Case(
        name,
        program,
        shape or name.replace("-", "_"),
        launch,
        ranks,
        expected=((kind, culprits), *others),
        warning_only=warning_only,
        act=act,
        words=words,
        within_s=within_s,
    )


def _slow(
    name: str, kind: str, culprits: tuple[int, ...], ranks: int = 3, within_s: float = 40.0
) -> Case:
    """A job that goes on, slower than it should."""
    return _fault(name, "slow", kind, culprits, ranks=ranks, within_s=within_s)


def _end(name: str, kind: str, culprit: int, *others: Said, ranks: int = 3) -> Case:
    return _fault(
        name, "ends", kind, (culprit,), *others, launch=PLAIN, ranks=ranks, words=(str(culprit),)
    )


FAULTS = (
    _fault("ingest", "bare", NOT_IN, (1,), launch=PLAIN),
    _fault("two-sides", "bare", NOT_IN, (2, 3), ranks=4),
    _fault("checkpoints", "bare", NOT_IN, (1,), launch=PLAIN),
    _fault("spinner", "bare", NOT_IN, (0,), warning_only=True),
    _fault("passed-over", "bare", MISMATCH, (1,)),
    _fault("metrics-first", "bare", MISMATCH, (2,), launch=PLAIN),
    _fault("logs-more", "bare", MISMATCH, (0,)),
    # gloo aborts one side of many size mismatches before anything can be read of its call.
    _fault("larger", "bare", MISMATCH, (0, 1), (KILLED, (0,)), ranks=2),
    _fault(
        "wider",
        "bare",
        MISMATCH,
        (0,),
        (KILLED, (1,)),
        (KILLED, (2,)),
        (MISMATCH, (0, 1)),
        launch=PLAIN,
    ),
    _fault("skips-bad", "ddp", MISMATCH, (1,), (NOT_IN, (1,))),
    _fault("out-of-step", "ddp", MISMATCH, (2,), (NOT_IN, (2,))),
    _fault("tries-again", "ddp", NOT_IN, (1,)),
    _fault("runs-dry", "ddp", EARLY, (0,)),
    _fault("runs-dry-and-waits", "ddp", EARLY, (2,), (MISMATCH, (2,))),
    _fault("leaves", "ddp", EARLY, (1,), launch=PLAIN),
    _fault("good-enough", "ddp", EARLY, (2,), launch=PLAIN),
    _fault("raises", "ddp", CRASHED, (1,)),
    _fault("raises-and-stays", "ddp", CRASHED, (0,)),
    _fault("struck", "ddp", KILLED, (1,)),
    _fault("interrupted", "ddp", "cancelled", (), shape="on_and_on", act=signal.SIGINT),
    _fault("terminated", "ddp", "cancelled", (), shape="on_and_on", act=signal.SIGTERM),
    _fault("starves", "loaders", NOT_IN, (1,), ("loader-stuck", (1,)), launch=PLAIN),
    _fault("helper-dies", "loaders", CRASHED, (1,), launch=PLAIN),
    _fault("taken", "loaders", KILLED, (1,), launch=PLAIN),
    _fault("keeps-alone", "sharded", MISMATCH, (0,)),
    _fault("unrouted", "sharded", MISMATCH, (2,), (KILLED, (2,))),
    _fault("reads", "sharded", NOT_IN, (1,), ranks=2),
    # Where FSDP is imported such a group has no number of its own.
    _fault("named-devices", "sharded", NOT_IN, (1,), ranks=2),
    _fault("crossed", "groups", CYCLE, (0, 1), ranks=4),
    _fault("converts", "groups", NOT_IN, (3,), ranks=4),
    _fault("asks", "objects", NOT_IN, (0,), launch=ALONE),
    _fault("throws", "objects", CRASHED, (1,), launch=ALONE),
    _fault("ring", "pipeline", CYCLE, (0, 1, 2), launch=PLAIN),
    _fault("push", "pipeline", CYCLE, (0, 1), ranks=2),
    _fault("label", "pipeline", UNMATCHED, (0, 1), (UNMATCHED, (1,)), launch=PLAIN, ranks=2),
    _fault("neighbour", "pipeline", UNMATCHED, (2,), (CYCLE, (0, 1, 2))),
    _fault("branch", "pipeline", UNMATCHED, (1,), launch=PLAIN),
    _fault("dozes", "pipeline", NOT_IN, (1,)),
    _fault("batch-stands", "pipeline", NOT_IN, (2,), ranks=4),
    _end("bad-pointer", KILLED, 2),
    _end("gives-up", KILLED, 1, ranks=2),
    _end("held", "rank-stopped", 1),
    _end("gone", KILLED, 0),
    _end("in-c", "interpreter-frozen", 2),
    _end("own-lock", NOT_IN, 1),
    _end("quits", CRASHED, 2),
    _end("feeder", CRASHED, 1, (NOT_IN, (1,))),
    _fault("promised", "overlapped", NOT_IN, (1,)),
    _fault("functional", "overlapped", NOT_IN, (0,), ranks=2),
    _fault("watched", "overlapped", NOT_IN, (2,)),
    _fault("shared-cache", "outside", NOT_IN, (2,)),
    _fault("wants-key", "outside", NOT_IN, (1,)),
    _fault("reports", "outside", NOT_IN, (0,), launch=PLAIN),
    _fault("looped", "outside", NOT_IN, (2,)),
    _fault("polls", "outside", NOT_IN, (1,), launch=PLAIN),
    _fault("paused", "outside", NOT_IN, (0,)),
    _fault("only-one-ended", "outside", KILLED, (2,), launch=PLAIN),
    _fault("too-much", "outside", CRASHED, (1,)),
    _fault("exits-two", "outside", CRASHED, (0,)),
    _fault("collects", "rooted", NOT_IN, (2,)),
    _fault("hands-out", "rooted", NOT_IN, (1,), launch=PLAIN),
    _fault("sums-up", "rooted", MISMATCH, (1,)),
    _fault("triangle", "rooted", CYCLE, (0, 1, 2)),
    _fault("evaluates-alone", "rooted", MISMATCH, (0,)),
    _fault(
        "inner-mismatch",
        "rooted",
        MISMATCH,
        (2, 3),
        (MISMATCH, (3,)),
        (KILLED, (2,)),
        (KILLED, (3,)),
        ranks=4,
    ),
    _fault("odd-one-asleep", "rooted", NOT_IN, (3,), ranks=4),
    _fault("unanswered", "forked", NOT_IN, (1,), launch=ALONE),
    _fault("breaks", "forked", CRASHED, (2,), launch=ALONE),
    _fault("helper-holds", "forked", NOT_IN, (0,), launch=ALONE),
    _slow("in-backward", "straggler", (1,), ranks=4),
    _slow("a-fifth", "straggler", (0,), ranks=2, within_s=75.0),
    _slow("busy-forward", "straggler", (2,)),
    _slow("in-between", "straggler", (1,), ranks=2),
    _slow("holds-the-lock", "straggler", (1,)),
    _slow("cleans-up", "straggler", (0,), ranks=2),
    _slow("two-of-four", "straggler", (0, 3), ranks=4),
    _slow("takes-turns", "straggler", (2,), within_s=60.0),
    _slow("own-data", "straggler", (1,)),
    _slow("before-barrier", "straggler", (0,)),
    _slow("one-by-one", "sync-bound", (0, 1, 2), within_s=60.0),
    _slow("on-one-core", "cpu-oversubscribed", (0, 1, 2), within_s=60.0),
    _slow("all-read-all", "sampler-not-distributed", (0, 1), ranks=2),
    _slow("same-order", "epoch-not-set", (0, 1), ranks=2),
)

_WORKS = ((NOT_IN, (0,)),)
# True of the programs in ddp.py, whose loaders give every rank the same rows.
_ALL_ROWS = (("sampler-not-distributed", (0, 1, 2)), ("sampler-not-distributed", (0, 1)))
HEALTHY = (
    Case("ends-well", "bare", "steady"),
    Case("slow-import", "bare", "slow_import", PLAIN),
    Case("one-pause", "bare", "one_pause"),
    Case("validating", "bare", "validating", tolerated=_WORKS),
    Case("saving", "bare", "saving", PLAIN, tolerated=_WORKS),
    Case("crowd", "bare", "crowd", ranks=2),
    Case("accumulates", "ddp", "accumulates", tolerated=_ALL_ROWS),
    Case("rotates", "ddp", "rotates", PLAIN, tolerated=_ALL_ROWS),
    Case("lengths", "ddp", "lengths", tolerated=_ALL_ROWS),
    Case("joined", "ddp", "joined", tolerated=_ALL_ROWS),
    Case("compiled", "ddp", "compiled", ranks=2, tolerated=_ALL_ROWS),
    Case("again", "ddp", "again", tolerated=((CRASHED, (1,)), *_ALL_ROWS), restarts=1),
    Case("restarts", "loaders", "restarts", PLAIN, ranks=2),
    Case("plain-shards", "sharded", "plain", ranks=2, tolerated=_WORKS),
    Case("later", "groups", "later", ranks=4),
    Case("exchange", "objects", "exchange", ALONE),
    Case("uneven-stages", "pipeline", "uneven_stages"),
    Case("batches", "pipeline", "batches", PLAIN, ranks=4),
    Case("orders", "pipeline", "orders", PLAIN),
    Case("desk", "pipeline", "desk"),
    Case("calm", "overlapped", "calm"),
    Case("last-words", "phases", "last_words", PLAIN),
    Case("half-trains", "phases", "half_trains", ranks=4, tolerated=((NOT_IN, (0, 1)),)),
    Case("child-evaluates", "phases", "child_evaluates", tolerated=_WORKS),
    Case("background-save", "phases", "background_save", PLAIN),
    Case("two-threads", "phases", "two_threads", ranks=2),
    Case("trickle", "phases", "trickle", tolerated=_WORKS),
    Case("periodic-check", "phases", "periodic_check"),
    Case("family", "forked", "family", ALONE),
    Case("even", "slow", "even"),
    Case("lengths-differ", "slow", "lengths_differ"),
    Case("checks-often", "slow", "checks_often", tolerated=_WORKS),
    Case("stumbles", "slow", "stumbles", PLAIN),
    Case("writes-now-and-then", "slow", "writes_now_and_then"),
    Case("own-part", "slow", "own_part", ranks=2),
    Case("new-order", "slow", "new_order", PLAIN, ranks=2),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY)}
