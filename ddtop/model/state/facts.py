"""What is true of a job at one moment: frozen values, made by `Job.snapshot`, read by rules and views.

All times are unix ns on the clock of the hub's host. None is "not measured".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from ddtop.model.state.gpu_facts import Device, Own
from ddtop.model.state.host_facts import HostSeen
from ddtop.model.state.straggler_facts import Balance, CardLate, Hold, Late, Pressure
from ddtop.policy import POLICY
from ddtop.wire.gpu import CudaState, RasAnswer
from ddtop.wire.loader import Loader
from ddtop.wire.mpi import MpiState
from ddtop.wire.rank_runs import BESIDE
from ddtop.wire.records import (
    Collective,
    Exit,
    Group,
    GroupProgress,
    Hello,
    HostState,
    LastException,
    OpenCall,
    Order,
    Place,
    ProcessState,
    Stacks,
)
from ddtop.wire.rendezvous import Candidacy, Rendezvous
from ddtop.wire.samples import Catching, Spot


class State(str, Enum):
    """What a rank is, in one word; the same word on the screen, in JSON and in prose."""

    STARTING = "starting"  # agent up, no process group
    JOINING = "joining"  # in init_process_group or MPI_Init
    RUNNING = "running"
    WAITING = "waiting"  # in a collective, not long
    BLOCKED = "blocked"  # waits longer than the limit: a victim
    CULPRIT = "culprit"  # others wait for it
    STRAGGLER = "straggler"
    SILENT = "silent"  # the process lives, its agent does not report
    STOPPED = "stopped"  # state T
    EXITED = "exited"
    KILLED = "killed"
    MISSING = "missing"  # never seen
    LOST = "lost"  # nothing of its whole host is heard any more


@dataclass(frozen=True, slots=True)
class Wait:
    """One rank waits in one group for the members that are behind it.

    `seq` is the first collective that is open on the waiter (comparable across ranks); `behind` are the members that
    have not put it in; empty: every member has. `since_unix_ns`: since when nothing came back.
    """

    rank: int
    group: str
    seq: int
    since_unix_ns: int
    behind: tuple[int, ...]
    op: str | None = None


@dataclass(frozen=True, slots=True)
class PeerWait:
    """One rank waits in a call for single ranks: send, recv or monitored_barrier.

    `behind`: those that are not in a call that would let it end; empty: the other side is there. `peer` None: anybody.
    `within`: the Wait or Sendrecv of MPI that waits for this one, `group` its communicator.
    """

    rank: int
    call: str
    peer: int | None
    tag: int | None
    since_unix_ns: int
    behind: tuple[int, ...]
    within: str | None = None
    group: str | None = None


class RankFacts(msgspec.Struct, frozen=True, gc=False):
    """Everything known of one rank at the moment of the snapshot.

    `report_age_s`: since its agent was last heard, None if never. `cpu_ratio`: cores used over the last two seconds, its
    children included, the agent's own work taken off. `wait_ratio`, `loader_wait_ratio` and `activity_ratios` are over
    the last `window_s` seconds; `loader_wait_low_ratio` is the lowest ratio of the window's quarters, looked for only where that much waiting is worth a word. `working`: it visibly works, None where nobody looks from outside.
    `stacks`: the last dump of its threads, or why there was none; `worker_stacks`: of its DataLoader workers, same dump.
    `heard_unix_ns`: when its agent was last heard. `wakes_per_s`: how often its main thread went to sleep and woke, over two
    seconds. `line_age_s`: for how long every report has named the same line and the same call below it.
    `stalled_since_unix_ns`: since when it is in one and the same uninterruptible sleep (state D) and reads and writes nothing.
    `rendezvous`: its way to the store, while it is inside init_process_group. `others`, `others_gone`: what further processes said
    that claim the same number and live, and how such processes ended.
    `phase_since_unix_ns`: when its phase was first reported.
    `late`: the others wait for it in most steps; with it comes `hold`, also of those that wait. `spots`: the functions in which its last
    `spots_samples` looks found it. `step_best_ms`: the shortest step that it has reported.
    `usual_pause_s`: the second longest time between two moments at which something of it moved: it has paused so long twice. `pressure`: where the relay measures it.
    `own`: its card and how that is known, `cuda`: what torch says of it. `catching`: where somebody asked for it.
    `sender`: its host's identity. `unheard`: nothing of its host has come through lately, so what stands here is old. `unlooked`: its
    relay has not been heard long enough to tell whether it works.
    `owing_still_since_unix_ns`: since when nothing moves of the DataLoader worker that owes it a batch; None while none owes.
    `gpu_waits`: NCCL has work of it, and its card is busy all the time and draws little power for that: it waits inside a kernel of NCCL.
    `gpu_computes`: at the last look its card drew more than any card that waits, None where that cannot be told.
    `card_late`: its card is one that those of the others wait for.

    No dataclass: one that is frozen takes six times as long to make, and 10,000 of these are made a look.
    """

    rank: int
    state: State
    hello: Hello | None = None
    phase: str = "starting"
    activity: str | None = None
    place: Place | None = None
    iteration: int | None = None
    iteration_source: str | None = None
    step_ms: float | None = None
    collective: Collective | None = None
    collective_age_s: float | None = None
    groups: tuple[GroupProgress, ...] = ()
    open_collectives: tuple[Collective, ...] = ()
    retired_collectives: tuple[Collective, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    wait: Wait | None = None
    wait_ratio: float | None = None
    loader: Loader | None = None
    loader_wait_ratio: float | None = None
    loader_wait_low_ratio: float | None = None
    activity_ratios: tuple[float, ...] = ()
    window_s: float | None = None
    process: ProcessState | None = None
    process_since_unix_ns: int | None = None
    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    working: bool | None = None
    report_age_s: float | None = None
    progress_unix_ns: int | None = None
    healthy_wait_max_ms: float | None = None
    usual_wait_ms: float | None = None
    exception: LastException | None = None
    exit: Exit | None = None
    exit_unix_ns: int | None = None
    agent_cpu_ratio: float | None = None
    drops: int = 0
    probes_off: tuple[str, ...] = ()
    recorder: str | None = None
    other_pids: tuple[int, ...] = ()
    loader_window_steps: int | None = None
    stacks: Stacks | None = None
    worker_stacks: tuple[Stacks, ...] = ()
    heard_unix_ns: int | None = None
    wakes_per_s: float | None = None
    line_age_s: float | None = None
    stalled_since_unix_ns: int | None = None
    owing_still_since_unix_ns: int | None = None
    phase_since_unix_ns: int | None = None
    rendezvous: Rendezvous | None = None
    others: tuple[Hello, ...] = ()
    others_gone: tuple[Exit, ...] = ()
    late: Late | None = None
    hold: Hold | None = None
    pressure: Pressure | None = None
    spots: tuple[Spot, ...] = ()
    spots_samples: int = 0
    step_best_ms: float | None = None
    usual_pause_s: float | None = None
    mpi: MpiState | None = None
    cuda: CudaState | None = None
    own: Own | None = None
    gpu_waits: bool | None = None
    card_late: CardLate | None = None
    catching: Catching | None = None
    sender: str | None = None
    unheard: bool = False
    unlooked: bool = False
    gpu_computes: bool | None = None

    @property
    def host(self) -> str | None:
        """Name of the host it runs on."""
        return self.hello.host if self.hello else None

    @property
    def pid(self) -> int | None:
        """Process id in the rank's own pid namespace."""
        return self.hello.pid if self.hello else None

    @property
    def spinning(self) -> bool:
        """It waits in MPI and uses a core for that, as MPI libraries do."""
        waits = self.mpi is not None and bool(self.mpi.calls)
        return waits and not self.gone and (self.cpu_ratio or 0.0) > 0.5

    @property
    def gone(self) -> bool:
        """Its process has ended."""
        return self.exit is not None

    @property
    def nccl(self) -> str | None:
        """NCCL in one word, None where it is not used: err, init, wait (for `nccl_wait_s` or more) or ok."""
        if self.own is None and self.cuda is None:
            return None
        if self.hello is None or "nccl" not in (self.hello.backend or "") or not self.groups:
            return None
        if any(one.error is not None for one in self.groups):
            return "err"
        if any(one.building for one in self.groups):
            return "init"
        young = self.collective_age_s is not None and self.collective_age_s < POLICY.nccl_wait_s
        on_nccl = [one for one in self.groups if not one.group.endswith(BESIDE)]
        if not young and any(one.pending_since_unix_ns is not None for one in on_nccl):
            return "wait"
        return "ok"


