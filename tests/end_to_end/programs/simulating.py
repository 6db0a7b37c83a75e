"""Two ranks of mpi4py without any knowledge of ddtop. The program ends by itself, because ranks
that wait in MPI use a core each.
"""

from __future__ import annotations

import signal
import sys
import time

from mpi4py import MPI

LIFE_S = 50
STEPS_BEFORE, STEPS = 40, 100_000


def step(world: MPI.Intracomm) -> None:
    """One step of a simulation."""
    time.sleep(0.02)
    world.allreduce(1)
    world.Barrier()


def take_wrong_tag(world: MPI.Intracomm) -> None:
    """Rank 1 waits for a tag that is never sent."""
    if world.rank == 0:
        world.send("halo", dest=1, tag=7)
    else:
        world.recv(source=0, tag=99)
    world.Barrier()


def reduce_on_new(world: MPI.Intracomm) -> None:
    """The first allreduce of a communicator waits with the GIL held, for a rank that sleeps."""
    if world.rank == 0:
        other = world.Dup()
        other.allreduce(1)
    else:
        world.Dup()
        time.sleep(LIFE_S)


def raise_alone(world: MPI.Intracomm) -> None:
    """Rank 1 raises; its process stays in MPI_Finalize."""
    if world.rank == 1:
        raise ValueError("the mesh has a hole")
    world.Barrier()


def main() -> None:
    """Make good steps, then the requested fault."""
    signal.alarm(LIFE_S)
    world = MPI.COMM_WORLD
    for _ in range(STEPS_BEFORE):
        step(world)
    if sys.argv[1] != "goes_on":
        {
            "take_wrong_tag": take_wrong_tag,
            "reduce_on_new": reduce_on_new,
            "raise_alone": raise_alone,
        }[sys.argv[1]](world)
    for _ in range(STEPS):
        step(world)


main()
