"""Every rule in one table: what it reports, what it reads, and what keeps it silent.

The rules run from top to bottom. A cause is above its possible consequences, so that a rule can see
whether its own finding is only a consequence. `ddtop/diagnosis/diagnoses.py` runs the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddtop.diagnosis.evidence import is_reported
from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Is, Kind
from ddtop.diagnosis.rules import (
    blamed,
    calls_differ,
    comm_error,
    data,
    deadlock,
    departures,
    diverged,
    exception_swallowed,
    gpus,
    group_calls,
    hosts,
    loss_not_finite,
    mismatch,
    no_progress,
    rendezvous,
    resources,
    slowdown,
    stalls,
    starting,
    straggler,
    stuck,
    threads,
    versions,
    waits_for_job,
)

Rule = Callable[[Context], list[Finding]]
Fold = Callable[[Context, list[Finding]], list[Finding]]
Condition = Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule."""

    #: Its findings at this moment.
    rule: Rule
    #: The kinds that it may report.
    kinds: tuple[Kind, ...]
    #: The facts that it reads, in words.
    reads: str
    #: Fields of the snapshot. The rule is silent while one of them is empty.
    needs: tuple[str, ...] = ("ranks",)
    #: Rules above. Any finding of one of them silences this rule.
    silenced_by: tuple[str, ...] = ()
    #: The rule is silent while one of these is true.
    unless: tuple[Condition, ...] = ()
    #: Rules above. This rule leaves out the ranks that they have reported (`Context.explained`).
    leaves_out: tuple[str, ...] = ()
    #: Returns all findings after this rule, if it completes or replaces findings of rules above.
    fold: Fold | None = None
    #: Its finding may have begun before the finding that silences it. Then it is a separate cause
    #: and is kept (`earlier_than`).
    may_be_earlier: bool = False

    @property
    def name(self) -> str:
        """That of its function, or of its file where the function is only called `rule`."""
        name = self.rule.__name__
        return self.rule.__module__.rpartition(".")[2] if name == "rule" else name

    def can_speak(self, context: Context) -> bool:
        """Whether the snapshot has what the rule reads, and the rule applies to this job."""
        # Lists, because each look asks each rule: generators took a sixth of the look.
        return not [name for name in self.needs if not getattr(context.snapshot, name)] and not [
            one for one in self.unless if one is not end_explains_all and one(context)
        ]

    def silencers(self, context: Context) -> tuple[Finding, ...]:
        """The findings so far that explain this rule's finding."""
        names = self.silenced_by
        if end_explains_all in self.unless and end_explains_all(context):
            names = (*names, *ENDS)
        return tuple(finding for name in names for finding in context.reported.get(name, ()))

    def ranks_left_out(self, reported: Mapping[str, tuple[Finding, ...]]) -> Iterator[int]:
        """The ranks that the rules in `leaves_out` have reported."""
        for name in self.leaves_out:
            for finding in reported.get(name, ()):
                yield from finding.ranks


STARTS = ("rendezvous", "starting", "unreachable")
ENDS = (*STARTS, "mpi_truncated", "aborted", "departures")
"""A failed rendezvous explains why ranks gave up; a departure explains later waits."""
CAUSES = (*ENDS, "stopped", "group_calls", "mismatch")
"""Rules whose findings explain every wait."""
OF_WAITS = (*CAUSES, "hang")
"""The same, with the calls that have parted."""


def job_has_ended(context: Context) -> bool:
    """No process of the job is left."""
    return context.snapshot.ended is not None


def end_explains_all(context: Context) -> bool:
    """No rank makes progress, because a rank has ended or never started."""
    ends = (finding for name in ENDS for finding in context.reported.get(name, ()))
    return not context.snapshot.moving and any(finding.severity == CRITICAL for finding in ends)


def anything_critical(context: Context) -> bool:
    """Some finding so far is critical."""
    return any(finding.severity == CRITICAL for finding in context.found)


def hang_found(context: Context) -> bool:
    """Some finding so far is critical, and is not about a slow rank."""
    return any(
        finding.severity == CRITICAL and finding.kind != Kind.STRAGGLER for finding in context.found
    )


