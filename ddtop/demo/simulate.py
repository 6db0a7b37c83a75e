"""A small simulation on mpi4py (heat in a rod that the ranks share), and one fault of the user's
choosing: real processes.

mpirun -n 3 python simulate.py --fault not-in-collective
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from ddtop.demo.catalogue import MPI_FAULTS

CELLS, STEP_S, STEPS_BEFORE = 20_000, 0.05, 60
LIFE_S = 900
"""Ranks that wait in MPI use a core each: nobody shall find them the next day."""
LEFT, RIGHT, RESULT = 11, 12, 21


def exchange(comm: Any, rod: array[float]) -> None:
    """Each rank gives its outermost cells to its neighbours."""
    rank, size = comm.Get_rank(), comm.Get_size()
    rod[0] = comm.sendrecv(
        rod[-2], dest=(rank + 1) % size, sendtag=RIGHT, source=(rank - 1) % size, recvtag=RIGHT
    )
    rod[-1] = comm.sendrecv(
        rod[1], dest=(rank - 1) % size, sendtag=LEFT, source=(rank + 1) % size, recvtag=LEFT
    )


def step(comm: Any, rod: array[float], seconds: float = STEP_S) -> None:
    """The heat moves on by one step."""
    exchange(comm, rod)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rod[1:-1] = (
            array("d", ((rod[at - 1] + rod[at + 1]) / 2 for at in range(1, 200))) + rod[200:-1]
        )
    comm.allreduce(max(rod[1:200]))


def wait_for_licence() -> None:
    """What a rank does instead of its collective: it waits for something that never comes."""
    read_end, _write_end = os.pipe()
    os.read(read_end, 1)


def collect(comm: Any, tag: int) -> None:
    """Rank 0 takes the result of rank 1."""
    if comm.Get_rank() == 1:
        comm.send("result", dest=0, tag=RESULT)
    elif comm.Get_rank() == 0:
        comm.recv(source=1, tag=tag)
    comm.Barrier()


def pass_on(comm: Any, mpi: Any) -> None:
    """All send first: that goes well as long as the messages are small."""
    rank, size, rod = comm.Get_rank(), comm.Get_size(), bytearray(8 << 20)
    comm.Send([rod, mpi.BYTE], dest=(rank + 1) % size, tag=RIGHT)
    comm.Recv([rod, mpi.BYTE], source=(rank - 1) % size, tag=RIGHT)


def compare(comm: Any, last: bool) -> None:
    """A branch that only one rank takes."""
    if last:
        comm.allreduce(1)
    else:
        comm.Barrier()


def read_temperature() -> None:
    """An exception of one rank."""
    settings: dict[str, float] = {}
    settings["temperature"] += 1


ALONE: dict[str, Callable[[], object]] = {
    "not-in-collective": wait_for_licence,
    "left-early": sys.exit,
    "rank-crashed": read_temperature,
    "rank-killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "rank-stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
"""What the last rank does, while the others go on."""


def main() -> None:
    """Sixty good steps, then the fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=MPI_FAULTS, default="healthy")
    fault = parser.parse_args().fault
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIFE_S)
    number = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    if fault == "late-to-init" and number == "1":
        wait_for_licence()

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, last = comm.Get_rank(), comm.Get_rank() == comm.Get_size() - 1
    rod = array("d", (float(rank) for _ in range(CELLS + 2)))
    for _ in range(STEPS_BEFORE):
        step(comm, rod)
    if last and fault in ALONE:
        ALONE[fault]()
    elif fault == "not-in-collective":
        comm.Barrier()
    elif fault == "collective-mismatch":
        compare(comm, last)
    elif fault == "wait-cycle":
        pass_on(comm, MPI)
    elif fault == "unmatched-p2p":
        collect(comm, RESULT + 1)
    while True:
        step(comm, rod, STEP_S * 3 if fault == "straggler" and last else STEP_S)


if __name__ == "__main__":
    main()
