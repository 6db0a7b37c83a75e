"""`python -m tools.recorded INTO`: what this checkout says of each recorded job, and of jobs that
are not there.

A change that moves code changes no byte of it:

    git switch --detach BEFORE && python -m tools.recorded /tmp/before
    git switch --detach AFTER && python -m tools.recorded /tmp/after
    diff -r /tmp/before /tmp/after

The recordings are the journals of jobs that have ended (`jobs.tar.xz`, see `record`). Each is read
as such, by commands whose clock stands still. Some are also looked at as live jobs, whose relay
sends what was recorded (`double`): there `#` stands for durations, times and fractions, which
depend on the moment. `ddtop jobs` also lists jobs of this machine that were started
without ddtop: end them first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.recorded.record import JOBS, NOW_UNIX_S

LIMIT_S = 120.0
FOLDERS = ("bin", "runtime", "state")
AT_A_TIME = 2
CLOCK_RUNS = """
import sys
sys.argv = ["ddtop", *sys.argv[1:]]
from ddtop.__main__ import main
main()
"""
CLOCK_STANDS = f"""
import time
time.time = lambda: {NOW_UNIX_S}.0
time.time_ns = lambda: {NOW_UNIX_S}_000_000_000
{CLOCK_RUNS}"""
OF_THE_MOMENT = re.compile(r"\d+:\d+:\d+|\d{16,}|\d+\.\d+(e-\d+)?( ?s)?|(\d+ min )?\d+ s\b|\d+%")
OF_A_JOB = {
    "status": ("status",),
    "status.json": ("status", "--json"),
    "diagnose": ("diagnose",),
    "diagnose.json": ("diagnose", "--json"),
    "stacks": ("stacks", "--last", "--no-source"),
    "stacks-tree": ("stacks", "--last", "--tree"),
    "stacks.json": ("stacks", "--last", "--json"),
    "report": ("report", "--no-source"),
}
"""The files of a job, and the command that prints each; the job's name comes after the first word.
"""
LIVE = (
    "sim-loader-stuck",
    "sim-not-in-collective",
    "sim-rank-stopped",
    "sim-rank-killed",
    "sim-host-lost",
    "sim-gpu-hang",
    "sim-gpu-error",
)
"""The jobs that are also looked at while they live: they stand, so their counts are certain."""
OF_A_LIVE_JOB = ("status.json", "diagnose", "diagnose.json", "stacks")
ASKS = {
    "status": (),
    "diagnose": (),
    "stacks": (),
    "report": (),
    "watch": (),
    "attach": (),
    "signal": ("--rank", "0", "--yes", "train", "TERM"),
    "mute": ("train", "straggler", "--for", "10m"),
}
"""The commands that look for a job, and what follows the job."""
PLACES = {
    "no-such-job": ("nothing-like-it",),
    "several": ("sim-r",),
    "nobody-at-the-hub": ("--hub", "127.0.0.1:9"),
    "hub-without-port": ("--hub", "node7"),
    "no-such-pid": ("--pid", "4194303"),
    "pid-is-a-word": ("--pid", "train"),
    "no-slurm": ("--slurm", "4711"),
    "no-kubectl": ("--k8s", "prod/train"),
    "no-pbs": ("--pbs", "4711.head"),
    "no-lsf": ("--lsf", "4711"),
    "no-ssh": ("--ssh", "node7"),
    "several-hosts-no-ssh": ("--ssh", "node7,node8"),
    "two-places": ("--hub", "127.0.0.1:9", "--pid", "4711"),
}
"""Where a job may be looked for, each without one that can be asked."""
OTHERS = {
    "jobs": ("jobs",),
    "jobs-all": ("jobs", "--all"),
    "jobs.json": ("jobs", "--json"),
    "explain": ("explain",),
    "schema.json": ("schema",),
    "config": ("config", "show"),
    "help": ("help",),
    "no-such-command": ("statsu",),
    "no-such-kind": ("explain", "stragler"),
    "sim-too-many": ("--sim", "131073"),
    "sim-no-scenario": ("--sim", "8", "--scenario", "storm"),
}


def all_words(jobs: list[str], commands: list[str], kinds: list[str]) -> Iterator[tuple[str, ...]]:
    """(file, word, word, ...) of everything that is run."""
    for job in jobs:
        for file, (command, *rest) in OF_A_JOB.items():
            yield f"jobs/{job}/{file}", command, job, *rest
    for command, after in ASKS.items():
        for place, words in PLACES.items():
            yield f"places/{place}/{command}", command, *words, *after
    for file, given in OTHERS.items():
        yield f"others/{file}", *given
    for command in commands:
        yield f"help/{command}", "help", command
    for kind in kinds:
        yield f"explain/{kind}", "explain", kind


def environment(home: Path) -> dict[str, str]:
    """That of each command: nothing of this machine's user is in it."""
    return {
        "HOME": str(home),
        "PATH": str(home / "bin"),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "COLUMNS": "120",
        "PYTHONPATH": os.getcwd(),
        "DDTOP_STATE": str(home / "state"),
        "DDTOP_RUNTIME": str(home / "runtime"),
    }


