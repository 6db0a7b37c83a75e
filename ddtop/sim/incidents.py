"""What happens to a simulated job, and when: incidents, scenarios made of them, and the eras that
follow.

An era is a period in which every rank keeps its role. The numbers of a rank depend only on the
roles and their paces, so any moment can be computed without the moments before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ddtop.sim.fleet import LOCAL_SIZE

LOADER_STUCK, NOT_IN_COLLECTIVE, RANK_STOPPED, RANK_KILLED = (
    "loader-stuck",
    "not-in-collective",
    "rank-stopped",
    "rank-killed",
)
STRAGGLER, INPUT_BOUND, RANK_MISSING = "straggler", "input-bound", "rank-missing"
HOST_LOST, LINK_CUT = "host-lost", "link-cut"
GPU_THROTTLED, GPU_BUSY, GPU_MEMORY_LOW, GPU_ERROR = (
    "gpu-throttled",
    "gpu-busy",
    "gpu-memory-low",
    "gpu-error",
)
DRIVER_SILENT = "driver-silent"
KINDS = (
    LOADER_STUCK,
    NOT_IN_COLLECTIVE,
    RANK_STOPPED,
    RANK_KILLED,
    STRAGGLER,
    INPUT_BOUND,
    RANK_MISSING,
    HOST_LOST,
    LINK_CUT,
    GPU_THROTTLED,
    GPU_BUSY,
    GPU_MEMORY_LOW,
    GPU_ERROR,
    DRIVER_SILENT,
)
"""The possible incidents, named after the findings that should follow. For `link-cut` that is also
host-lost: the host of a rank does not report, although its ranks continue. Neither can happen to a
job on one host. `driver-silent` causes no finding: the numbers of the GPUs of a rank's host grow
old."""
OF_GPUS = frozenset({GPU_THROTTLED, GPU_BUSY, GPU_MEMORY_LOW, GPU_ERROR, DRIVER_SILENT})
"""These happen to the GPU of a rank. With one of them in the script the hosts have GPUs."""
WHOLE, DIVIDED = "whole", "divided"
"""The GPUs of a host: eight, or eight that are divided in two (MIG), with a rank on the first half
of each.
"""
STANDS = frozenset(
    {LOADER_STUCK, NOT_IN_COLLECTIVE, RANK_STOPPED, RANK_KILLED, HOST_LOST, GPU_ERROR}
)
"""While one of these lasts, no rank makes a step."""
OF_HOSTS = frozenset({HOST_LOST, LINK_CUT})
"""While one of these lasts, nothing of the rank's host is reported."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that goes wrong `begin_s` after the script begins, and is over at `end_s` (None:
    never).

    `rank` None: the seed picks one. `rank-missing` begins with the job; `rank-killed` and
    `gpu-error` never end.
    """

    kind: str
    begin_s: float
    end_s: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`restarts_s`: so long after its beginning the launcher starts all ranks anew, and the script
    begins again; None: never. `skew_s`: so far the clocks of hosts are off that of the first, at
    most. `gpus`: what the hosts have, WHOLE or DIVIDED; None: none, and no driver, unless an
    incident is one of GPUs. On the last `bare_hosts` of them the relay finds no driver.
    """

    incidents: tuple[Incident, ...] = ()
    restarts_s: float | None = None
    skew_s: float = 0.0
    gpus: str | None = None
    bare_hosts: int = 0

    @property
    def has_gpus(self) -> str | None:
        """WHOLE or DIVIDED, None for hosts without."""
        return self.gpus or (
            WHOLE if any(incident.kind in OF_GPUS for incident in self.incidents) else None
        )


