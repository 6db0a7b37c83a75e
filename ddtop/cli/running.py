"""`run` and `demo`: starting jobs."""

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

import click

from ddtop import registry
from ddtop.cli import interpreter
from ddtop.cli.jobs import USAGE, CommandError, exit_code
from ddtop.demo import catalogue
from ddtop.demo.catalogue import DEMOS, MPI_DEMOS, NOT_HERE, Demo, Place, Start
from ddtop.diagnosis.finding import Verdict
from ddtop.launch import launchers

PLAIN_S = 60.0
"""Without a terminal the demo ends by itself within this time; in up to twice that where the ranks were slow to come."""
FAULT_S = 25.0
"""From the first step on: a fault comes after 60 of them, and shows within seconds."""
APPEAR_S = 35.0
"""A rank says hello before torch is imported; importing it four times on a small machine takes a third of this."""
END_S = 5.0
HEALTHY_S = 20.0
"""How long a healthy demo is watched without a terminal."""
MORE_S = 5.0
"""How long the demo looks on once its fault is named."""
SCRIPTS = Path(catalogue.__file__).parent
_OF_A_LAUNCHER = tuple(prefix for one in launchers() for prefix in one.prefixes)
# Open MPI refuses to run as root, as in containers, and to start more ranks than there are cores; MPICH does not ask.
_ANY_HOST = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
} | {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}


def run_watched(name: str | None, command: list[str]) -> None:
    """Become CMD with DDTOP=1; says first what to install where, if its Python lacks the hook.

    Raises:
        CommandError: no such command (2).
    """
    if command[0] == "--":
        command = command[1:]
    program = shutil.which(command[0]) if command else None
    if program is None:
        raise CommandError(f"ddtop: {command[0] if command else 'CMD'}: command not found", USAGE)
    python = interpreter.of_command(command)
    hint = interpreter.advice(python) if python else None
    if hint:
        click.echo(f"ddtop: this job will not be seen: {hint}", err=True)
    os.environ["DDTOP"] = "1"
    if name:
        os.environ["DDTOP_JOB"] = name
    left_behind = interpreter.stays_here(command, os.environ)
    if left_behind:
        click.echo(f"ddtop: {left_behind}", err=True)
    sys.stdout.flush()
    os.execv(program, command)


def run_demo(fault: str, ranks: int, mpi: bool = False, readonly: bool = False) -> int:
    """Start the demo's training, show it, end it and its relay. The exit code of `attach`, or of `diagnose`."""
    from ddtop.cli import looking

    began = time.monotonic()
    with demo_job(fault, ranks, mpi) as entry:
        if looking.plain_terminal() is None:
            looking.show(entry, readonly)
            return 0
        return _plain(entry, None if fault == "healthy" else fault, began + PLAIN_S - 2 * END_S - MORE_S)


@contextlib.contextmanager
def demo_job(fault: str, ranks: int, mpi: bool = False) -> Iterator[registry.JobEntry]:
    """A running demo job; ended on leaving, with its ranks, its relay and its files.

    Raises:
        CommandError: no such fault, too few ranks for it, no torch, or it did not come up.
    """
    demo = _mpi_demo_of(fault, ranks) if mpi else _demo_of(fault, ranks)
    name = f"demo-{os.getpid()}"
    folder = _folder(demo, name)
    log = folder / "log"
    started: list[subprocess.Popen[bytes]] = []
    what = "simulation on MPI" if mpi else "training"
    click.echo(f"starting {ranks} ranks of a real {what}, fault: {fault} ...", err=True)
    # A closed terminal or a plain kill must not leave a training behind.
    previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    previous[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        _start(demo, ranks, name, folder, started)
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
    demo = DEMOS.get(fault)
    if demo is None and fault in NOT_HERE:
        reason = f"{fault} cannot be shown by processes of one host on the CPU: {NOT_HERE[fault]}"
        raise CommandError(f"ddtop: {reason}\nread instead: ddtop explain {fault}", USAGE)
    if demo is None:
        raise CommandError(f"ddtop: no demo for {fault!r}; there are: {', '.join(DEMOS)}", USAGE)
    if ranks < demo.ranks_min:
        raise CommandError(f"ddtop: {fault} takes {demo.ranks_min} ranks: --ranks {demo.ranks_min}", USAGE)
    found = interpreter.looks(sys.executable)
    if found is None or not found[1]:
        raise CommandError(
            f"ddtop: the demo trains with torch, which is not in {sys.executable}: pip install 'ddtop[demo]'", USAGE
        )
    if not found[0]:
        raise CommandError(f"ddtop: {interpreter.advice(sys.executable)}", USAGE)
    return demo


def _mpi_demo_of(fault: str, ranks: int) -> Demo:
    demo = MPI_DEMOS.get(fault)
    if demo is None:
        raise CommandError(f"ddtop: no demo for {fault!r} on MPI; there are: {', '.join(MPI_DEMOS)}", USAGE)
    if ranks < demo.ranks_min:
        raise CommandError(f"ddtop: {fault} takes {demo.ranks_min} ranks: --ranks {demo.ranks_min}", USAGE)
    if importlib.util.find_spec("mpi4py") is None or _mpirun() is None:
        lacks = "mpi4py is not in " + sys.executable if _mpirun() else "mpirun is not here"
        raise CommandError(f"ddtop: the demo runs under MPI, and {lacks}: pip install 'ddtop[mpi]'", USAGE)
    if (hint := interpreter.advice(sys.executable)) is not None:
        raise CommandError(f"ddtop: {hint}", USAGE)
    return demo


def _mpirun() -> str | None:
    """The launcher beside this Python, as the wheels of Open MPI and MPICH install it, else that of the PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.is_file() else shutil.which("mpirun")


def _folder(demo: Demo, name: str) -> Path:
    """For the log and the store, and for all that MPI leaves in files: it does not clean up after ranks that were killed.

    MPI's messages go through it: in memory where that is possible.
    """
    memory = "/dev/shm"
    where = memory if demo.mpi and os.access(memory, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=f"ddtop-{name}-", dir=where))


def _start(demo: Demo, ranks: int, name: str, folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Start the demo's processes; each stands in `started` as soon as it is there."""
    log, store = folder / "log", folder / "store"
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_A_LAUNCHER) and name not in ("DDTOP", "DDTOP_TREE", "DDTOP_CLAIM")
    }
    environment = inherited | {"DDTOP_JOB": name, "DDTOP_QUIET": "1", "OMP_NUM_THREADS": "1"}
    if demo.mpi:
        # Its path is short: others keep their TMPDIR, below which a socket of multiprocessing may have no room for one folder more.
        environment |= _ANY_HOST | {"OMPI_MCA_btl_sm_backing_directory": str(folder), "TMPDIR": str(folder)}
    with log.open("wb") as output, _listener() as listener, _listener() as other:
        place = Place(listener.getsockname()[1], other.getsockname()[1], str(store))
        other.close()
        starts = demo.plain(ranks, place) if demo.plain else [Start(demo.script, demo.words)]
        if not any(start.occupies for start in starts):
            listener.close()

        def spawn(start: Start, watched: bool) -> subprocess.Popen[bytes]:
            handed = [listener.fileno()] if start.occupies else []
            command = [*_command(demo, ranks), str(SCRIPTS / start.script), *start.words, *map(str, handed)]
            variables = environment | dict(start.variables) | ({"DDTOP": "1"} if watched else {})
            return subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=handed,
            )

        if demo.earlier:
            started.extend(spawn(start, watched=False) for start in demo.earlier(ranks, place))
            _leave_behind(started, store, log)
        started.extend(spawn(start, start.watched) for start in starts)


