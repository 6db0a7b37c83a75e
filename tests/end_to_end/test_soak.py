"""Three minutes of the soak: `python -m tools.soak` runs for half an hour."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import netns

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
MINUTES, MOST_S = "1.8", 600.0
"""With its start, its end and the same training without ddtop these are three minutes."""

if why := netns.unable():
    pytest.skip(why, allow_module_level=True)


def test_a_job_that_is_not_left_in_peace_loses_nothing_and_leaves_nothing():
    """Relays are killed, the hub's cable is cut, the disk is full and the clock is set back. Still
    the losses are the same to the last bit, every viewer ends as it should, and nothing is left
    behind.
    """
    command = [sys.executable, "-m", "tools.soak", "--minutes", MINUTES, "--kill-every", "30"]

    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_S, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