TOUR, GPU_TOUR = "tour", "gpu-tour"
KNOWN_S = 40.0
"""A viewer needs this time to learn the power of a GPU that computes; only then can it recognise
one that waits.
"""
SCENARIOS: Mapping[str, Scenario] = {
    TOUR: Scenario(
        (
            Incident(LOADER_STUCK, 20.0, 50.0),
            Incident(STRAGGLER, 65.0, 95.0),
            Incident(INPUT_BOUND, 115.0, 145.0),
            Incident(RANK_KILLED, 160.0),
        ),
        restarts_s=200.0,
    ),
    "healthy": Scenario(),
    RANK_MISSING: Scenario((Incident(RANK_MISSING, 0.0, 45.0),)),
    RANK_KILLED: Scenario((Incident(RANK_KILLED, 10.0),)),
    **{
        kind: Scenario((Incident(kind, 10.0, 130.0),))
        for kind in (
            LOADER_STUCK,
            NOT_IN_COLLECTIVE,
            RANK_STOPPED,
            STRAGGLER,
            INPUT_BOUND,
            HOST_LOST,
            LINK_CUT,
        )
    },
    "clock-skew": Scenario(skew_s=90.0),
    GPU_TOUR: Scenario(
        (
            Incident(NOT_IN_COLLECTIVE, KNOWN_S, 65.0),
            Incident(GPU_BUSY, 85.0, 115.0),
            Incident(GPU_THROTTLED, 135.0, 195.0),
            Incident(GPU_MEMORY_LOW, 215.0, 245.0),
            Incident(GPU_ERROR, 265.0),
        ),
        restarts_s=300.0,
        gpus=WHOLE,
    ),
    "gpu-healthy": Scenario(gpus=WHOLE),
    "gpu-hang": Scenario((Incident(NOT_IN_COLLECTIVE, KNOWN_S, 160.0),), gpus=WHOLE),
    "gpu-straggler": Scenario((Incident(STRAGGLER, KNOWN_S, 160.0),), gpus=WHOLE),
    GPU_ERROR: Scenario((Incident(GPU_ERROR, KNOWN_S),)),
    **{
        kind: Scenario((Incident(kind, KNOWN_S, 160.0),))
        for kind in (GPU_THROTTLED, GPU_BUSY, GPU_MEMORY_LOW, DRIVER_SILENT)
    },
    "gpu-mig": Scenario(gpus=DIVIDED),
    "no-driver": Scenario(gpus=WHOLE, bare_hosts=1),
}
"""The scenarios by name, for `ddtop --sim N --scenario NAME`. Those with one incident last two
minutes; then the job is healthy again.
"""

LIVED_S = 2_400.0
"""How long a job has been training that does not start with its script."""
STARTING_S, JOINING_S = 2.0, 4.0
"""Seconds from the start of the processes until all have sent their Hello, and until all have
joined."""


@dataclass(frozen=True, slots=True)
class CounterPace:
    """How fast the counters of a rank grow, a second; `shares` of its time follow ACTIVITIES,
    `cores` includes its children.
    """

    wait_ratio: float = 0.0
    shares: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    cores: float = 0.003
    io_bytes_per_s: float = 200.0
    wakes_per_s: float = 1.0
    loader_ratio: float = 0.0


TRAINS, SLOW, HASTY, STARVED = "trains", "slow", "hasty", "starved"
LOADS, STRAYS, STOPPED, GONE, WAITS = "loads", "strays", "stopped", "gone", "waits"
ABSENT, STARTS = "absent", "starts"
HOT, HELD, CRAMPED, FALLEN = "hot", "held", "cramped", "fallen"
TRAINING = frozenset({TRAINS, SLOW, HASTY, STARVED, HOT, HELD, CRAMPED})