def _command(demo: Demo, ranks: int) -> list[str]:
    if demo.plain:
        return [sys.executable]
    if demo.mpi:
        return [_mpirun() or "mpirun", "-n", str(ranks), sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def _listener() -> socket.socket:
    """A socket that listens on a free port of this host."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


def _leave_behind(earlier: list[subprocess.Popen[bytes]], store: Path, log: Path) -> None:
    """Wait until the earlier run has died; what it leaves is an hour old, as that of yesterday's run would be."""
    until = time.monotonic() + APPEAR_S
    for process in earlier:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _not_come("earlier run", log) from None
    if not store.exists():
        raise _not_come("earlier run", log)
    old = time.time() - 3600
    os.utime(store, (old, old))


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _wait_for(name: str, started: list[subprocess.Popen[bytes]], log: Path) -> registry.JobEntry:
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until:
        for entry in registry.read_entries():
            if entry.job == name:
                return entry
        if all(process.poll() is not None for process in started):
            break
        time.sleep(0.1)
    raise _not_come("training", log)


def _not_come(what: str, log: Path) -> CommandError:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    return CommandError(f"ddtop: the demo's {what} did not come up:\n{tail}", 3)


def _plain(entry: registry.JobEntry, expected: str | None, until: float) -> int:
    """Without a terminal: watch until the fault stands (a healthy one: for a while), print, and say how it ended."""
    from ddtop.cli import glyphs, looking, width
    from ddtop.present.plain import diagnose_text, status_text

    began = time.monotonic()
    while True:
        snapshot, verdict = looking.look(entry, 3.0)
        stands = _names(verdict, expected)
        if snapshot.iteration is None:
            until = max(until, min(time.monotonic() + FAULT_S, began + 2 * PLAIN_S))
        settled = expected is None and snapshot.iteration is not None and time.monotonic() - began > HEALTHY_S
        if stands or settled or snapshot.ended is not None or time.monotonic() > until:
            break
    if stands:
        # What goes with it comes a moment later: stacks, who holds a port.
        later = looking.look(entry, MORE_S)
        snapshot, verdict = later if _names(later[1], expected) else (snapshot, verdict)
    click.echo(status_text(snapshot, verdict, width(), glyphs()))
    click.echo(diagnose_text(snapshot, verdict, width(), glyphs()), nl=False)
    return exit_code(verdict)


def _names(verdict: Verdict, kind: str | None) -> bool:
    return any(finding.kind == kind for finding in verdict.findings)


def _end(started: list[subprocess.Popen[bytes]], name: str) -> None:
    """End all that the demo started: ranks (also stopped ones), launcher, relay; and its files."""
    until = time.monotonic() + END_S
    asked: set[tuple[int, int]] = set()
    # Looked for again and again: a launcher may just be starting a rank.
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
    for relay in [one for one in registry.read_entries() if one.job == name]:
        if registry.start_ticks(relay.relay_pid) == relay.relay_start_ticks:
            os.kill(relay.relay_pid, signal.SIGTERM)
            until = time.monotonic() + END_S
            while registry.start_ticks(relay.relay_pid) == relay.relay_start_ticks and time.monotonic() < until:
                time.sleep(0.02)
        registry.remove(relay)


def _members(name: str) -> list[tuple[int, int]]:
    """(pid, start ticks) of the launcher, its ranks and their workers: torchrun gives each rank a session of its own,
    but all inherit the job's name in their environment."""
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
