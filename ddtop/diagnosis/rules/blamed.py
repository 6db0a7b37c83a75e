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

from ddtop.diagnosis.nccl import launched_less
from ddtop.diagnosis.patience import Blamed, has_fewer_batches, new_program
from ddtop.diagnosis.rule import (
    CRITICAL,
    OF_WAITS,
    RUNS,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Patience,
    Policy,
    RuleRow,
    Waits,
)
from ddtop.diagnosis.shortage import reporters
from ddtop.diagnosis.standstill import STILL, severity_of, standstill_of
from ddtop.diagnosis.stuck_worker import COLLECTIVE, DEAD, HALTED, LOCKED, cause_of
from ddtop.model.account import worker_naps
from ddtop.model.chain import closes_circle, waiting_end
from ddtop.model.facts import Blame, RankFacts, Snapshot, State
from ddtop.model.kernel_wait import may_be_io
from ddtop.model.wait_graph import GONE, LOST, STOPPED, waiters_of


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
        every = (charge.patience_since(since) for charge in charges)
        patience = min(every, key=lambda patience: patience.seconds)
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


def _closes_circle(case: _Case) -> bool:
    end = waiting_end(case.snapshot, case.rank, case.blame.waiters)
    return closes_circle(case.rank, end)


KINDS: tuple[tuple[Kind, Callable[[_Case], bool]], ...] = (
    (Kind.LEFT_EARLY, _ends),
    (Kind.INTERPRETER_FROZEN, lambda case: case.rank.state is State.SILENT),
    (Kind.LEFT_EARLY, lambda case: case.rank.reported.phase == "leaving"),
    (Kind.LEFT_EARLY, lambda case: has_fewer_batches(*case)),
    (Kind.WAIT_CYCLE, _closes_circle),
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
        patient_s = policy.working_critical_s if worker_naps(rank) else limit_s
        least_s = min(stood_s, waited_s)
        if least_s < limit_s:
            return None
        return CRITICAL if least_s >= patient_s else WARNING
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


ROWS = (
    RuleRow(
        rule,
        (
            Kind.NOT_IN_COLLECTIVE,
            Kind.LEFT_EARLY,
            Kind.INTERPRETER_FROZEN,
            Kind.IO_STALL,
            Kind.LOADER_STUCK,
            Kind.WAIT_CYCLE,
        ),
        "which ranks are blamed for waits, where they are instead, and whether their disk or a"
        " DataLoader worker holds them",
        silenced_by=OF_WAITS,
        unless=RUNS,
        leaves_out=("deadlock",),
        may_be_earlier=True,
    ),
    RuleRow(
        gil_held,
        (Kind.NOT_IN_COLLECTIVE, Kind.INTERPRETER_FROZEN),
        "NCCL's status service: how many collectives each rank has launched",
        needs=("ras",),
        silenced_by=(*OF_WAITS, "blamed"),
        unless=RUNS,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.NOT_IN_COLLECTIVE,
        severity="critical; a warning while the rank works or waits as usual",
        brief="a rank has not joined a collective; others wait in it",
        meaning=(
            "A collective ends when every rank of its group has joined. Some ranks wait inside;"
            " those at fault have not joined. Torch's timeout names the victims."
        ),
        found=(
            (
                "torch's flight recorder numbers each group's collectives, so ddtop knows which"
                " rank has not enqueued one. Chains of waits end at such a rank."
            ),
            (
                "ddtop numbers MPI calls itself. A rank that waits in MPI, or for its GPU with"
                " NCCL (loss.item()), spins. With NCCL it must be in one call for {same_line_s},"
                " with its GPU below {gpu_wait_cap_ratio} of the power cap."
            ),
            (
                "No progress: critical after {not-in-collective.wait_s}, but nothing for up to"
                " {blame.still_stay_factor} times an earlier stay at its line; a warning for up to"
                " {not-in-collective.still_habit_factor} times a wait that happened twice, and for"
                " {working_critical_s} in a sleep that ends by then, or in short ones"
                " ({short-sleeps.per_s}). At"
                " work ({cpu_working_ratio} of a core, or I/O): a warning after"
                " {blame.working_limit_s}, {healthy_wait_factor} times the longest healthy wait or"
                " {blame.working_habit_factor} times one that happened twice; critical after"
                " {working_critical_s} or {not-in-collective.working_critical_factor} times that"
                " wait, at most {timeout_critical_ratio} of the timeout. I/O with little"
                " CPU or at {transfers.busy_io_bytes_per_s}: critical after"
                " {not-in-collective.transfer_critical_s}. Checkpoint, validation, compilation:"
                " after {phase.overdue_factor} times the longest one; without CPU after"
                " {phase.still_limit_s} or {phase.usual_factor} times it."
            ),
        ),
        steps=(
            "See what it does instead, and compare all ranks:\nddtop stacks JOB",
            "If it waits for a file, a lock, a child process or a service, fix that.",
            ("If only some ranks reach a collective or new_group, fix that branch."),
            (
                "Do long work of one rank before the group exists, or raise the timeout:\n"
                "init_process_group(..., timeout=timedelta(hours=2))"
            ),
        ),
        before=(
            "if rank == 0:",
            "    dist.all_reduce(loss)             # the others never call this",
            "    state = fsdp_model.state_dict()   # gathers from all ranks",
            "    torch.save(state, path)",
        ),
        after=(
            "dist.all_reduce(loss)",
            "state = fsdp_model.state_dict()       # all ranks take part",
            "if rank == 0:",
            "    torch.save(state, path)           # one writes",
        ),
    ),
    Explanation(
        kind=Kind.LEFT_EARLY,
        severity="critical",
        brief="a rank has ended while others still wait for it",
        meaning=(
            "A rank has left its loop or ended with exit code 0, and others still wait for it in a"
            " collective. Usually the ranks have different numbers of batches, and one rank ran"
            " out first."
        ),
        found=(
            (
                "The process has ended normally and others have waited for it for {gone_limit_s}."
                " Or it is exiting the interpreter or leaving its process group."
            ),
            (
                "Or its DataLoader is exhausted, and the DataLoaders of the waiting ranks have"
                " delivered more batches."
            ),
            "If its peers then fail because its sockets are closed, that is part of this finding.",
            (
                "ddtop speaks of uneven inputs only if a waiting rank has more iterations or"
                " batches, or is in backward. Otherwise only some ranks make that call."
            ),
        ),
        steps=(
            "Print len(loader), or count the batches, on every rank.",
            (
                "Make the numbers equal: use drop_last=True, or a number of shards that the world"
                " size divides."
            ),
            "DDP with inputs that must stay uneven: use Join, as below.",
            (
                "Without DDP: agree on the number of batches before the epoch, with an all_reduce"
                " (MIN)."
            ),
            (
                "If only rank 0 makes a call, such as a gather of a sharded model, make it on all"
                " ranks."
            ),
            (
                "If the rank only exits too early (rank 0 hosts the store), put a barrier before"
                " the exit."
            ),
        ),
        before=(
            "for batch in loader:          # 103 batches here, 104 there",
            "    model(batch).sum().backward()",
        ),
        after=(
            "from torch.distributed.algorithms.join import Join",
            "with Join([model]):           # model is a DDP module",
            "    for batch in loader:",
            "        model(batch).sum().backward()",
        ),
    ),
    Explanation(
        kind=Kind.INTERPRETER_FROZEN,
        severity="critical; a warning while the call computes",
        brief="C code holds the GIL: no Python runs in the process",
        meaning=(
            "The process is alive, but C code holds the interpreter's lock (GIL). No Python thread"
            " can run, and others wait for the rank. A call that computes will return. A call that"
            " sleeps or waits may not."
        ),
        found=(
            (
                "The agent in the rank reports every second. It has not reported for"
                " {report_silent_s}, but the process has neither ended nor stopped."
            ),
            (
                "The relay reads CPU time and wait channel from outside. The source line comes"
                " from the last report. ddtop takes stacks by itself only if py-spy can read the"
                " memory. On request it can also use a signal, which needs no GIL but may end a"
                " sleep in C."
            ),
            (
                "It is reported after {still_limit_s} if the process uses no CPU. If it computes,"
                " the limits of not-in-collective apply: it is a warning for up to"
                " {working_critical_s}."
            ),
        ),
        steps=(
            "See its Python frames, using a signal:\nddtop stacks JOB --rank R --signal",
            "See its C frames:\nddtop stacks JOB --rank R --native",
            (
                "If the thread waits for the GIL itself, another thread of the rank holds it. The"
                " same stacks show that thread."
            ),
            (
                "Your own extension: release the GIL around the long part (Py_BEGIN_ALLOW_THREADS, "
                "py::gil_scoped_release)."
            ),
            "Someone else's code: run it in a separate process, or on all ranks at the same time.",
        ),
        before=('lib = ctypes.PyDLL("libsolver.so")    # keeps the GIL in every call',),
        after=('lib = ctypes.CDLL("libsolver.so")     # lets other threads run',),
    ),
    Explanation(
        kind=Kind.IO_STALL,
        severity="critical; a warning while no rank waits for it",
        brief="a disk or file server does not answer a rank",
        meaning=(
            "The main thread stays in uninterruptible sleep (state D), in the same call, and no"
            " I/O happens. The disk or file server does not answer. Until it answers, kill -9 has"
            " no effect."
        ),
        found=(
            (
                "Every sample of the relay showed state D and the same wait channel, no wake-up in"
                " between, and at most {io_working_bytes_per_s} read or written."
            ),
            (
                "This must last for {io-stall.wait_s} if others wait for the rank, and otherwise"
                " for {stall_alone_limit_s}."
            ),
            (
                "A rank that writes a large checkpoint is often in state D too, but it wakes up"
                " and writes, so that is not an io-stall."
            ),
        ),
        steps=(
            (
                "The kernel log names the server or disk (not responding, I/O error):\ndmesg |"
                " tail -n 30"
            ),
            "Test the mount from another shell, with a time limit:\ntimeout 5 df FOLDER",
            "See which call it hangs in (as root):\ncat /proc/PID/stack",
            (
                "Fix the server or disk. The rank then continues by itself. If nothing helps,"
                " restart the host."
            ),
            (
                "For the next run: copy the data to a local disk before training. Save checkpoints"
                " there too, and move them in the background."
            ),
        ),
        no_demo="it takes a disk or a file server that does not answer",
    ),
    Explanation(
        kind=Kind.LOADER_STUCK,
        severity="critical; a warning while no rank waits for it",
        brief="the worker that owes the next batch makes no progress",
        meaning=(
            "The main thread waits for its next batch. The worker process that must deliver it is"
            " dead, stopped, or blocked in a lock or a call that does not return. The rank itself"
            " can do nothing, and its peers wait for it."
        ),
        found=(
            (
                "The DataLoader's iterator says which worker must deliver the next batch, or that"
                " the workers have not started the new epoch. For {loader-stuck.wait_s} that worker"
                " and its children used no CPU, did no I/O and did not wake up. Or the worker is"
                " gone, or has been stopped for {stopped_limit_s}."
            ),
            (
                "If no rank waits for it yet, it is a warning after {stall_alone_limit_s}. It is"
                " critical if all workers of all ranks are blocked in locks."
            ),
            (
                "For slow workers, and for datasets that the rank reads itself, the finding is"
                " not-in-collective."
            ),
        ),
        steps=(
            "See where the worker is (spawned workers need py-spy):\nddtop stacks JOB --rank R",
            (
                "Blocked in a lock: fork copied the lock while another thread of the rank held it"
                " (OpenCV, OpenMP, tokenizers, logging). Start the workers by spawn, as below, or"
                " switch off threads before the fork: cv2.setNumThreads(0),"
                " TOKENIZERS_PARALLELISM=false."
            ),
            "A collective in the dataset: remove it. A worker is not a rank.",
            (
                "Stopped: kill -CONT PID. Dead: check for the out-of-memory killer:\ndmesg | grep"
                " -i 'killed process'"
            ),
            "A server or file that does not answer: use a timeout in the dataset.",
        ),
        before=("DataLoader(data, num_workers=8)            # fork copies held locks",),
        after=('DataLoader(data, num_workers=8, multiprocessing_context="spawn")',),
    ),
)
