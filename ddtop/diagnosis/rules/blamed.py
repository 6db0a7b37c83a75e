"""`not-in-collective`, `left-early`, `interpreter-frozen`, `io-stall` and `loader-stuck`: a rank
for which others wait, and what holds it there.

The kind and the severity depend on where the blamed rank is and on the state of its process. A rank
that visibly works is a warning until the wait is too long. A rank without progress is critical at
once. A disk or a DataLoader worker is named too while nobody waits for the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.evidence import reporters
from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding, Patience
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.nccl import launched_less
from ddtop.diagnosis.patience import Blamed, has_fewer_batches, new_program
from ddtop.diagnosis.standstill import STILL, severity_of, standstill_of
from ddtop.diagnosis.stuck_worker import COLLECTIVE, DEAD, HALTED, LOCKED, cause_of
from ddtop.model.facts import Blame, RankFacts, Snapshot, State
from ddtop.model.kernel_wait import may_be_io
from ddtop.model.wait_graph import GONE, LOST, STOPPED, waiters_of
from ddtop.policy import Policy, Waits


@dataclass(frozen=True)
class IoStall(Waits, of=Kind.IO_STALL):
    """`io-stall`, where others wait for the rank. Before `wait_s` that is `not-in-collective`."""


@dataclass(frozen=True)
class LoaderStuck(Waits, of=Kind.LOADER_STUCK):
    """`loader-stuck`, where others wait for the rank or all workers are locked."""


class HeldUp(NamedTuple):
    """Others wait for the ranks."""

    blames: tuple[Blame, ...]


class IoStalled(NamedTuple):
    """The ranks are in state D, without I/O. `blames`: of those for which others wait."""

    blames: tuple[Blame, ...]


class WorkerStuck(NamedTuple):
    """The workers that must deliver the next batches of the ranks make no progress. `cause`: one of
    the words of `stuck_worker`. `blames`: as above."""

    cause: str
    blames: tuple[Blame, ...]


class NotLaunched(NamedTuple):
    """NCCL has reported the same launches for a while. `frozen`: C code of the ranks holds the GIL.
    `stands_s`: for how long the report is the same, of ranks that are read from outside."""

    frozen: bool
    stands_s: float | None


class _Charge(NamedTuple):
    """What is found of one rank. `since_unix_ns`: of the finding. `cause`: of a stuck worker."""

    kind: Kind
    severity: str
    rank: int
    since_unix_ns: int
    blame: Blame | None
    cause: str = ""
    patience: Patience | None = None

    @property
    def lone(self) -> bool:
        """A warning about a disk or a worker, while nobody waits for the rank. It is critical once
        the whole job stands."""
        return self.blame is None and self.severity == WARNING

    def patience_since(self, since_unix_ns: int) -> Patience:
        """Its patience, in seconds since then."""
        assert self.patience is not None
        later_s = (self.since_unix_ns - since_unix_ns) / 1e9
        return Patience(later_s + self.patience.seconds, self.patience.because)


def rule(context: Context) -> list[Finding]:
    """One finding for all ranks of the same kind, severity and cause."""
    charges: dict[int, _Charge] = {}
    for look in (_stalled, _with_stuck_workers, _elsewhere):
        for charge in look(context):
            charges.setdefault(charge.rank, charge)
    lone = [charge for charge in charges.values() if charge.lone]
    stands = bool(lone) and _job_stands(context)
    found: dict[tuple[Kind, str, str], list[_Charge]] = {}
    for charge in charges.values():
        severity = CRITICAL if stands and charge.lone else charge.severity
        found.setdefault((charge.kind, severity, charge.cause), []).append(charge)
    return [_finding(severity, charges) for (_, severity, _), charges in found.items()]


def _job_stands(context: Context) -> bool:
    """Whether the whole job makes no progress, and that is critical."""
    still = standstill_of(context.snapshot, context.policy)
    if still is None or not still.all_are(STILL):
        return False
    return severity_of(context.snapshot, still, context.policy)[0] == CRITICAL


def _finding(severity: str, charges: list[_Charge]) -> Finding:
    kind, cause = charges[0].kind, charges[0].cause
    ranks = tuple(sorted(charge.rank for charge in charges))
    blames = tuple(charge.blame for charge in charges if charge.blame is not None)
    first = min(blames, key=lambda blame: blame.since_unix_ns, default=None)
    since, patience = min(charge.since_unix_ns for charge in charges), None
    seen: IoStalled | WorkerStuck | HeldUp
    if kind == Kind.IO_STALL:
        seen = IoStalled(blames)
    elif kind == Kind.LOADER_STUCK:
        seen = WorkerStuck(cause, blames)
    else:
        patience = min((charge.patience_since(since) for charge in charges), key=_seconds)
        seen = HeldUp(blames)
    return Finding(
        kind,
        severity,
        ranks,
        tuple(sorted(waiters_of(blames) - set(ranks))),
        since,
        group=first.group if first else None,
        op=first.op if first else None,
        seq=first.seq if first else None,
        patience=patience,
        seen=seen,
    )


def _seconds(patience: Patience) -> float:
    return patience.seconds


# -- `not-in-collective`, `left-early`, `interpreter-frozen`


def _elsewhere(context: Context) -> Iterator[_Charge]:
    """Other rules handle ranks that wait for a DataLoader worker or that report an error of the
    backend."""
    snapshot, blamed = context.snapshot, Blamed(context.snapshot, context.policy)
    explained = context.explained | reporters(snapshot)
    for blame in snapshot.blames:
        stuck = cause_of(snapshot.rank(blame.root)) is not None
        if blame.root in explained or stuck or not blamed.at_fault(blame):
            continue
        case = _Case(snapshot, snapshot.rank(blame.root), blame, context.policy)
        kind = next(kind for kind, holds in KINDS if holds(case))
        since = blame.since_unix_ns
        waited_s = (snapshot.time_unix_ns - since) / 1e9
        if kind != Kind.NOT_IN_COLLECTIVE or waited_s >= blamed.least_s:
            patience = blamed.patience(blame, kind)
            severity = CRITICAL if waited_s > patience.seconds else WARNING
            yield _Charge(kind, severity, blame.root, since, blame, patience=patience)


class _Case(NamedTuple):
    snapshot: Snapshot
    rank: RankFacts
    blame: Blame
    policy: Policy


def _ends(case: _Case) -> bool:
    process = case.rank.process.report
    return (process is not None and process.exiting) or new_program(case.rank) is not None


def _has_left(case: _Case) -> bool:
    return case.rank.reported.phase == "leaving" or has_fewer_batches(*case)


KINDS: tuple[tuple[Kind, Callable[[_Case], bool]], ...] = (
    (Kind.LEFT_EARLY, _ends),
    (Kind.INTERPRETER_FROZEN, lambda case: case.rank.state is State.SILENT),
    (Kind.LEFT_EARLY, _has_left),
    (Kind.NOT_IN_COLLECTIVE, lambda _: True),
)
"""The first that holds is the kind of the finding about a rank that no disk or worker holds."""


# -- `io-stall`: the main thread stays in one uninterruptible sleep (state D), and its I/O does not
#    progress
#
# A rank that writes a large checkpoint is often in state D too, but it wakes up and its counters
# grow. For a rank whose file server is dead, neither happens. Even SIGKILL does not end it before
# the server answers.


def _stalled(context: Context) -> Iterator[_Charge]:
    snapshot, policy = context.snapshot, context.policy
    now, limit_ns = snapshot.time_unix_ns, policy.wait_s(IoStall) * 1e9
    blames = {
        blame.root: blame
        for blame in snapshot.blames
        if blame.condition not in (GONE, STOPPED, LOST) and now - blame.since_unix_ns >= limit_ns
    }
    for rank in snapshot.ranks:
        since = None if rank.gone else rank.process.stalled_since_unix_ns
        if since is None or not may_be_io(rank.process.report):
            continue
        if rank.rank in blames and now - since >= limit_ns:
            yield _Charge(Kind.IO_STALL, CRITICAL, rank.rank, since, blames[rank.rank])
        elif now - since >= policy.stall_alone_limit_s * 1e9:
            yield _Charge(Kind.IO_STALL, WARNING, rank.rank, since, None)


# -- `loader-stuck`: the main thread waits for a batch, and the worker that must deliver it has
#    ended, is stopped or makes no progress
#
# The rank can do nothing about this, so the finding is about the worker. For a worker that works,
# however slowly, and for a DataLoader without workers, the finding is `not-in-collective`.


def _with_stuck_workers(context: Context) -> Iterator[_Charge]:
    snapshot, policy = context.snapshot, context.policy
    blames = {
        blame.root: blame for blame in snapshot.blames if blame.condition not in (GONE, STOPPED)
    }
    about: _About | None = None
    for rank in snapshot.ranks:
        cause = cause_of(rank)
        if cause is None:
            continue
        about, blame = about or _About(snapshot), blames.get(rank.rank)
        severity = _severity(about, rank, cause, blame, policy)
        since = rank.loader.stuck_since_unix_ns or snapshot.time_unix_ns
        if severity is not None:
            yield _Charge(Kind.LOADER_STUCK, severity, rank.rank, since, blame, cause)


class _About:
    """Facts of the whole job that are needed for each rank, computed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now_unix_ns = snapshot.time_unix_ns
        self.in_peer_waits = {wait.rank for wait in snapshot.peer_waits}
        living = [rank for rank in snapshot.ranks if not rank.gone]
        # All workers of all ranks wait for locks, so none can release one.
        self.all_locked = bool(living) and all(
            cause_of(rank) in (LOCKED, COLLECTIVE)
            and rank.loader.report is not None
            and rank.loader.report.locked == rank.loader.report.workers_alive
            for rank in living
        )


