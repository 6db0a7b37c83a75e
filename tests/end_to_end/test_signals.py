"""A signal does to a watched program what it does to an unwatched one, however the process that
gets it was started.

The whole table, on several Pythons, is printed by `python -m tests.end_to_end.signals PYTHON ...`.
"""

import sys

import pytest

from tests.end_to_end import signals

pytestmark = pytest.mark.usefixtures("hook_is_installed")
CASES = [
    # A preemption handler that polls. The process ended when a thread of ours did not block the
    # signal.
    ("plain", "blocked", "SIGTERM"),
    ("plain", "blocked", "SIGUSR1"),
    ("plain", "handled", "SIGINT"),
    ("fork", "default", "SIGHUP"),
    # The child prints a traceback, which contained a line of our wrapper.
    ("spawn", "default", "SIGINT"),
    ("forkserver", "blocked", "SIGUSR2"),
    ("subprocess", "default", "SIGKILL"),
]


@pytest.mark.parametrize(("method", "behaviour", "name"), CASES)
def test_exit_code_and_output_are_the_same_to_the_byte(tmp_path_factory, method, behaviour, name):
    home = tmp_path_factory.mktemp("s")
    plain, watched = (
        signals.outcome(sys.executable, home, on, method, behaviour, name) for on in (False, True)
    )

    assert watched == plain
    assert plain.out.startswith("ready N\n")
