"""A training that was started without ddtop, with a DataLoader worker."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from ddtop.launch import every_launcher

TRAIN = """
import os, subprocess, sys

def load_image():
    print(os.getpid(), flush=True)
    sys.stdin.read()

def all_reduce():
    print(os.getpid(), flush=True)
    sys.stdin.read()

worker = None
if "with-worker" in sys.argv:
    command = [sys.executable, __file__, "worker"]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    worker.stdout.readline()
if os.environ.get("RANK") == "1" or "worker" in sys.argv:
    load_image()
else:
    all_reduce()
if worker:
    worker.wait()
"""

HANGING = """
import os, sys, threading
sys.path.insert(0, {folder!r})
from torch.distributed import distributed_c10d as dist

gate = threading.Lock()
gate.acquire()

def load():
    gate.acquire()

print(os.getpid(), flush=True)
if os.environ["RANK"] == "1":
    load()
else:
    dist.all_reduce(gate)
"""


def hanging_script(tmp_path):
    """Rank 1 is in a lock, the others in a collective: frames alone show that."""
    package = tmp_path / "site-packages" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "distributed_c10d.py").write_text("def all_reduce(gate):\n    gate.acquire()\n")
    path = tmp_path / "train.py"
    path.write_text(HANGING.format(folder=str(tmp_path / "site-packages")))
    return path


def script_in(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@contextmanager
def started(*command, **environment):
    """A process that has printed its first line. It ends when its stdin closes, or is killed."""
    prefixes = tuple(prefix for one in every_launcher() for prefix in one.prefixes)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=inherited | environment,
    )  # fmt: skip
    try:
        assert process.stdout.readline()
        yield process
    finally:
        os.kill(process.pid, signal.SIGCONT) if process.poll() is None else None
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