def _severity(
    about: _About, rank: RankFacts, cause: str, blame: Blame | None, policy: Policy
) -> str | None:
    """None: too early. A dead worker has the same limit, because torch raises within five seconds
    if it notices.
    """
    now = about.now_unix_ns
    stood_s = (now - (rank.loader.stuck_since_unix_ns or now)) / 1e9
    if blame is not None:
        waited_s = (now - blame.since_unix_ns) / 1e9
        limit_s = policy.stopped_limit_s if cause == HALTED else policy.wait_s(LoaderStuck)
        return CRITICAL if min(stood_s, waited_s) >= limit_s else None
    # Its main thread may be in a collective while a thread of the program fetches the next batch.
    if rank.wait is not None or rank.rank in about.in_peer_waits:
        return None
    stood_s = min(stood_s, (now - (rank.progress.last_unix_ns or 0)) / 1e9)
    if cause in (DEAD, HALTED) or about.all_locked:
        return CRITICAL if stood_s >= policy.wait_s(LoaderStuck) else None
    return WARNING if stood_s >= policy.stall_alone_limit_s else None


# -- `not-in-collective` and `interpreter-frozen` if the waiting ranks cannot report, because C
#    code holds their GIL, or because they have no agent
#
# NCCL's own thread reports which ranks have enqueued a collective and which have not. The rule
# makes a finding only if NCCL has reported the same twice; a training loop would launch more
# collectives in between. All ranks that have enqueued it must be silent, or, if they are read from
# outside, in a call that may wait for others. The kernel does not tell a rank that spins in one
# such call from one that trains: both run, and both go to sleep a few times in ten seconds.