def said(words: tuple[str, ...], home: Path, program: str = CLOCK_STANDS) -> str:
    """Exit code, output and the files that one command wrote; the folder is called HOME."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        text = _ran(words, home, Path(folder), program)
        for file in sorted(Path(folder).iterdir()):
            text += f"--- {file.name}\n{file.read_text()}"
        return text.replace(folder, "HERE").replace(str(home), "HOME")


def _ran(words: tuple[str, ...], home: Path, here: Path, program: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment(home),
            cwd=here,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"$ ddtop {' '.join(words)}\nno end within {LIMIT_S:.0f} s\n"
    return (
        f"$ ddtop {' '.join(words)}\nexit code {done.returncode}\n"
        f"--- stdout\n{done.stdout}--- stderr\n{done.stderr}"
    )


def said_live(job: str, home: Path) -> Iterator[tuple[str, str]]:
    """(file, text) of each command on this job while it lives. `home`: where its journal is."""
    (journal,) = (home / "state").glob(f"{job}-*.journal")
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        for name in FOLDERS:
            (there / name).mkdir(mode=0o700)
        words = [sys.executable, "-m", "tools.recorded.double", str(journal), f"{there}/none.link"]
        with subprocess.Popen(words, env=environment(there), stdout=subprocess.PIPE) as double:
            assert double.stdout is not None
            port = int(double.stdout.readline())
            entry = json.loads(journal.with_suffix(".json").read_bytes())
            now = time.time_ns()
            entry |= {"port": port, "heartbeat_unix_ns": now, "ended_unix_ns": None}
            entry |= {"public_address": "127.0.0.1", "public_port": port, "ended_reason": None}
            (there / "state" / f"{journal.stem}.json").write_text(json.dumps(entry))
            for file in OF_A_LIVE_JOB:
                command, *rest = OF_A_JOB[file]
                text = said((command, job, *rest), there, CLOCK_RUNS)
                yield f"live/{job}/{file}", OF_THE_MOMENT.sub("#", text)
            double.terminate()


def main() -> None:
    """Run every command and write what each says."""
    parser = argparse.ArgumentParser(prog="python -m tools.recorded", description=__doc__)
    parser.add_argument("into", type=Path)
    into = parser.parse_args().into
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name in FOLDERS:
            (home / name).mkdir(mode=0o700)
        with tarfile.open(JOBS) as archive:
            archive.extractall(home, filter="data")
        jobs = sorted(path.name.rpartition("-")[0] for path in (home / "state").glob("*.json"))
        commands = re.findall(r"^  ([a-z-]+)  ", said(("help",), home), re.MULTILINE)
        kinds = re.findall(r"^([a-z0-9-]+)  ", said(("explain",), home), re.MULTILINE)

        def run(words: tuple[str, ...]) -> None:
            _write(into / words[0], said(words[1:], home))

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(run, all_words(jobs, commands, kinds)))
        for job in LIVE:
            for name, text in said_live(job, home):
                _write(into / name, text)
    print(f"{sum(one.is_file() for one in into.rglob('*'))} files in {into}")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


if __name__ == "__main__":
    main()