PACES: Mapping[str, CounterPace] = {
    TRAINS: CounterPace(0.22, (0.02, 0.27, 0.46, 0.06, 0.16, 0.0, 0.03), 1.4, 3e6, 160.0, 0.02),
    SLOW: CounterPace(0.03, (0.01, 0.36, 0.54, 0.06, 0.02, 0.0, 0.01), 1.4, 3e6, 90.0, 0.01),
    HASTY: CounterPace(0.46, (0.01, 0.19, 0.31, 0.04, 0.42, 0.0, 0.03), 1.1, 2e6, 140.0, 0.01),
    STARVED: CounterPace(0.10, (0.51, 0.15, 0.22, 0.03, 0.08, 0.0, 0.01), 1.2, 4e6, 120.0, 0.51),
    LOADS: CounterPace(0.0, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), loader_ratio=1.0),
    STRAYS: CounterPace(),
    STOPPED: CounterPace(cores=0.0, io_bytes_per_s=0.0, wakes_per_s=0.0),
    GONE: CounterPace(cores=0.0, io_bytes_per_s=0.0, wakes_per_s=0.0),
    WAITS: CounterPace(1.0, (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)),
    ABSENT: CounterPace(cores=0.0, io_bytes_per_s=0.0, wakes_per_s=0.0),
    STARTS: CounterPace(cores=0.9, io_bytes_per_s=9e6, wakes_per_s=40.0),
    # If the GPUs limit the speed, the programs of all ranks run ahead and wait for them.
    HOT: CounterPace(0.72, (0.01, 0.13, 0.19, 0.03, 0.05, 0.57, 0.02), 1.2, 1.5e6, 150.0, 0.01),
    HELD: CounterPace(0.72, (0.01, 0.13, 0.19, 0.03, 0.05, 0.57, 0.02), 1.2, 1.5e6, 150.0, 0.01),
    CRAMPED: CounterPace(0.24, (0.02, 0.29, 0.42, 0.06, 0.13, 0.05, 0.03), 1.4, 3e6, 150.0, 0.02),
    FALLEN: CounterPace(0.0, (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)),
}
_ROLES = {
    # kind: (the rank at fault, all others)
    LOADER_STUCK: (LOADS, WAITS),
    NOT_IN_COLLECTIVE: (STRAYS, WAITS),
    RANK_STOPPED: (STOPPED, WAITS),
    RANK_KILLED: (GONE, WAITS),
    STRAGGLER: (SLOW, HASTY),
    INPUT_BOUND: (STARVED, STARVED),
    RANK_MISSING: (ABSENT, STARTS),
    HOST_LOST: (WAITS, WAITS),
    LINK_CUT: (TRAINS, TRAINS),
    GPU_THROTTLED: (HOT, HELD),
    GPU_BUSY: (HOT, HELD),
    GPU_MEMORY_LOW: (CRAMPED, TRAINS),
    GPU_ERROR: (FALLEN, WAITS),
    DRIVER_SILENT: (TRAINS, TRAINS),
}
_SLOWNESS = {
    STRAGGLER: 1.6,
    INPUT_BOUND: 2.0,
    LINK_CUT: 1.0,
    GPU_THROTTLED: 3.0,
    GPU_BUSY: 1.9,
    GPU_MEMORY_LOW: 1.1,
    DRIVER_SILENT: 1.0,
}
"""The factor by which a step becomes longer."""


@dataclass(frozen=True, slots=True)
class Era:
    """From `begin_s` to `end_s` (infinite for the last) of one attempt, one incident lasts, or none
    (`kind` None).

    `steps`: how many steps had been made when it began; `step_s` how long one takes, 0 where none
    is made. `rank`: who is at fault.
    """

    begin_s: float
    end_s: float
    kind: str | None
    rank: int | None
    step_s: float
    steps: float

    def role(self, rank: int) -> str:
        """What this rank does meanwhile."""
        if self.kind is None:
            return TRAINS
        culprit, others = _ROLES[self.kind]
        return culprit if rank == self.rank else others

    @property
    def silent_host(self) -> int | None:
        """The host that does not report meanwhile."""
        return self.rank // LOCAL_SIZE if self.kind in OF_HOSTS and self.rank is not None else None

    def steps_at(self, at_s: float) -> float:
        """How many steps have been made at this moment of the era, with the part of the current
        one."""
        return self.steps + (
            (min(at_s, self.end_s) - self.begin_s) / self.step_s if self.step_s else 0.0
        )


def check(incidents: tuple[Incident, ...], world_size: int) -> None:
    """Check that these incidents can happen in this order.

    Raises:
        ValueError: they cannot.
    """
    over: float | None = 0.0
    for incident in incidents:
        if incident.kind not in KINDS:
            raise ValueError(f"no such incident: {incident.kind}; there are {', '.join(KINDS)}")
        if incident.rank is not None and not 0 <= incident.rank < world_size:
            raise ValueError(
                f"{incident.kind} of rank {incident.rank}: there are only {world_size} ranks"
            )
        if (
            over is None
            or incident.begin_s < over
            or (incident.end_s is not None and incident.end_s <= incident.begin_s)
        ):
            raise ValueError(
                f"{incident.kind} at {incident.begin_s:g} s begins before the previous one is over,"
                " or ends too early"
            )
        if incident.kind == RANK_MISSING and (incident.begin_s or incident.end_s is None):
            raise ValueError(f"{RANK_MISSING} must begin at 0 s and must end")
        if incident.kind in (RANK_KILLED, GPU_ERROR) and incident.end_s is not None:
            raise ValueError(f"{incident.kind} has no end: it cannot be undone")
        over = incident.end_s