@dataclass(frozen=True)
class GilHeld(Waits, of="gil-held"):
    """What NCCL's own reports say, if nobody else can. `wait_s`: of ranks that are read from
    outside."""

    ras_same_s: float = 9.0
    """For this time it has reported the same launches, in two answers at least. A rank that trains
    in C would have launched more."""


def gil_held(context: Context) -> list[Finding]:
    """At most one finding: about the first communicator for which NCCL shows this."""
    snapshot, policy = context.snapshot, context.policy
    answer = snapshot.ras
    if answer is None or answer.why is not None or (snapshot.ras_age_s or 0.0) > policy.ras_fresh_s:
        return []
    same_s = (answer.same_ms or 0) / 1000
    for op, late, waiters in launched_less(snapshot, answer):
        roots, others = (
            [snapshot.rank(rank) for rank in late],
            [snapshot.rank(rank) for rank in waiters],
        )
        if any(_is_out(rank) for rank in roots):
            continue
        if same_s >= policy.of(GilHeld).ras_same_s and all(_is_frozen(rank) for rank in others):
            at = snapshot.time_unix_ns - int(((snapshot.ras_age_s or 0.0) + same_s) * 1e9)
            return [_gil_finding(op, roots, waiters, at)]
        if same_s >= policy.wait_s(GilHeld) and all(_may_wait(rank) for rank in others):
            stands_s = (snapshot.ras_age_s or 0.0) + same_s
            at = snapshot.time_unix_ns - int(stands_s * 1e9)
            return [_gil_finding(op, roots, waiters, at, stands_s)]
    return []


def _may_wait(rank: RankFacts) -> bool:
    """Whether a rank that is read from outside is in a call that may wait for others."""
    look = rank.comm.outside
    return not rank.gone and look is not None and look.kind is not None


def _is_frozen(rank: RankFacts) -> bool:
    return rank.state is State.SILENT and not rank.gone


def _is_out(rank: RankFacts) -> bool:
    """Whether another rule reports it, or nothing is known of it."""
    return rank.gone or rank.state is State.STOPPED or rank.hello is None or rank.agent.unheard


def _gil_finding(
    op: str,
    roots: list[RankFacts],
    waiters: tuple[int, ...],
    since: int,
    stands_s: float | None = None,
) -> Finding:
    frozen = all(_is_frozen(rank) for rank in roots)
    return Finding(
        Kind.INTERPRETER_FROZEN if frozen else Kind.NOT_IN_COLLECTIVE,
        WARNING if any(rank.process.working for rank in roots) else CRITICAL,
        tuple(rank.rank for rank in roots),
        waiters,
        since,
        op=op,
        seen=NotLaunched(frozen, stands_s),
    )
