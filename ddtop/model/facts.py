"""What is true of a job at one moment: frozen values, made by `Job.snapshot`.

Rules and views read them. All times are unix ns on the clock of the hub's host. None is "not
measured".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from ddtop.policy import Policy
from ddtop.wire.mpi import MpiState
from ddtop.wire.records import (
    BESIDE,
    RUN,
    CallSite,
    Candidacy,
    Catching,
    Collective,
    CudaState,
    Exit,
    Expectation,
    FailedSave,
    Fall,
    Gpu,
    GpuProcess,
    Group,
    GroupMade,
    GroupProgress,
    Handling,
    Hello,
    HostState,
    LastCall,
    LastException,
    Link,
    Loader,
    Mute,
    OpenCall,
    Order,
    OutsideLook,
    Pace,
    Place,
    ProcessState,
    RasAnswer,
    Rendezvous,
    Replica,
    RpcState,
    Speed,
    Spot,
    Stacks,
    Stage,
    TrainingProgress,
)

# -- What is known of the GPUs of all hosts: frozen values. None is "not measured"


TORCH, PROCESS, ENVIRONMENT = "torch", "process", "environment"
"""How the GPU of a rank is known: torch names it, the driver lists its process there, or its
environment selects it."""


class GpuProgress(NamedTuple):
    """How far the ranks on one GPU are."""

    #: Iteration; None where nothing counts iterations, or where several ranks use the GPU.
    steps: int | None = None
    #: Collectives enqueued by all of its ranks.
    calls: int = 0
    #: Allocations of torch that did not fit at once, of all of its ranks.
    refused: int = 0


class Span(NamedTuple):
    """Means of one GPU over one span of `policy.gpu_mean_s`."""

    #: Number of the span; the same span has the same number on all GPUs.
    number: int
    #: Share of the span in which a kernel ran; None: not measured for most of the span.
    util_ratio: float | None
    #: Mean power; None as above.
    power_watts: float | None
    #: Mean SM clock; None as above.
    sm_mhz: float | None
    #: How far the ranks were at the end of the span.
    done: GpuProgress


class Device(msgspec.Struct, frozen=True, gc=False):
    """One GPU, or MIG instance, of one host. Times are unix ns on the hub's clock."""

    host: str
    #: The last report of the driver.
    gpu: Gpu
    #: Ranks that are known to be on it, by torch or by the driver's list of processes.
    ranks: tuple[int, ...] = ()
    #: Processes that are not the job's.
    foreign: tuple[GpuProcess, ...] = ()
    #: Memory of the job's processes; None where the driver does not report it for some, or counts
    #: in another pid namespace.
    ours_bytes: int | None = None
    #: Memory of processes that are not the job's; None as above.
    foreign_bytes: int | None = None
    #: Uncorrectable ECC errors since the job's first report of this GPU.
    ecc_new: int = 0
    #: Since when each report has found its clocks held down by heat, power or the hardware.
    throttled_since_unix_ns: int | None = None

    # Only of a GPU that is a rank's own:
    #: Share of time in which a kernel ran, over about the last `gpu_mean_s`.
    util_mean_ratio: float | None = None
    #: Mean power over about the last `gpu_mean_s`.
    power_mean_watts: float | None = None
    #: The largest mean power of a span.
    power_peak_watts: float | None = None
    #: It is busy and draws little power for that; None while that is not known.
    waits: bool | None = None
    #: Allocations of torch that did not fit at once, within the spans that are kept.
    refused_lately: int = 0
    #: Pids of the processes in `foreign` that were first seen a moment ago.
    foreign_new: tuple[int, ...] = ()
    #: The last spans, oldest first.
    spans: tuple[Span, ...] = ()
    #: In the last report it drew more power than any GPU that waits; None: not known.
    computes: bool | None = None


class Own(msgspec.Struct, frozen=True, gc=False):
    """The GPU of one rank, and how that is known."""

    gpu: Gpu
    #: `TORCH`, `PROCESS` or `ENVIRONMENT`.
    by: str
    #: The uuid by which torch knows it; None where torch does not report one.
    uuid: str | None = None

    @property
    def certain(self) -> bool:
        """Not a guess from the environment."""
        return self.by != ENVIRONMENT


