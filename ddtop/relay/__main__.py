"""`python -m ddtop.relay --job NAME --run RUN`.

An agent starts it. It first detaches itself from the job.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import resource
import signal
import sys
import time
import traceback

from ddtop import start_python
from ddtop.launch import in_batch_job
from ddtop.procfs import parent_of

LINGER_S, LINGER_SCHEDULED_S = 300.0, 10.0
LOCK_TRIES, LOCK_BETWEEN_S = 20, 0.05
"""An agent that checks whether a relay lives holds the lock for an instant."""
NICE = 5
DESCRIPTORS = 1 << 15
"""Each connection needs one descriptor. Unknown peers must not use up those for the ranks and the
files."""


def detach() -> None:
    """Detach this process from the job: session, folder, descriptors, priority, CPU affinity."""
    with contextlib.suppress(OSError):
        os.setsid()
    # The agent's thread, which may have started us, has all signals blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, 1 << 16)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def linger_s(launcher: int) -> float:
    """How long to stay after the end of the job, seconds. Long enough for a person to look; short
    under a scheduler, which waits for this process."""
    wanted = os.environ.get("DDTOP_LINGER_S", "")
    if wanted.isascii() and wanted.replace(".", "", 1).isdigit():
        return float(wanted)
    if in_batch_job(os.environ) or launcher == 1 or parent_of(launcher) == 1:
        return LINGER_SCHEDULED_S
    return LINGER_S


def main() -> None:
    """Take the lock of this run, serve, and exit."""
    start_python.take_path()
    detach()
    parser = argparse.ArgumentParser(prog="python -m ddtop.relay")
    parser.add_argument("--job", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--launcher", type=int, default=0)
    arguments = parser.parse_args()
    from ddtop import private, registry

    path = registry.socket_path(arguments.job, arguments.run)
    lock = path.with_suffix(".lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(LOCK_BETWEEN_S)
    else:
        return
    try:
        from ddtop.relay.server import Server

        server = Server(
            arguments.job, arguments.run, arguments.launcher, linger_s(arguments.launcher)
        )

        def stop(_signal: int, _frame: object) -> None:
            server.stopping = True

        signal.signal(signal.SIGTERM, stop)
        server.serve()
    except Exception:  # noqa: BLE001 - the last handler of this process: it writes the reason and ends
        # Nobody reads our stderr: the reason is written next to the socket, where `ddtop doctor`
        # finds it.
        log = private.open_file(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(log, traceback.format_exc().encode(errors="replace"))
        sys.exit(1)
    finally:
        lock.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
