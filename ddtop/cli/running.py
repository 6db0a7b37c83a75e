"""`run` and `demo`: starting jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from ddtop import registry
from ddtop.cli import interpreter
from ddtop.cli.jobs import USAGE, CommandError

PLAIN_S = 60.0
"""Without a terminal the demo ends by itself within this time."""
APPEAR_S = 35.0
"""A rank says hello before torch is imported; importing it four times on a small machine takes a third of this."""
END_S = 5.0
HEALTHY_S = 20.0
"""How long a healthy demo is watched without a terminal."""


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
    sys.stdout.flush()
    os.execv(program, command)


def run_demo(fault: str, ranks: int) -> int:
    """Start the demo's training, show it, end it and its relay. The exit code of `attach`, or of `diagnose`."""
    from ddtop.cli import looking

    began = time.monotonic()
    with demo_job(fault, ranks) as entry:
        if looking.plain_terminal() is None:
            looking.show(entry, readonly=False)
            return 0
        return _plain(entry, None if fault == "healthy" else fault, began + PLAIN_S - 2 * END_S)


@contextlib.contextmanager
def demo_job(fault: str, ranks: int) -> Iterator[registry.JobEntry]:
    """A running demo job; ended on leaving, with its ranks, its relay and its files.

    Raises:
        CommandError: no such fault, no torch, or it did not come up.
    """
    arguments = _demo_command(fault, ranks)
    name = f"demo-{os.getpid()}"
    environment = os.environ | {"DDTOP": "1", "DDTOP_JOB": name, "DDTOP_QUIET": "1", "OMP_NUM_THREADS": "1"}
    log = registry.runtime_dir() / f"{name}.log"
    click.echo(f"starting {ranks} ranks of a real training, fault: {fault} ...", err=True)
    with log.open("wb") as output:
        training = subprocess.Popen(
            arguments, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    # A closed terminal or a plain kill must not leave a training behind.
    previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield _wait_for(name, training, log)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _end(training, name)
        log.unlink(missing_ok=True)


def _demo_command(fault: str, ranks: int) -> list[str]:
    faults = demo_faults()
    if fault not in faults:
        raise CommandError(f"ddtop: no demo for {fault!r}; there are: {', '.join(faults)}", USAGE)
    found = interpreter.looks(sys.executable)
    if found is None or not found[1]:
        raise CommandError(
            f"ddtop: the demo trains with torch, which is not in {sys.executable}: pip install 'ddtop[demo]'", USAGE
        )
    if not found[0]:
        raise CommandError(f"ddtop: {interpreter.advice(sys.executable)}", USAGE)
    script = Path(__file__).resolve().parents[1] / "demo" / "train.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, str(script), "--fault", fault]


def demo_faults() -> tuple[str, ...]:
    """Faults that the demo can make, read from its script without importing torch."""
    import ast

    tree = ast.parse((Path(__file__).resolve().parents[1] / "demo" / "train.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FAULTS":
            return tuple(ast.literal_eval(node.value))
    raise CommandError("ddtop: the demo script is damaged", USAGE)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _wait_for(name: str, training: subprocess.Popen[bytes], log: Path) -> registry.JobEntry:
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until:
        for entry in registry.read_entries():
            if entry.job == name:
                return entry
        if training.poll() is not None:
            break
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise CommandError(f"ddtop: the demo's training did not come up:\n{tail}", 3)


def _plain(entry: registry.JobEntry, expected: str | None, until: float) -> int:
    """Without a terminal: watch until the fault stands (a healthy one: for a while), print, and say how it ended."""
    from ddtop.cli import looking, width
    from ddtop.ui.present.plain import diagnose_text, status_text

    began = time.monotonic()
    while True:
        snapshot, verdict = looking.look(entry, 3.0)
        stands = any(finding.kind == expected for finding in verdict.findings)
        settled = expected is None and snapshot.iteration is not None and time.monotonic() - began > HEALTHY_S
        if stands or settled or snapshot.ended is not None or time.monotonic() > until:
            break
    click.echo(status_text(snapshot, verdict, width()))
    click.echo(diagnose_text(snapshot, verdict, width()))
    return 1 if verdict.health == "critical" else 0


def _end(training: subprocess.Popen[bytes], name: str) -> None:
    """End all that the demo started: ranks (also stopped ones), launcher, relay; and its files."""
    members = _members(name)
    for number in (signal.SIGCONT, signal.SIGTERM):
        _signal_all(members, number)
    until = time.monotonic() + END_S
    while _living(members) and time.monotonic() < until:
        training.poll()
        time.sleep(0.05)
    _signal_all(members, signal.SIGKILL)
    training.wait()
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


def _living(members: list[tuple[int, int]]) -> bool:
    return any(registry.start_ticks(pid) == ticks for pid, ticks in members)


def _signal_all(members: list[tuple[int, int]], number: int) -> None:
    for pid, ticks in members:
        if registry.start_ticks(pid) == ticks:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