# -- How each host is heard: frozen values. Times are unix ns on the hub's clock


@dataclass(frozen=True, slots=True)
class HostSeen:
    """Whether and when a host was last heard from."""

    #: The host's identity, because containers repeat names. Before `hosts.merged_host` has put the
    #: relays of a host together: that of one relay.
    sender: str
    host: str
    #: What its relay is in the job: `HUB`, `LEAF` or `ALONE`.
    role: str
    #: By how much its clock differs from the hub's. None: not measured, its times stay unchanged.
    offset_ns: int | None
    #: How far `offset_ns` may be wrong.
    error_ns: int | None
    #: When it or one of its ranks was last heard.
    heard_unix_ns: int
    #: Its relay has missed reports.
    quiet: bool = False
    #: Since when it is not heard at all, while the hub is.
    lost_since_unix_ns: int | None = None
    #: When a collective that needs its ranks completed, long after they had last been heard.
    completing_unix_ns: int | None = None

    @property
    def lost(self) -> bool:
        """Nothing has come from it for longer than it takes to replace a relay."""
        return self.lost_since_unix_ns is not None


# -- Which ranks and GPUs are stragglers, how even the others are, and what kept them: frozen
#    values
#
# Times are unix ns on the hub's clock. None is "not measured".


@dataclass(frozen=True, slots=True)
class Late:
    """These ranks of a group come last into its collectives."""

    group: str
    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    #: How long the others wait for them in a step: median over `steps`, milliseconds.
    cost_ms: float
    step_ms: float
    steps: int
    #: In what share of these steps the others wait.
    late_ratio: float
    #: When the arrivals were read.
    unix_ns: int
    #: Steps are the program's iterations; False: nothing counts those, each collective is a step.
    counted: bool = True
    #: There were no more steps to compare.
    few: bool = False
    #: How many hosts these ranks are on.
    hosts: int = 1
    #: How far the clocks of these hosts may differ, milliseconds.
    error_ms: float = 0.0
    #: How many further hosts were not compared, because of their clocks.
    hosts_apart: int = 0

    @property
    def share_ratio(self) -> float:
        """Share of each step in which the others wait."""
        return min(1.0, self.cost_ms / self.step_ms) if self.step_ms else 0.0


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the ranks of a group are.

    What a collective takes beyond the wait for the last rank is communication.
    """

    group: str
    ranks: tuple[int, ...]
    #: Share of its time in which a rank waits for the last to arrive, mean of all ranks.
    waiting_ratio: float
    #: Collectives in a step.
    per_step: int
    #: Share of the collectives that are all_reduce, barrier or have a root.
    reduce_ratio: float
    step_ms: float
    unix_ns: int
    #: Input of all its collectives in a step, of one rank, and of one collective in the mean; 0
    #: where that is not known.
    step_bytes: float = 0.0
    call_bytes: float = 0.0
    #: Steps compared; share of the usual step that the ranks wait for the last one to arrive; and
    #: the largest share of steps in which one and the same rank is the last.
    steps: int = 0
    usual_ratio: float = 0.0
    last_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """What the host does to one rank's process."""

    #: Seconds over which the rest is measured.
    seconds: float
    #: Share of the time in which its main thread was ready to run and had no CPU.
    delay_ratio: float | None = None
    #: Share of the time in which the CPU quota of its cgroup held it.
    throttled_ratio: float | None = None
    #: Pages read from a disk.
    faults_per_s: float | None = None
    #: How many of its other threads were ready to run and had no CPU, mean over the time.
    threads_delay_cores: float | None = None
    #: Cores that it and its children used, mean over the time.
    used_cores: float | None = None
    #: How much more memory it has resident each second; negative if less.
    memory_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """What kept the interpreter of one rank."""

    #: Seconds over which the rest is measured.
    seconds: float
    #: Share of the agent's samples that came late: C code held the GIL, or there was no CPU.
    held_ratio: float = 0.0
    #: Share of the time in garbage collections.
    gc_ratio: float = 0.0
    #: Where the samples that came late found the main thread.
    spot: Spot | None = None
    #: Where they found another thread of the program that computes.
    taker: Spot | None = None


