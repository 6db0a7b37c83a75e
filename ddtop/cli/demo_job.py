"""Starts the job of `ddtop demo`, and ends all its processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ddtop import registry, start_python
from ddtop.cli import interpreter
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, did_you_mean
from ddtop.cli.output import echo
from ddtop.demo import catalogue
from ddtop.demo.catalogue import DEMOS, MPI_DEMOS, Demo, DemoPlace, DemoProcess
from ddtop.diagnosis.explain import PAGES
from ddtop.launch import every_launcher

APPEAR_S = 35.0
"""A rank says hello before it imports torch. Four imports on 2 cores take a third of this."""
END_S = 5.0
LOG_LINES = 15
"""Lines of the demo's log that are shown if it does not start."""
SCRIPTS = Path(catalogue.__file__).parent
_OF_A_LAUNCHER = tuple(prefix for launcher in every_launcher() for prefix in launcher.prefixes)
# Open MPI refuses to run as root, as in containers, and to start more ranks than cores. MPICH does
# not.
_ANY_HOST = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
} | {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}


@contextlib.contextmanager
def demo_job(fault: str, ranks: int, mpi: bool = False) -> Iterator[registry.JobEntry]:
    """A running demo job. On leaving it is ended, with its ranks, its relay and its log.

    Its recording stays, like that of any job that has ended.

    Raises:
        CommandError: 2, no such fault, too few ranks for it, or no torch; 3, it did not start.
    """
    chosen = _mpi_demo_of(fault, ranks) if mpi else _demo_of(fault, ranks)
    name = f"demo-{os.getpid()}"
    # Remove the files of an earlier demo of this process or of one with the same pid: it would be
    # mistaken for this one.
    for earlier in [entry for entry in registry.read_entries() if entry.job == name]:
        registry.remove(earlier)
    folder = _folder(chosen, name)
    log = folder / "log"
    started: list[subprocess.Popen[bytes]] = []
    what = "simulation on MPI" if mpi else "training"
    echo(f"starting {ranks} ranks of a real {what}, fault: {fault} ...", err=True)
    # A closed terminal or a plain kill must not leave a training behind.
    caught = (signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.default_int_handler) for number in caught}
    previous[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        _start(chosen, ranks, name, folder, started)
        yield _wait_for(name, started, log)
    finally:
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        try:
            _end(started, name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for number, handler in previous.items():
                signal.signal(number, handler)


def _demo_of(fault: str, ranks: int) -> Demo:
    demo, page = DEMOS.get(fault), PAGES.get(fault)
    if page is not None and page.no_demo:
        reason = f"{fault} cannot be shown by processes of one host on the CPU: {page.no_demo}"
        raise CommandError(f"ddtop: {reason}\nread instead: ddtop explain {fault}", USAGE)
    if demo is None:
        hint = did_you_mean(fault, DEMOS)
        there = ", ".join(DEMOS)
        raise CommandError(f"ddtop: no demo for {fault!r}{hint}\nthere are: {there}", USAGE)
    _check_ranks(demo, fault, ranks)
    installed = interpreter.looks(sys.executable)
    if installed is None or not installed[1]:
        raise CommandError(
            f"ddtop: the demo trains with torch, which is not in {sys.executable}: "
            "uvx --from 'ddtop[demo]' ddtop demo",
            USAGE,
        )
    if not installed[0]:
        raise CommandError(f"ddtop: {interpreter.install_advice(sys.executable)}", USAGE)
    return demo


def _mpi_demo_of(fault: str, ranks: int) -> Demo:
    demo = MPI_DEMOS.get(fault)
    if demo is None:
        there = f"{did_you_mean(fault, MPI_DEMOS)}\nthere are: {', '.join(MPI_DEMOS)}"
        raise CommandError(f"ddtop: no demo for {fault!r} on MPI{there}", USAGE)
    _check_ranks(demo, fault, ranks)
    if importlib.util.find_spec("mpi4py") is None or _mpirun() is None:
        lacks = f"mpi4py is not in {sys.executable}" if _mpirun() else "mpirun is not here"
        raise CommandError(
            f"ddtop: the demo runs under MPI, and {lacks}: pip install 'ddtop[mpi]'", USAGE
        )
    if (hint := interpreter.install_advice(sys.executable)) is not None:
        raise CommandError(f"ddtop: {hint}", USAGE)
    return demo


def _check_ranks(demo: Demo, fault: str, ranks: int) -> None:
    if ranks < demo.ranks_min:
        needs = f"{demo.ranks_min} ranks: --ranks {demo.ranks_min}"
        raise CommandError(f"ddtop: {fault} takes {needs}", USAGE)


def _mpirun() -> str | None:
    """The launcher beside this Python, where the wheels of Open MPI and MPICH install it, or else
    the one on the PATH.
    """
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.is_file() else shutil.which("mpirun")


def _folder(demo: Demo, name: str) -> Path:
    """A new folder for the log, the store, and the files of MPI.

    MPI leaves its files behind if ranks are killed. Its messages go through them, so the folder is
    in memory if that is possible.
    """
    memory = "/dev/shm"
    parent = memory if demo.mpi and os.access(memory, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=f"ddtop-{name}-", dir=parent))


def _start(
    demo: Demo, ranks: int, name: str, folder: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Start the processes of the demo. Each is appended to `started` as soon as it exists."""
    log, store = folder / "log", folder / "store"
    inherited = {
        name: value
        for name, value in start_python.environment().items()
        if not name.startswith(_OF_A_LAUNCHER) and name not in ("DDTOP_TREE", "DDTOP_CLAIM")
    }
    environment = inherited | {"DDTOP_JOB": name, "DDTOP_QUIET": "1", "OMP_NUM_THREADS": "1"}
    if demo.mpi:
        # Only here: the path is short. Below a long TMPDIR, the path of a socket of multiprocessing
        # may become too long.
        environment |= _ANY_HOST
        environment |= {"OMPI_MCA_btl_sm_backing_directory": str(folder), "TMPDIR": str(folder)}
    with log.open("wb") as output, _listener() as listener, _listener() as other:
        place = DemoPlace(listener.getsockname()[1], other.getsockname()[1], str(store))
        other.close()
        starts = demo.plain(ranks, place) if demo.plain else [DemoProcess(demo.script, demo.words)]
        if not any(start.occupies for start in starts):
            listener.close()

        def spawn(start: DemoProcess, watched: bool) -> subprocess.Popen[bytes]:
            handed = [listener.fileno()] if start.occupies else []
            script = [str(SCRIPTS / start.script), *start.words, *map(str, handed)]
            variables = environment | dict(start.variables)
            return subprocess.Popen(
                [*_launcher(demo, ranks), *script],
                env=variables | ({"DDTOP": "1"} if watched else {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=start_python.FOLDER,
                start_new_session=True,
                pass_fds=handed,
            )

        if demo.earlier:
            started.extend(spawn(start, watched=False) for start in demo.earlier(ranks, place))
            _leave_behind(started, store, log)
        started.extend(spawn(start, start.watched) for start in starts)


def _launcher(demo: Demo, ranks: int) -> list[str]:
    if demo.plain:
        return [sys.executable]
    if demo.mpi:
        return [_mpirun() or "mpirun", "-n", str(ranks), sys.executable]
    options = ("--standalone", "--nproc-per-node", str(ranks))
    return start_python.module("torch.distributed.run", *options)


def _listener() -> socket.socket:
    """A socket that listens on a free port of this host."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


def _leave_behind(earlier: list[subprocess.Popen[bytes]], store: Path, log: Path) -> None:
    """Wait until the earlier run has ended, and set the age of its store to an hour."""
    until = time.monotonic() + APPEAR_S
    for process in earlier:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _not_started("earlier run", log) from None
    if not store.exists():
        raise _not_started("earlier run", log)
    old = time.time() - 3600
    os.utime(store, (old, old))


def _wait_for(name: str, started: list[subprocess.Popen[bytes]], log: Path) -> registry.JobEntry:
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until:
        for entry in registry.read_entries():
            if entry.job == name:
                return entry
        if all(process.poll() is not None for process in started):
            break
        time.sleep(0.1)
    raise _not_started("training", log)


def _not_started(what: str, log: Path) -> CommandError:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    return CommandError(f"ddtop: the demo's {what} did not start:\n{tail}", UNREACHABLE)


def _end(started: list[subprocess.Popen[bytes]], name: str) -> None:
    """End the demo's processes: ranks (also stopped ones), launcher, relay."""
    until = time.monotonic() + END_S
    asked: set[tuple[int, int]] = set()
    # Read them again each time: the launcher may start a rank meanwhile.
    while (members := _members(name)) and time.monotonic() < until + END_S:
        if time.monotonic() < until:
            fresh = [member for member in members if member not in asked]
            asked.update(fresh)
            for number in (signal.SIGCONT, signal.SIGTERM):
                _signal_all(fresh, number)
        else:
            _signal_all(members, signal.SIGKILL)
        for process in started:
            process.poll()
        time.sleep(0.05)
    for process in started:
        process.wait()
    for relay in [entry for entry in registry.read_entries() if entry.job == name]:
        if registry.start_ticks(relay.relay_pid) == relay.relay_start_ticks:
            os.kill(relay.relay_pid, signal.SIGTERM)
            until = time.monotonic() + END_S
            while (
                registry.start_ticks(relay.relay_pid) == relay.relay_start_ticks
                and time.monotonic() < until
            ):
                time.sleep(0.02)


def _members(name: str) -> list[tuple[int, int]]:
    """(pid, start ticks) of the launcher, its ranks and their workers.

    torchrun gives each rank a session of its own, so they are found by the job's name in their
    environment. `Source:` /proc/PID/environ, as it was when the process started.
    """
    mark = f"DDTOP_JOB={name}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            inside = mark in path.read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(path.parent.name)
        ticks = registry.start_ticks(pid)
        if inside and ticks is not None:
            found.append((pid, ticks))
    return found


def _signal_all(members: list[tuple[int, int]], number: int) -> None:
    for pid, ticks in members:
        if registry.start_ticks(pid) == ticks:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