def eras_of(
    incidents: tuple[Incident, ...], world_size: int, seed: int, step_s: float, starts: bool
) -> tuple[Era, ...]:
    """The eras of one attempt, without gaps; `starts`: its processes start at 0 s, else they have
    been training by then.

    What stands, stands at the end of a step: its beginning is put off until then.
    """
    picks = Random(f"{seed}/{world_size}/ranks")
    eras: list[Era] = []
    met = JOINING_S + (
        incidents[0].end_s or 0.0 if incidents and incidents[0].kind == RANK_MISSING else 0.0
    )
    starts = starts or met > JOINING_S
    at, steps = 0.0 if starts else -LIVED_S, 0.0

    def add(end_s: float, kind: str | None, rank: int | None, pace_s: float) -> None:
        nonlocal at, steps
        if end_s > at:
            eras.append(Era(at, end_s, kind, rank, pace_s, steps))
            steps, at = eras[-1].steps_at(end_s), end_s

    if starts:
        absent = _rank_of(incidents[0], world_size, picks) if met > JOINING_S else None
        add(met, RANK_MISSING, absent, 0.0)
    for incident in incidents:
        rank = _rank_of(incident, world_size, picks) if incident.kind != RANK_MISSING else None
        if rank is None or (incident.kind in OF_HOSTS and world_size <= LOCAL_SIZE):
            continue
        begin = max(incident.begin_s, at)
        if incident.kind in STANDS:
            ahead = steps + (begin - at) / step_s
            begin += (-ahead % 1.0) * step_s
        add(begin, None, None, step_s)
        if incident.kind in STANDS:
            steps = float(round(steps))
        lasts = float("inf") if incident.end_s is None else max(incident.end_s, begin + 1.0)
        add(
            lasts,
            incident.kind,
            rank,
            0.0 if incident.kind in STANDS else step_s * _SLOWNESS[incident.kind],
        )
    add(float("inf"), None, None, step_s)
    return tuple(eras)


def _rank_of(incident: Incident, world_size: int, picks: Random) -> int:
    # Drawn also where it is given, so that the others stay who they are. Rank 0 keeps the store: it
    # makes a bad example.
    picked = picks.randrange(1, world_size) if world_size > 1 else 0
    if incident.kind in OF_HOSTS and picked < LOCAL_SIZE < world_size:
        # The first host has the hub: without it nobody sees anything.
        picked = LOCAL_SIZE + picked % (world_size - LOCAL_SIZE)
    return picked if incident.rank is None else incident.rank


# -- How far the counters of a rank have come at a moment: the paces of its roles, summed over the
#    eras


_DUMB = frozenset({STOPPED, GONE, ABSENT})


@dataclass(frozen=True, slots=True)
class Course:
    """What has added up since its process started: seconds, bytes, wake-ups; all of them only grow.

    `reported_s`: how long its agent could report. `shares_s`: seconds in each of ACTIVITIES.
    """

    role: str
    reported_s: float
    waited_s: float
    shares_s: tuple[float, ...]
    cpu_s: float
    io_bytes: float
    wakes: float
    loader_s: float


def course_of(rank: int, eras: Sequence[Era], at_s: float) -> Course:
    """The course of this rank at that moment of the attempt."""
    stays: list[tuple[CounterPace, float, bool]] = []
    role = TRAINS
    for era in eras:
        if era.begin_s > at_s:
            break
        role = era.role(rank)
        stays.append((PACES[role], min(at_s, era.end_s) - era.begin_s, role not in _DUMB))
    return Course(
        role,
        sum(lasted for _, lasted, reports in stays if reports),
        sum(pace.wait_ratio * lasted for pace, lasted, _ in stays),
        tuple(
            sum(pace.shares[index] * lasted for pace, lasted, reports in stays if reports)
            for index in range(7)
        ),
        sum(pace.cores * lasted for pace, lasted, _ in stays),
        sum(pace.io_bytes_per_s * lasted for pace, lasted, _ in stays),
        sum(pace.wakes_per_s * lasted for pace, lasted, _ in stays),
        sum(pace.loader_ratio * lasted for pace, lasted, _ in stays),
    )
