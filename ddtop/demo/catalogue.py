"""The faults that `ddtop demo` can make, and the processes of each. The command imports this
module, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """Resources of one demo: two free TCP ports, and the path of an unused file."""

    port: int
    other_port: int
    file: str


@dataclass(frozen=True, slots=True)
class DemoProcess:
    """One process of a demo: a script of this folder, its arguments, its additional environment.

    `occupies`: its last argument is a listening socket of `DemoPlace.port`. `watched` False: it is
    not a rank of the job.
    """

    script: str
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    watched: bool = True
    occupies: bool = False


Plain = Callable[[int, DemoPlace], list[DemoProcess]]


@dataclass(frozen=True, slots=True)
class Demo:
    """How one fault is made: `script` and `words` under torchrun, or the processes that `plain`
    names.

    `earlier`: a run without ddtop that runs first and dies; its file is then made to look an hour
    old. `mpi`: under mpirun.
    """

    script: str = ""
    words: tuple[str, ...] = ()
    plain: Plain | None = None
    earlier: Plain | None = None
    ranks_min: int = 2
    mpi: bool = False


def _meeting(rank: int, size: int, port: int, *words: str) -> DemoProcess:
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return DemoProcess("meeting.py", words, variables | {"LOCAL_RANK": str(rank)})


def _one_too_few(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    return [_meeting(rank, ranks, place.port) for rank in range(ranks - 1)]


def _one_too_late(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    return [
        _meeting(rank, ranks, place.port, "--licensed", str(ranks - 1)) for rank in range(ranks)
    ]


def _one_twice(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    return [_meeting(min(rank, ranks - 2), ranks, place.port) for rank in range(ranks)]


def _other_port(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    ports = [place.port] * (ranks - 1) + [place.other_port]
    return [_meeting(rank, ranks, port) for rank, port in enumerate(ports)]


def _port_taken(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    occupant = DemoProcess("occupant.py", watched=False, occupies=True)
    return [occupant, *(_meeting(rank, ranks, place.port) for rank in range(ranks))]


def _by_file(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    return [_meeting(rank, ranks, place.port, "--store", place.file) for rank in range(ranks)]


def _left_behind(ranks: int, place: DemoPlace) -> list[DemoProcess]:
    return [
        _meeting(rank, ranks, place.port, "--store", place.file, "--dies-after", "3")
        for rank in range(ranks)
    ]


def _train(fault: str) -> Demo:
    return Demo("train.py", ("--fault", fault))


MPI_FAULTS = (
    "healthy",
    "late-to-init",
    "not-in-collective",
    "left-early",
    "collective-mismatch",
    "wait-cycle",
    "unmatched-p2p",
    "rank-crashed",
    "rank-killed",
    "rank-stopped",
    "straggler",
)
MPI_DEMOS: Mapping[str, Demo] = {
    fault: Demo(
        "simulate.py", ("--fault", fault), ranks_min=3 if fault == "straggler" else 2, mpi=True
    )
    for fault in MPI_FAULTS
}
"""The faults that a simulation on mpi4py makes."""

DEMOS: Mapping[str, Demo] = {
    "healthy": _train("healthy"),
    # -- the ranks do not meet
    "rank-missing": Demo(plain=_one_too_few),
    "late-to-init": Demo(plain=_one_too_late),
    "duplicate-rank": Demo(plain=_one_twice, ranks_min=3),
    "rendezvous-mismatch": Demo(plain=_other_port),
    "master-unreachable": Demo(plain=_port_taken),
    "stale-store": Demo(plain=_by_file, earlier=_left_behind),
    # -- the job makes no progress
    "not-in-collective": _train("not-in-collective"),
    "left-early": Demo("uneven.py"),
    "collective-mismatch": Demo("validating.py"),
    "calls-differ": Demo("measuring.py"),
    "wait-cycle": Demo("crossed.py"),
    "unmatched-p2p": Demo("pipeline.py"),
    "loader-stuck": Demo("streaming.py"),
    "no-progress": Demo("building.py"),
    "rank-crashed": _train("rank-crashed"),
    "rank-killed": _train("rank-killed"),
    "rank-stopped": _train("rank-stopped"),
    "interpreter-frozen": _train("interpreter-frozen"),
    # -- the job moves
    "threads-share-group": Demo("heartbeat.py"),
    "input-bound": _train("input-bound"),
    "straggler": Demo("lagging.py"),
    "sync-bound": Demo("chatty.py"),
    "cpu-oversubscribed": Demo("crowded.py"),
    "sampler-not-distributed": Demo("undivided.py"),
    "epoch-not-set": Demo("undivided.py", ("--sampler",)),
}
"""By the kind of finding that the demo causes; `healthy` for none."""
