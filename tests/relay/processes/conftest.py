"""Pythons that end with the test that has started them."""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from ddtop.procfs import descendants


@pytest.fixture
def start():
    """Starts a Python, and ends it and all that it has started."""
    with ExitStack() as stack:

        def run(code, *words, **more):
            process = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **more)
            stack.callback(ends, process)
            return process

        yield run


def ends(process):
    every = descendants(process.pid)
    process.kill()
    for one in every:
        # One that writes to it may have ended with it.
        with suppress(ProcessLookupError):
            os.kill(one, 9)
    process.wait()
