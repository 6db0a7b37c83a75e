"""Fourteen hangs in two real jobs at once; `python -m tools.benchmarks.stands --count 200` makes
more of them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.benchmarks.stand_rank import SHAPES

ROOT = Path(__file__).resolve().parents[2]
JOBS = (",".join(SHAPES[:4]), ",".join(SHAPES[4:]))
STANDS = 7
AT_MOST_S = 200.0


@pytest.mark.torch
def test_fourteen_hangs_of_many_kinds_of_training_are_named_with_their_rank():
    """After a sixth of all backwards with several buckets, torch's status shows a sleeping rank as
    waiting.
    """
    command = [sys.executable, "-m", "tools.benchmarks.stands", "--mixed", "--count", str(STANDS)]
    jobs = [
        subprocess.Popen(
            [*command, "--shapes", shapes, "--seed", str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed, shapes in enumerate(JOBS, 5)
    ]
    try:
        outputs = [job.communicate(timeout=AT_MOST_S)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()

    assert [job.returncode for job in jobs] == [0, 0], "\n".join(outputs)
