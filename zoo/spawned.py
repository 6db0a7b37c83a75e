"""Runs a program in ranks that torch.multiprocessing.spawn starts: `spawned.py WORLD PROGRAM
ARGUMENTS...`.
"""

import os
import runpy
import sys


def run(rank, world, program, arguments):
    """One rank: the program as `__main__`, with the variables that env:// reads."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    import torch.multiprocessing as mp

    count = int(sys.argv[1])
    mp.spawn(run, args=(count, sys.argv[2], sys.argv[3:]), nprocs=count)
