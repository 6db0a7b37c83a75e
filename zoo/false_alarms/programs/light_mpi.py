"""A healthy simulation under MPI that sleeps most of the time: `light_mpi.py SHAPE SEED SECONDS`.

Nobody waits long inside MPI, because who waits there uses a whole core. Where one rank works alone
for a while, the others poll with a sleep in between, as careful programs do.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import time

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
STEP_S, POLL_S = 0.25, 0.05


def step(own: random.Random) -> None:
    """One step: every rank computes a little, and the residual is summed."""
    time.sleep(STEP_S * own.uniform(0.97, 1.03))
    sum(range(2_000))
    WORLD.allreduce(1.0)


def steps(count: int, own: random.Random) -> None:
    """Some steps."""
    for _ in range(count):
        step(own)


def apart(seconds: float) -> None:
    """Rank 0 works for a while and the others poll until it comes."""
    if WORLD.rank == 0:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(20_000))
            time.sleep(0.02)
    request = WORLD.Ibarrier()
    while not request.Test():
        time.sleep(POLL_S)


def write(mebibytes: float) -> None:
    """Write this much to a file, in pieces."""
    with tempfile.TemporaryFile() as file:
        for _ in range(int(mebibytes * 16)):
            file.write(os.urandom(1 << 16))
            file.flush()
            time.sleep(0.01)


def steady(shared: random.Random, own: random.Random) -> None:
    """Nothing but steps."""
    steps(shared.randrange(100, 200), own)


def checkpoint(shared: random.Random, own: random.Random) -> None:
    """Every rank writes its part."""
    steps(shared.randrange(40, 80), own)
    write(own.uniform(2, 6))
    request = WORLD.Ibarrier()
    while not request.Test():
        time.sleep(POLL_S)


def evaluation(shared: random.Random, own: random.Random) -> None:
    """Rank 0 evaluates."""
    steps(shared.randrange(40, 80), own)
    apart(shared.uniform(3, 20))


def halo(shared: random.Random, own: random.Random) -> None:
    """Neighbours exchange their borders."""
    left, right = (WORLD.rank - 1) % WORLD.size, (WORLD.rank + 1) % WORLD.size
    for _ in range(shared.randrange(60, 150)):
        time.sleep(STEP_S)
        request = WORLD.isend(own.random(), dest=right, tag=7)
        WORLD.recv(source=left, tag=7)
        request.wait()


def farm(shared: random.Random, own: random.Random) -> None:
    """Rank 0 hands out work of different lengths. A rank without work polls."""
    tasks = shared.randrange(5, 9)
    if WORLD.rank == 0:
        left = tasks * (WORLD.size - 1)
        while left:
            if WORLD.iprobe(tag=1):
                WORLD.recv(tag=1)
                left -= 1
            else:
                time.sleep(POLL_S)
    else:
        for _ in range(tasks):
            time.sleep(own.uniform(0.2, 4.0))
            WORLD.send(own.random(), dest=0, tag=1)
    request = WORLD.Ibarrier()
    while not request.Test():
        time.sleep(POLL_S)


def collecting(shared: random.Random, own: random.Random) -> None:
    """A full garbage collection on each rank now and then."""
    for _ in range(4):
        steps(shared.randrange(15, 30), own)
        kept = [[number] for number in range(own.randrange(50_000, 150_000))]
        gc.collect()
        del kept


def main(shape: str, seed: int, seconds: float) -> None:
    """Repeat the shape until the time is over; rank 0's clock decides."""
    shared, own = random.Random(seed), random.Random(seed * 1000 + WORLD.rank)
    begun = time.monotonic()
    while not WORLD.bcast(time.monotonic() - begun > seconds):
        globals()[shape](shared, own)


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