def mark(facts: RankFacts, name: str, value: Any) -> None:
    """Write what follows from all ranks into facts that nobody has seen yet: 10,000 copies would take longer than the rest of a look."""
    vars(RankFacts)[name].__set__(facts, value)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process with marks of the job that has not said which rank it is; `process.rank` is what its environment says.

    `since_unix_ns`: when it was first seen, which is some seconds after others began to wait. `cpu_ratio`, `working` as of ranks.
    `woke`: its main thread ran lately, however little. `candidacy`: why it is of the job, and how far its start has come.
    """

    host: str
    process: ProcessState
    since_unix_ns: int
    cpu_ratio: float | None = None
    working: bool | None = None
    woke: bool | None = None
    candidacy: Candidacy | None = None

    @property
    def stands_still(self) -> bool:
        """It neither works nor wakes, and no disk holds it."""
        return self.working is False and not self.woke and self.process.state != "D"

    @property
    def imports(self) -> bool:
        """It has not loaded torch yet, which the ranks that wait for it have."""
        return self.candidacy is not None and self.candidacy.torch_loaded is False


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank at which chains of waits end: others wait for it, and it waits for nobody.

    `standing` says what is known of it: gone, stopped, still, working or unknown. `limit_s` is how long waiting for such a
    rank is borne, `since_unix_ns` when the first waiter began to wait in `group` for collective `seq`. `due`: the limit
    has passed. Where they wait in a call for single ranks, `peer_wait` is the first of these waits, and `group` and `seq` are None.
    """

    root: int
    waiters: tuple[int, ...]
    group: str | None
    seq: int | None
    op: str | None
    since_unix_ns: int
    standing: str
    limit_s: float
    due: bool
    peer_wait: PeerWait | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: `reason` is a sentence's object ("exit code 1 of rank 2", "all ranks finished"). `failed`: something that
    is no rank failed first."""

    reason: str
    first_rank: int | None
    time_unix_ns: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at one moment.

    `ranks` has one entry a rank of the world, ascending, also for those never seen. `waits` are all open waits in collectives, `peer_waits` those for single ranks, `cycles` the sets of ranks that wait for each
    other and for nobody else.
    `moving`: how many ranks made progress in the last seconds; `watched_s`: since the first record of this run.
    `iterations_per_s`: median over the ranks, None while nothing counts iterations. `candidates`: only while ranks wait in
    init_process_group. `host_ages_s`: how old the report of each of `hosts` is. `balances`: of the groups whose
    arrivals were read lately. `devices`: the cards of all hosts that have any. `ras`: what NCCL itself said last, `ras_age_s` ago.
    `orders`: what people had done to ranks lately, each with its time (unix ns), in order of arrival.
    `seen`: how each of `hosts` is heard. `apart`: why only one host of several is seen here, one sentence.
    """

    job: str
    run: str
    attempt: int
    time_unix_ns: int
    live: bool
    world_size: int
    reporting: int
    ranks: tuple[RankFacts, ...]
    groups: tuple[Group, ...] = ()
    hosts: tuple[HostState, ...] = ()
    waits: tuple[Wait, ...] = ()
    blames: tuple[Blame, ...] = ()
    peer_waits: tuple[PeerWait, ...] = ()
    cycles: tuple[tuple[int, ...], ...] = ()
    moving: int = 0
    watched_s: float = 0.0
    iteration: int | None = None
    iterations_per_s: float | None = None
    still_since_unix_ns: int | None = None
    ended: Ended | None = None
    first_hello_unix_ns: int | None = None
    candidates: tuple[Candidate, ...] = ()
    garbled: int = 0
    host_ages_s: tuple[float, ...] = ()
    notes: tuple[str, ...] = field(default=())
    balances: tuple[Balance, ...] = ()
    devices: tuple[Device, ...] = ()
    ras: RasAnswer | None = None
    ras_age_s: float | None = None
    seen: tuple[HostSeen, ...] = ()
    apart: str | None = None
    orders: tuple[tuple[int, Order], ...] = ()

    def rank(self, number: int) -> RankFacts:
        """The facts of one rank; a rank outside the world is `missing`."""
        if 0 <= number < len(self.ranks) and self.ranks[number].rank == number:
            return self.ranks[number]
        return RankFacts(number, State.MISSING)

    def by_host(self) -> list[tuple[HostState, list[RankFacts]]]:
        """Each host with its ranks, ascending. For who asks of every host: 1,250 hosts that each look through 10,000 ranks
        take seconds."""
        found: dict[str | None, list[RankFacts]] = {}
        for rank in self.ranks:
            if rank.hello is not None:
                found.setdefault(rank.sender or rank.hello.host, []).append(rank)
        keys = [one.sender for one in self.seen] or [host.host for host in self.hosts]
        return [(host, found.get(key, [])) for host, key in zip(self.hosts, keys, strict=True)]

    def host_of(self, rank: RankFacts) -> HostState | None:
        """What its host's relay reported last."""
        keys = [one.sender for one in self.seen] or [host.host for host in self.hosts]
        own = rank.sender if self.seen else rank.host
        return next((host for host, key in zip(self.hosts, keys, strict=True) if key == own), None)

    def group(self, name: str) -> Group | None:
        """The process group of that name."""
        return next((group for group in self.groups if group.name == name), None)