@dataclass(frozen=True, slots=True)
class GpuLate:
    """The GPUs of these ranks of a group are stragglers.

    The GPUs of `waiters` were busy all the time and waited in NCCL. Powers and clocks are means.
    """

    group: str
    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    power_watts: float
    #: Power of the GPUs that wait.
    others_watts: float
    sm_mhz: float
    others_mhz: float
    #: Seconds over which the rest is measured.
    seconds: float
    #: A process that is not the job's uses one of these GPUs.
    others_there: bool = False


# -- The facts about one rank and about the job


Coordinates = tuple[tuple[str, int, int], ...]
"""(meaning, place, size) of each parallel group of a rank: ("tp", 3, 4)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the grid of ranks."""

    name: str
    size: int


class State(str, Enum):
    """What a rank is, in one word. The screen, JSON and prose use the same word."""

    #: Its agent reports, and there is no process group yet.
    STARTING = "starting"
    #: In init_process_group or MPI_Init.
    JOINING = "joining"
    RUNNING = "running"
    #: In a collective, for less than the limit.
    WAITING = "waiting"
    #: It waits for longer than the limit: a victim.
    BLOCKED = "blocked"
    #: A critical finding blames it. Only `diagnosis.rank_state` says so, never the model.
    CULPRIT = "culprit"
    STRAGGLER = "straggler"
    #: A warning singles it out. Only `diagnosis.rank_state` says so.
    WARNING = "warning"
    #: The process lives, and its agent does not report.
    SILENT = "silent"
    #: In state T of /proc, or in a frozen cgroup.
    STOPPED = "stopped"
    EXITED = "exited"
    KILLED = "killed"
    #: No process of this rank was ever seen.
    MISSING = "missing"
    #: Nothing of its host is heard any more.
    LOST = "lost"


class Wait(msgspec.Struct, frozen=True, gc=False):
    """One rank waits in one group for the members that are behind it.

    A Struct, because in a hang there is one for each rank and group.
    """

    rank: int
    group: str
    #: The first collective that is open on the waiter, counted as on all other ranks.
    seq: int
    #: Since when no collective has completed.
    since_unix_ns: int
    #: Members that have not enqueued `seq`; empty: every member has.
    behind: tuple[int, ...]
    op: str | None = None


@dataclass(frozen=True, slots=True)
class PeerWait:
    """One rank waits in a call for single ranks: send, recv or monitored_barrier."""

    rank: int
    call: str
    #: None: any rank.
    peer: int | None
    tag: int | None
    since_unix_ns: int
    #: Ranks that are not in a call that would end this one; empty: the other side is there.
    behind: tuple[int, ...]
    #: The Wait or Sendrecv of MPI that waits for this one.
    within: str | None = None
    #: Communicator of the call.
    group: str | None = None
    #: Its frames alone say so: the rank is read from outside.
    by_stack: bool = False
    #: Only for `by_stack`: a rank of `behind` runs, and nothing counts its calls. So it may have
    #: made this call.
    likely: bool = False
    #: The group that it makes in this call.
    made: GroupMade | None = None


class ReportedFacts(msgspec.Struct, frozen=True, gc=False):
    """What the rank's agent last reported about its program."""

    #: starting, joining, running or leaving.
    phase: str = "starting"
    #: When the phase was first reported.
    phase_since_unix_ns: int | None = None
    #: One of `ACTIVITIES`, at the last sample.
    activity: str | None = None
    #: Share of each of `ACTIVITIES` in the samples of the last `window_s`.
    activity_ratios: tuple[float, ...] = ()
    #: As `RankState.activity_samples`: the growth between two looks says what the rank did then.
    activity_samples: tuple[int, ...] = ()
    #: Seconds over which `activity_ratios` and `CommFacts.wait_ratio` are measured.
    window_s: float | None = None
    place: Place | None = None
    #: The last one in the program's own code, before the interpreter began to exit.
    own_place: Place | None = None
    #: Seconds for which every report has named the same line and the same call below it.
    line_age_s: float | None = None
    #: The functions in which its last `spots_samples` samples found the main thread most often.
    spots: tuple[Spot, ...] = ()
    spots_samples: int = 0
    #: Exceptions that it catches; only while somebody asks for them.
    catching: Catching | None = None
    #: The exception that its thread handles while it makes no progress.
    handling: Handling | None = None
    #: Its last two collective calls, while it is stuck or has raised.
    calls: tuple[LastCall, ...] = ()
    #: The signal in whose handler its thread is while it makes no progress.
    in_handler: Handling | None = None
    #: The exception that nothing caught, of its last report or of its exit.
    exception: LastException | None = None
    #: Where its program has called `sys.exit` or `os._exit`.
    left_at: Place | None = None
    #: It made progress after `exception`, so a thread of it still trains.
    went_on: bool = False
    #: Its last save that raised an exception.
    failed_save: FailedSave | None = None
    #: While it makes no progress, what its thread waits for in Python.
    chain: tuple[Link, ...] = ()

    @property
    def waits_on(self) -> str | None:
        """What the main thread waits on below its line, as `Place.waits_on`."""
        return self.place.waits_on if self.place is not None else None


