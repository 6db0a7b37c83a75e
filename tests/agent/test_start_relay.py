"""A relay is started beside threads that run Python: nothing hangs, no process remains."""

from tests.running import python

BUSY = """
import os, sys, threading
from ddtop.agent import start_relay

filled = bytearray(300_000_000)
for at in range(0, len(filled), 4096):
    filled[at] = 1
done = False
def spin():
    while not done:
        pass
threading.Thread(target=spin).start()
for _ in range(25):
    start_relay._launch([sys.executable, "-c", ""], {})
done = True
try:
    print(os.waitpid(-1, os.WNOHANG | 0x40000000))
except ChildProcessError:
    print("no child")
"""


def test_a_copy_that_waits_for_the_gil_of_a_thread_it_has_not_is_ended():
    """Forking gigabytes takes longer than the interval of the GIL."""
    done = python("-c", BUSY, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "no child\n", "")