def backend_reports_error(context: Context) -> bool:
    """A rank reports an error of its backend: then `comm-error` explains its wait better."""
    return is_reported(context.snapshot)


def waits_are_explained(context: Context) -> bool:
    """Some finding so far says which rank others wait for."""
    return any(finding.victims for finding in context.found)


def standstill_is_explained(context: Context) -> bool:
    """Some finding so far may explain why the job makes no progress."""
    return any(
        finding.severity == CRITICAL
        or (finding.severity == WARNING and not finding.kind.is_any(Is.BESIDE))
        for finding in context.found
    )


RUNS = (job_has_ended, end_explains_all)
"""For rules about a job that still runs."""
MOVES = (*RUNS, hang_found)
"""For rules about a job that makes progress."""

TABLE = [
    # -- the start
    RuleRow(
        starting.launcher_waits,
        (Kind.RANK_MISSING, Kind.MASTER_UNREACHABLE),
        "launchers without ranks: their command lines and sockets",
        needs=("launchers",),
    ),
    RuleRow(
        rendezvous.rule,
        (Kind.DUPLICATE_RANK, Kind.STALE_STORE, Kind.RENDEZVOUS_MISMATCH, Kind.MASTER_UNREACHABLE),
        "what each rank passes to init_process_group, and the sockets of its process",
    ),
    RuleRow(
        starting.rule,
        (Kind.LEFT_EARLY, Kind.RANK_KILLED, Kind.LATE_TO_INIT, Kind.RANK_MISSING),
        "which ranks are inside init_process_group, alive outside, dead or never seen",
        silenced_by=("rendezvous",),
    ),
    RuleRow(
        hosts.unreachable,
        (Kind.PEER_UNREACHABLE, Kind.COLLECTIVE_STUCK),
        "the addresses that a rank inside init_process_group connects to",
        silenced_by=("rendezvous", "starting"),
    ),
    # -- the end
    RuleRow(
        mismatch.mpi_truncated,
        (Kind.COLLECTIVE_MISMATCH,),
        "exceptions, the MPI call that failed",
        silenced_by=STARTS,
    ),
    RuleRow(
        mismatch.aborted,
        (Kind.COLLECTIVE_MISMATCH,),
        "the last calls of ranks that have ended, and whether gloo has aborted one",
        silenced_by=STARTS,
    ),
    RuleRow(
        departures.rule,
        (Kind.RANK_CRASHED, Kind.RANK_KILLED, Kind.HELPER_CRASHED, Kind.CANCELLED, Kind.LEFT_EARLY),
        "exits and exceptions, in the order in which they happened",
        silenced_by=(*STARTS, "mpi_truncated", "aborted"),
    ),
    # -- a rank that keeps others waiting
    RuleRow(
        stalls.stopped,
        (Kind.RANK_STOPPED,),
        "process states",
        unless=RUNS,
    ),
    RuleRow(
        group_calls.rule,
        (Kind.COLLECTIVE_MISMATCH,),
        "the last groups that each rank has made, and the waits in them",
        silenced_by=("mpi_truncated", "stopped"),
        unless=RUNS,
        may_be_earlier=True,
    ),
    RuleRow(
        mismatch.rule,
        (Kind.COLLECTIVE_MISMATCH,),
        "the flight recorder's entries of each rank, by group and sequence number",
        needs=("waits",),
        silenced_by=("mpi_truncated", "stopped", "group_calls"),
        unless=RUNS,
        may_be_earlier=True,
    ),
    RuleRow(
        deadlock.rule,
        (Kind.WAIT_CYCLE, Kind.UNMATCHED_P2P, Kind.COLLECTIVE_MISMATCH),
        "waits in collectives and in send and recv, and the cycles that they form",
        silenced_by=CAUSES,
        unless=RUNS,
        may_be_earlier=True,
    ),
    RuleRow(
        calls_differ.hang,
        (Kind.CALLS_DIFFER,),
        "the calls that each rank made after another one for the first time, and who waits",
        needs=("partings", "blames"),
        silenced_by=CAUSES,
        unless=RUNS,
        may_be_earlier=True,
    ),
    RuleRow(
        blamed.rule,
        (
            Kind.NOT_IN_COLLECTIVE,
            Kind.LEFT_EARLY,
            Kind.INTERPRETER_FROZEN,
            Kind.IO_STALL,
            Kind.LOADER_STUCK,
        ),
        "which ranks are blamed for waits, where they are instead, and whether their disk or a"
        " DataLoader worker holds them",
        silenced_by=OF_WAITS,
        unless=RUNS,
        leaves_out=("deadlock",),
        may_be_earlier=True,
    ),
    RuleRow(
        blamed.gil_held,
        (Kind.NOT_IN_COLLECTIVE, Kind.INTERPRETER_FROZEN),
        "NCCL's status service: how many collectives each rank has launched",
        needs=("ras",),
        silenced_by=(*OF_WAITS, "blamed"),
        unless=RUNS,
    ),
    RuleRow(
        stuck.rule,
        (Kind.COLLECTIVE_STUCK,),
        "groups whose members all wait in the same collective",
        needs=("waits", "groups"),
        silenced_by=OF_WAITS,
        unless=(*RUNS, backend_reports_error, waits_are_explained),
    ),
    RuleRow(
        hosts.host_lost,
        (Kind.HOST_LOST,),
        "when each host last reported, and whether collectives with its ranks complete",
        needs=("seen",),
    ),
    # -- a job that moves slowly
    RuleRow(
        straggler.rule,
        (Kind.STRAGGLER,),
        "when the ranks arrive in collectives; power and clocks of their GPUs",
        unless=MOVES,
    ),
    RuleRow(
        straggler.straggler_by_stack,
        (Kind.STRAGGLER,),
        "how often each rank is found in a collective, for ranks that are read from outside",
        unless=(*MOVES, waits_are_explained),
    ),
    RuleRow(
        data.input_bound,
        (Kind.INPUT_BOUND,),
        "the share of the time in which each rank waits for its DataLoader",
        unless=MOVES,
        leaves_out=("straggler",),
    ),
    RuleRow(
        resources.oversubscribed,
        (Kind.CPU_OVERSUBSCRIBED,),
        "the share of the time in which the ranks of a host are ready to run but have no CPU",
        needs=("hosts",),
        unless=MOVES,
    ),
    RuleRow(
        straggler.communication,
        (Kind.SYNC_BOUND, Kind.TRANSFER_BOUND),
        "the share of the time in collectives after all ranks have arrived, and their sizes",
        needs=("balances",),
        silenced_by=("oversubscribed",),
        unless=MOVES,
    ),
    RuleRow(
        straggler.imbalance,
        (Kind.IMBALANCE,),
        "which rank arrives last in each step, and how long the others wait",
        needs=("balances",),
        silenced_by=(
            "straggler",
            "straggler_by_stack",
            "input_bound",
            "oversubscribed",
            "communication",
        ),
        unless=MOVES,
    ),
    RuleRow(
        slowdown.rule,
        (Kind.SLOWDOWN,),
        "the speed of each rank now, ten minutes ago, at its start and in the last run",
        silenced_by=("straggler", "input_bound", "oversubscribed"),
        unless=MOVES,
    ),
    RuleRow(
        loss_not_finite.rule,
        (Kind.LOSS_NOT_FINITE,),
        "the loss that a framework or ddtop.progress reports",
        unless=RUNS,
    ),
    RuleRow(
        diverged.rule,
        (Kind.DIVERGED,),
        "values of parameters that DistributedDataParallel keeps equal, after optimizer steps",
        needs=("groups",),
        unless=RUNS,
    ),
    RuleRow(
        data.sampling,
        (Kind.SAMPLER_NOT_DISTRIBUTED, Kind.EPOCH_NOT_SET),
        "the dataset and the sampler of the DataLoader that feeds the optimizer",
        needs=("groups",),
        unless=MOVES,
    ),
    RuleRow(
        data.not_distributed,
        (Kind.NOT_DISTRIBUTED,),
        "optimizer steps of ranks without a process group, and what each of them trains",
        unless=MOVES,
    ),
    RuleRow(
        calls_differ.rule,
        (Kind.CALLS_DIFFER,),
        "the calls that each rank made after another one for the first time",
        needs=("partings",),
        silenced_by=(*CAUSES, "hang"),
        unless=RUNS,
    ),
    # -- what explains findings above
    RuleRow(
        threads.rule,
        (Kind.THREADS_SHARE_GROUP,),
        "which threads have opened the collectives of one group",
        unless=RUNS,
        fold=threads.fold,
    ),
    RuleRow(
        exception_swallowed.rule,
        (Kind.EXCEPTION_SWALLOWED,),
        "exceptions that each rank has caught (DDTOP_EXCEPTIONS=1)",
        unless=RUNS,
        fold=exception_swallowed.fold,
    ),
    RuleRow(
        versions.version_skew,
        (Kind.VERSION_SKEW,),
        "versions of Python and torch, and a digest of the script",
    ),
    RuleRow(
        versions.backend,
        (Kind.WRONG_BACKEND,),
        "exceptions about NCCL, and the size of gradients on GPUs that go through gloo",
    ),
    RuleRow(
        gpus.gpu_unavailable,
        (Kind.GPU_UNAVAILABLE, Kind.RANK_CRASHED),
        "the exception of a rank that crashed, and which processes hold its GPU",
        fold=gpus.fold_crash,
    ),
    RuleRow(
        gpus.gpu_duplicate,
        (Kind.GPU_SHARED,),
        "the exception of a rank that crashed",
        fold=gpus.fold_crash,
    ),
    RuleRow(
        gpus.gpu_error,
        (Kind.GPU_ERROR,),
        "errors that the driver reports (Xid, ECC, a lost GPU)",
        needs=("devices",),
        fold=gpus.fold_error,
    ),
    RuleRow(
        gpus.gpu_use,
        (Kind.GPU_SHARED, Kind.GPU_BUSY, Kind.GPU_MEMORY_LOW, Kind.GPU_THROTTLED),
        "processes, memory and clocks of each GPU",
        needs=("devices",),
        unless=(job_has_ended,),
        fold=gpus.fold_use,
    ),
    RuleRow(
        resources.rule,
        (Kind.MEMORY_PRESSURE, Kind.DISK_FULL),
        "memory, /dev/shm, cgroup limits, disks, and limits of each process",
        needs=("hosts",),
        unless=(job_has_ended,),
    ),
    # -- what is left
    RuleRow(
        comm_error.rule,
        (Kind.COMM_ERROR,),
        "errors of the backend: exceptions, the state of its groups, NCCL's status service",
        unless=(anything_critical,),
    ),
    RuleRow(
        no_progress.rule,
        (Kind.NO_PROGRESS,),
        "whether the whole job has stopped making progress, and where each rank is",
        unless=(standstill_is_explained,),
    ),
    RuleRow(
        waits_for_job.rule,
        (Kind.WAITS_FOR_JOB, Kind.NOT_IN_COLLECTIVE),
        "connections to ranks of other jobs, and whether these jobs make progress",
        unless=(job_has_ended,),
        fold=waits_for_job.fold,
    ),
]


# -- Finds a cause that began before another one and is therefore not explained by it
#
# Example: rank 2 has been asleep for a minute, and the others wait for it. Then somebody stops rank
# 0. A stopped rank explains the waits that follow, so it silences other rules. It cannot explain
# waits that were already too long when it was stopped; these remain as a separate finding.


def earlier_than(causes: Sequence[Finding], row: RuleRow, context: Context) -> list[Finding]:
    """What the rule of `row` finds that was due before the first of `causes` began."""
    before_unix_ns = min(cause.since_unix_ns for cause in causes)
    named = frozenset(rank for cause in causes for rank in cause.ranks)
    blames = tuple(
        blame
        for blame in context.snapshot.blames
        if blame.root not in named
        and blame.since_unix_ns + blame.limit_s * 1e9 < before_unix_ns
        # A rank that waits itself may have another rank as its reason.
        and context.snapshot.rank(blame.root).wait is None
    )
    snapshot = replace(context.snapshot, blames=blames)
    findings = row.rule(replace(context, snapshot=snapshot))
    limit_ns = context.policy.still_limit_s * 1e9
    return [
        finding
        for finding in findings
        if finding.severity == CRITICAL and finding.since_unix_ns + limit_ns < before_unix_ns
    ]