class Began(msgspec.Struct, frozen=True, gc=False):
    """Since when every report has said so. `step`: that of the first of them; of a loss, the
    iteration where the program counts no steps."""

    since_unix_ns: int
    step: int


Apart = Mapping[tuple[str, int, tuple[str, ...]], Began]
"""By the key of a replica: since when the rank's values differ from those of the first rank of the
group. Not there while they are equal."""


class ProgressFacts(msgspec.Struct, frozen=True, gc=False):
    """How far the rank's training has come, and how fast it goes."""

    #: Count of iterations; the newest of its report, its state page and its exit.
    iteration: int | None = None
    #: What counts the iterations.
    iteration_source: str | None = None
    step_ms: float | None = None
    #: When its last step ended.
    step_unix_ns: int | None = None
    #: The shortest step that it has reported.
    step_best_ms: float | None = None
    #: When a sequence number, an iteration or a batch last moved.
    last_unix_ns: int | None = None
    #: The second longest time without progress: it has paused that long twice.
    usual_pause_s: float | None = None
    #: While it makes none: the longest time for which it has stood at its line before.
    stayed_s: float | None = None
    #: While it makes none: the end of the sleep that it is in.
    sleeps_until_unix_ns: int | None = None
    #: Since when it is known to be in that sleep.
    sleeps_since_unix_ns: int | None = None
    #: What its framework or program counts: step, epoch, phase, loss.
    training: TrainingProgress | None = None
    #: None while the loss that it reports is a number, or while it reports none.
    not_finite: Began | None = None
    #: How fast it trains, now, ten minutes ago and at its start.
    pace: Pace | None = None
    #: Its last steps take several times as long as the ones before.
    fall: Fall | None = None
    #: The region that the program has announced and is in (`ddtop.expected`).
    expected: Expectation | None = None
    #: A digest of what it trains without a process group.
    trains: str | None = None
    #: Values of parameters that are equal on all ranks that average their gradients.
    replicas: tuple[Replica, ...] = ()
    #: Since when they are not.
    apart: Apart = {}
    #: No progress for so long that `step_ms` says nothing of now.
    stale: bool = False

    @property
    def step_now_ms(self) -> float | None:
        """`step_ms` while the rank makes steps."""
        return None if self.stale else self.step_ms


class CommFacts(msgspec.Struct, frozen=True, gc=False):
    """The rank's collectives, its other calls of torch.distributed and MPI, and their waits."""

    groups: tuple[GroupProgress, ...] = ()
    #: The last groups that it has made, oldest first; None where nobody noted them.
    made: tuple[GroupMade, ...] | None = None
    #: Its place in each group whose meaning is known.
    coordinates: Coordinates = ()
    #: The stages of torch's pipelining that it runs.
    pipeline: tuple[Stage, ...] = ()
    #: The worker of torch.distributed.rpc that it is.
    rpc: RpcState | None = None
    open_collectives: tuple[Collective, ...] = ()
    #: The last collectives that have completed.
    retired_collectives: tuple[Collective, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    #: The collective that has been open longest.
    collective: Collective | None = None
    #: Seconds for which it has been open.
    collective_age_s: float | None = None
    #: `collective_age_s` is below `RankLimits.nccl_wait_s`: on NCCL that is not a wait yet.
    collective_young: bool = False
    #: Share of the samples of the last `ReportedFacts.window_s` in which it waited in a collective.
    wait_ratio: float | None = None
    #: The longest of the last 100 waits of half a second or more that ended, milliseconds.
    healthy_wait_max_ms: float | None = None
    #: The second longest of these waits, milliseconds.
    usual_wait_ms: float | None = None
    mpi: MpiState | None = None
    #: Its route to the store, while it is inside init_process_group.
    rendezvous: Rendezvous | None = None
    #: What was read of it from outside; None for a rank with an agent.
    outside: OutsideLook | None = None
    #: The same of a rank that has ended: the last look at it.
    outside_last: OutsideLook | None = None


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference between the calls of the ranks of a group: since then they pair calls
    that do not belong together."""

    group: str
    #: The sequence number of the call.
    seq: int
    #: It was seen in the steps of the optimizer: this step follows the call.
    step: int | None
    #: The fewer, or those that made the turn if both are as many.
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    #: What `ranks` called, and what `others` called.
    made: CallSite
    instead: CallSite
    #: How many calls more than `others` `ranks` have made, below zero: fewer.
    more: int
    since_unix_ns: int

    @property
    def spot(self) -> str:
        """`#61`, `step 91 (#92)`."""
        return f"#{self.seq:,}" if self.step is None else f"step {self.step:,} (#{self.seq:,})"


class LoaderFacts(msgspec.Struct, frozen=True, gc=False):
    """The rank's DataLoader."""

    #: As the rank's agent reported it last.
    report: Loader | None = None
    #: Share of the last `Policy.window_s` in which the rank waited for data.
    wait_ratio: float | None = None
    #: The lowest of these shares in a quarter of the window; only where the whole is high.
    wait_low_ratio: float | None = None
    #: Iterations in the window.
    window_steps: int | None = None
    #: Since when the worker that must deliver the next batch makes no progress.
    stuck_since_unix_ns: int | None = None
    #: How often that worker wakes per second from its sleep; 0.0 if it is in another wait.
    naps_per_s: float = 0.0
    #: Its workers have nearly always something to do: they make no more batches than are taken.
    busy: bool = False


class ProcessFacts(msgspec.Struct, frozen=True, gc=False):
    """The rank's process, as the relay of its host sees it."""

    #: The relay's last look at it, and when that was.
    report: ProcessState | None = None
    looked_unix_ns: int | None = None
    #: Since when its main thread has had its state letter (R, S, D, T).
    state_since_unix_ns: int | None = None
    #: Cores used over the last two seconds, with its children, without the agent's own work.
    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    #: It visibly works; None where nobody looks from outside.
    working: bool | None = None
    #: It has read or written data all through the last ten seconds: much, or with little CPU.
    transfers: bool = False
    #: It is ready to run and gets next to no CPU, because other processes have it.
    lacks_cpu: bool = False
    #: It waits in MPI, whose libraries use a core for that.
    spinning: bool = False
    #: How often its main thread slept and woke per second, over two seconds.
    wakes_per_s: float | None = None
    #: Since when it is in the same uninterruptible sleep (state D), without any I/O.
    stalled_since_unix_ns: int | None = None
    #: What its host does to it; None where the relay does not measure it.
    pressure: Pressure | None = None
    #: How it ended; None while it lives.
    exit: Exit | None = None
    exit_unix_ns: int | None = None
    #: What its standard output and its standard error are: paths, or names of the kernel.
    outputs: tuple[str, ...] = ()
    #: The error for which NCCL's watchdog aborted it; None if it did not.
    watchdog_error: str | None = None


class GpuFacts(msgspec.Struct, frozen=True, gc=False):
    """How the rank uses its GPU."""

    #: What torch reports of its CUDA memory.
    cuda: CudaState | None = None
    #: What the driver reports of its process.
    own: Own | None = None
    #: NCCL has work of it, and its GPU is busy and draws little power: it waits in an NCCL kernel.
    waits: bool | None = None
    #: In the last report its GPU drew more power than any GPU that waits.
    computes: bool | None = None


class AgentFacts(msgspec.Struct, frozen=True, gc=False):
    """When the rank's agent was last heard from, and what it costs."""

    #: When it was last heard.
    heard_unix_ns: int | None = None
    #: Seconds since it was last heard.
    report_age_s: float | None = None
    #: Identity of its host, because containers repeat names.
    sender: str | None = None
    #: Nothing of its host has come through lately, so the facts of this rank are old.
    unheard: bool = False
    #: Its relay has not been heard long enough to tell whether the rank works.
    unlooked: bool = False
    #: Cores that the agent itself uses.
    cpu_ratio: float | None = None
    #: Reports that it had to drop.
    drops: int = 0
    #: Its parts that are off, as `NAME: REASON`.
    probes_off: tuple[str, ...] = ()
    #: Why the flight recorder reports nothing.
    recorder: str | None = None


class DumpFacts(msgspec.Struct, frozen=True, gc=False):
    """The last dump of the rank's threads."""

    #: Its stacks, or why there are none; None before the first dump.
    stacks: Stacks | None = None
    #: The stacks of its DataLoader workers in the same dump.
    worker_stacks: tuple[Stacks, ...] = ()


class ClaimantFacts(msgspec.Struct, frozen=True, gc=False):
    """Further processes that claim the same rank."""

    #: Pids of those that live.
    pids: tuple[int, ...] = ()
    #: What those that live reported when they started.
    hellos: tuple[Hello, ...] = ()
    #: How others ended.
    exits: tuple[Exit, ...] = ()


class RankFields(msgspec.Struct, gc=False):
    """The fields of `RankFacts`, while a snapshot is made.

    Its parts are frozen from the start. What follows from all ranks together is filled in later,
    by `Job.snapshot` and what it calls. `freeze` makes a `RankFacts` of the fields.

    These and their parts are Structs of at most a dozen fields, because 10,000 of each are made for
    a snapshot: a frozen dataclass takes six times as long to make, and the time for a call with
    keyword arguments grows with the square of their number.
    """

    rank: int
    state: State
    hello: Hello | None = None
    reported: ReportedFacts = ReportedFacts()
    progress: ProgressFacts = ProgressFacts()
    comm: CommFacts = CommFacts()
    loader: LoaderFacts = LoaderFacts()
    process: ProcessFacts = ProcessFacts()
    gpu: GpuFacts = GpuFacts()
    agent: AgentFacts = AgentFacts()
    dump: DumpFacts = DumpFacts()
    claimants: ClaimantFacts = ClaimantFacts()

    # What follows from all ranks together:
    #: Its longest wait in a collective.
    wait: Wait | None = None
    #: The others wait for it in most steps.
    late: Late | None = None
    #: What kept its interpreter; only of ranks that are late, and of ranks that wait for them.
    hold: Hold | None = None
    #: The GPUs of other ranks wait for its GPU.
    gpu_late: GpuLate | None = None
    #: The limits by which `ddtop.model.account` says what it does.
    policy: Policy = Policy()

    @property
    def host(self) -> str | None:
        """Name of the host it runs on."""
        return self.hello.host if self.hello else None

    @property
    def pid(self) -> int | None:
        """Process id in the rank's own pid namespace."""
        return self.hello.pid if self.hello else None

    @property
    def gone(self) -> bool:
        """Its process has ended."""
        return self.process.exit is not None

    @property
    def from_outside(self) -> bool:
        """It has no agent: what is known of it was read from outside."""
        return self.hello is not None and self.hello.run == RUN

    @property
    def nccl(self) -> str | None:
        """NCCL in one word, None where it is not used: err, init, wait or ok."""
        if self.gpu.own is None and self.gpu.cuda is None:
            return None
        if self.hello is None or "nccl" not in (self.hello.backend or "") or not self.comm.groups:
            return None
        if any(group.error is not None for group in self.comm.groups):
            return "err"
        if any(group.building for group in self.comm.groups):
            return "init"
        on_nccl = [group for group in self.comm.groups if not group.group.endswith(BESIDE)]
        pending = any(group.pending_since_unix_ns is not None for group in on_nccl)
        return "wait" if pending and not self.comm.collective_young else "ok"


class RankFacts(RankFields, frozen=True, gc=False):  # type: ignore[misc]
    """Everything known of one rank at the moment of the snapshot: the same fields, frozen.

    msgspec allows a frozen Struct below one that is not frozen. mypy treats both as dataclasses,
    where that is forbidden.
    """


def freeze(fields: RankFields) -> RankFacts:
    """The facts of a rank, after all fields have been filled."""
    return RankFacts(*msgspec.structs.astuple(fields))


_SLEEP = re.compile(r"(?:/\S+/)?sleep (\d+(?:\.\d+)?)([smhd]?)")
_SECONDS_IN = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that belongs to the job and has not reported yet which rank it is."""

    host: str
    #: `process.rank` is what its environment says.
    process: ProcessState
    #: When it was first seen, which is some seconds after others began to wait.
    since_unix_ns: int
    #: As of ranks.
    cpu_ratio: float | None = None
    #: As of ranks.
    working: bool | None = None
    #: Its main thread ran lately, however little.
    woke: bool | None = None
    #: Why it belongs to the job, and how far its start has come.
    candidacy: Candidacy | None = None

    @property
    def stands_still(self) -> bool:
        """It neither works nor wakes, no disk holds it, and it does not lack a CPU."""
        idle = self.working is False and not self.woke
        return idle and self.process.state != "D" and not self.lacks_cpu

    @property
    def lacks_cpu(self) -> bool:
        """It is ready to run and gets next to no CPU, because other processes have it. The wait for
        a CPU is not a wake-up, so `woke` may be False all that time."""
        return self.working is False and self.process.state == "R"

    def sleep_left_s(self, now_unix_ns: int) -> float:
        """How many seconds of its command `sleep` are left; 0 if it runs another command or the
        time is over. Scripts start ranks one after the other in this way.
        """
        candidacy = self.candidacy
        command = _SLEEP.fullmatch((candidacy and candidacy.command) or "")
        if candidacy is None or command is None or candidacy.started_unix_ns is None:
            return 0.0
        asked_s = float(command[1]) * _SECONDS_IN[command[2]]
        return max(0.0, asked_s - (now_unix_ns - candidacy.started_unix_ns) / 1e9)

    @property
    def imports(self) -> bool:
        """It has not loaded torch yet, but the ranks that wait for it have."""
        return self.candidacy is not None and self.candidacy.torch_loaded is False


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank at which chains of waits end: others wait for it, and it waits for nobody."""

    root: int
    waiters: tuple[int, ...]
    #: Where the first waiter waits: group, collective and op. `group` and `seq` are None where the
    #: waiters are in a call for single ranks.
    group: str | None
    seq: int | None
    op: str | None
    #: When the first waiter began to wait.
    since_unix_ns: int
    #: What is known of the rank: gone, stopped, still, working, lost or unknown.
    condition: str
    #: How long waiting for such a rank is normal, seconds.
    limit_s: float
    #: The limit has passed.
    due: bool
    #: The first of the waits in a call for single ranks, if they are in one.
    peer_wait: PeerWait | None = None


@dataclass(frozen=True, slots=True)
class WaitingLauncher:
    """A launcher that has not started a rank yet, as it is seen from outside."""

    pid: int
    #: The program that it is to start.
    script: str
    #: How long it has waited: since its start, without the CPU time that it has used. 0 while it
    #: still starts: it has no connection to the store, and its stack does not show it on the way.
    waited_s: float
    #: HOST:PORT where the nodes meet.
    place: str
    #: How many nodes it needs.
    nodes: int
    #: How many are at the store; None where the store is another process's.
    nodes_there: int | None
    #: How a connection to that place went, as in `Rendezvous`; None if it has one.
    probe: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    #: Words that follow "the job ended:", such as "all ranks finished".
    reason: str
    first_rank: int | None
    time_unix_ns: int
    #: A process that is not a rank failed first.
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at one moment."""

    job: str
    run: str
    attempt: int
    time_unix_ns: int
    #: The job has not ended.
    live: bool
    world_size: int
    #: How many ranks have reported lately.
    reporting: int
    #: One entry for each rank of the world, ascending; a rank that was never seen is `missing`.
    ranks: tuple[RankFacts, ...]
    groups: tuple[Group, ...] = ()
    #: The last report of each host.
    hosts: tuple[HostState, ...] = ()
    #: All open waits in collectives.
    waits: tuple[Wait, ...] = ()
    blames: tuple[Blame, ...] = ()
    #: All open waits for single ranks.
    peer_waits: tuple[PeerWait, ...] = ()
    #: Sets of ranks that wait for each other and for nobody else.
    cycles: tuple[tuple[int, ...], ...] = ()
    #: How many ranks made progress in the last seconds.
    moving: int = 0
    #: Seconds since the first record of this run.
    watched_s: float = 0.0
    #: Median over the ranks.
    iteration: int | None = None
    #: Median over the ranks; None while nothing counts iterations.
    iterations_per_s: float | None = None
    #: When a rank last made progress.
    progress_unix_ns: int | None = None
    #: Since when no rank makes progress; None: some rank does.
    still_since_unix_ns: int | None = None
    ended: Ended | None = None
    first_hello_unix_ns: int | None = None
    #: Only while ranks wait in init_process_group.
    candidates: tuple[Candidate, ...] = ()
    #: Records that were refused because their numbers are absurd.
    garbled: int = 0
    #: Seconds since the report of each of `hosts`.
    host_ages_s: tuple[float, ...] = ()
    #: Sentences for the screen.
    notes: tuple[str, ...] = ()
    #: Where the calls of ranks have parted, the earliest first.
    partings: tuple[Parting, ...] = ()
    #: How even the groups are whose arrivals were read lately.
    balances: tuple[Balance, ...] = ()
    #: The GPUs of all hosts that have any.
    devices: tuple[Device, ...] = ()
    #: The last answer of NCCL's RAS service.
    ras: RasAnswer | None = None
    #: Seconds since that answer.
    ras_age_s: float | None = None
    #: How each of `hosts` is heard.
    seen: tuple[HostSeen, ...] = ()
    #: Why only one of several hosts is seen here, one sentence.
    apart: str | None = None
    #: What people had done to ranks lately, each with its time (unix ns), in order of arrival.
    orders: tuple[tuple[int, Order], ...] = ()
    #: What people have muted and is still muted.
    mutes: tuple[Mute, ...] = ()
    #: How fast a rank of the last run of the same name trained at its end.
    last_run: Speed | None = None
    #: How far the training is: the progress of the ranks as one.
    progress: TrainingProgress | None = None
    #: The dimensions of the grid of ranks, outermost first; empty where no group has a meaning.
    axes: tuple[Axis, ...] = ()
    #: Launchers that have not started a rank. Then there is nothing else.
    launchers: tuple[WaitingLauncher, ...] = ()

    def place_of(self, rank: RankFacts) -> tuple[tuple[str, int], ...]:
        """The rank's coordinates in the grid: (("pp", 1), ("tp", 3))."""
        known = {name: place for name, place, _ in rank.comm.coordinates}
        return tuple((axis.name, known[axis.name]) for axis in self.axes if axis.name in known)

    @property
    def is_still(self) -> bool:
        """No rank makes progress, or the job has ended."""
        return self.still_since_unix_ns is not None or self.ended is not None

    def rank(self, number: int) -> RankFacts:
        """The facts of one rank; a rank outside the world is `missing`."""
        if 0 <= number < len(self.ranks) and self.ranks[number].rank == number:
            return self.ranks[number]
        return RankFacts(number, State.MISSING)

    def by_host(self) -> list[tuple[HostState, list[RankFacts]]]:
        """Each host with its ranks, ascending.

        For callers that need every host: 1,250 searches through 10,000 ranks take seconds.
        """
        found: dict[str | None, list[RankFacts]] = {}
        for rank in self.ranks:
            if rank.hello is not None:
                found.setdefault(rank.agent.sender or rank.hello.host, []).append(rank)
        keys = [host.sender for host in self.seen] or [host.host for host in self.hosts]
        return [(host, found.get(key, [])) for host, key in zip(self.hosts, keys, strict=True)]

    def host_of(self, rank: RankFacts) -> HostState | None:
        """The last report of its host's relay."""
        keys = [host.sender for host in self.seen] or [host.host for host in self.hosts]
        own = rank.agent.sender if self.seen else rank.host
        pairs = zip(self.hosts, keys, strict=True)
        return next((host for host, key in pairs if key == own), None)

    def group(self, name: str) -> Group | None:
        """The process group of that name."""
        return next((group for group in self.groups if group.name == name), None)
