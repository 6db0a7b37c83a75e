"""One environment: it is made, its parts run in it, and it is removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.matrix.cells import Cell

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S, TESTS_S, VERDICTS_S, DOCTOR_S = 1800.0, 1200.0, 1200.0, 120.0
INTERRUPTED_S = 20.0
SHOWN = ("torch", "textual", "pyzmq", "msgspec")


@dataclass
class Result:
    """What one environment showed; `trouble`: why the run did not complete.

    `tests`: pytest's numbers (passed, failed, errors, skipped). `verdicts`: a dict a case.
    """

    name: str
    date: str = ""
    commit: str = ""
    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    tests: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    recorder: str = ""
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    trouble: str = ""

    @property
    def holds(self) -> bool:
        """All tests passed and all verdicts were right."""
        return (
            not self.trouble
            and bool(self.tests.get("passed"))
            and not self.failures
            and all(one["right"] for one in self.verdicts)
        )

    def save(self, folder: Path) -> None:
        """Write the result, so that an interrupted run continues after it."""
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path, name: str) -> Result | None:
        """The result of an earlier run, None if there is none."""
        try:
            return cls(**json.loads((folder / f"{name}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


class PartError(Exception):
    """A part did not complete. The text has the end of its output."""


def run(cell: Cell, folder: Path, python: str, keep: bool) -> Result:
    """Make the environment of a cell and run everything in it."""
    began = time.monotonic()
    home = folder / cell.name
    result = Result(cell.name, time.strftime("%Y-%m-%d"), _commit())
    log = folder / f"{cell.name}.log"
    log.write_text("")
    try:
        installed = home / ".installed"
        if not installed.exists():
            shutil.rmtree(home, ignore_errors=True)
            _make(cell, home, folder, python, log)
            installed.write_text("")
        _look(result, home, log)
        _test(cell, result, home, log)
        _judge(cell, result, home, log)
    except PartError as error:
        result.trouble = str(error)
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def constraints(text: str, free: frozenset[str]) -> str:
    """The lines of constraints.txt that hold in an environment."""
    kept = []
    for line in text.splitlines():
        name = re.split(r"[=<>!~ ;]", line, maxsplit=1)[0].lower().replace("-", "_")
        if name not in {one.lower().replace("-", "_") for one in free}:
            kept.append(line)
    return "\n".join(kept) + "\n"


def counted(output: str) -> dict[str, int]:
    """The numbers in pytest's last line: `3 failed, 10 passed in 2.1s`."""
    for line in reversed(output.splitlines()):
        found = re.findall(r"(\d+) (passed|failed|errors?|skipped)", line)
        if found and " in " in line:
            return {word.removesuffix("s") if word == "errors" else word: int(number)
                    for number, word in found}  # fmt: skip
    return {}


def _make(cell: Cell, home: Path, folder: Path, python: str, log: Path) -> None:
    pins = folder / f"{cell.name}.constraints.txt"
    pins.write_text(constraints((ROOT / "constraints.txt").read_text(), cell.free))
    pip = [str(home / "bin/pip"), "install", "-q", "-c", str(pins)]
    try:
        _call([python, "-m", "venv", str(home)], INSTALL_S, log)
        _call([*pip, *cell.wants, "-e", f"{ROOT}[check]"], INSTALL_S, log)
    finally:
        pins.unlink()


def _look(result: Result, home: Path, log: Path) -> None:
    program = (
        "import sys, json\nfrom importlib import metadata\nfound = {}\n"
        f"for name in {SHOWN!r}:\n"
        "    try: found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: pass\n"
        "print(json.dumps([sys.version.split()[0], found]))"
    )
    text = _call([str(home / "bin/python"), "-c", program], DOCTOR_S, log)
    result.python, result.versions = json.loads(text.splitlines()[-1])


def _test(cell: Cell, result: Result, home: Path, log: Path) -> None:
    command = [
        str(home / "bin/python"),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *cell.tests,
    ]
    command += ["-k", cell.without] if cell.without else []
    output = _call(command, TESTS_S, log, fails=True)
    result.tests = counted(output)
    result.failures = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
    if not result.tests:
        raise PartError("pytest did not come to its end")


def _judge(cell: Cell, result: Result, home: Path, log: Path) -> None:
    if not cell.cases:
        return
    more = dict(cell.environment)
    doctor = _call([str(home / "bin/ddtop"), "doctor"], DOCTOR_S, log, fails=True, more=more)
    lines = [line.split(None, 2) for line in doctor.splitlines()]
    result.recorder = next((one[2] for one in lines if one[1:2] == ["torch"] and one[2:]), "")
    python = str(home / "bin/python")
    command = [python, "-m", "tools.matrix.verdicts", *cell.cases]
    text = _call(command, VERDICTS_S, log, fails=True, more=more)
    result.verdicts = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if len(result.verdicts) != len(cell.cases):
        raise PartError(f"{len(result.verdicts)} of {len(cell.cases)} verdicts came")


def _call(
    command: Sequence[str],
    seconds: float,
    log: Path,
    fails: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run it in the checkout, its output also to the log. `more`: variables beside ours.

    Raises:
        PartError: it took too long, or ended with an exit code and may not (`fails`).
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DDTOP")}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**kept, "PYTHONNOUSERSITE": "1", **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        # It is interrupted as by Ctrl+C, so it ends its own processes.
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(INTERRUPTED_S)
        process.kill()
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise PartError(f"{Path(command[0]).name}: not over after {seconds:.0f} s") from None
        raise
    with log.open("a") as file:
        file.write(f"+ {' '.join(command)}\n{output}\n")
    if process.returncode and not fails:
        last = "\n".join(output.strip().splitlines()[-3:])
        raise PartError(f"{Path(command[0]).name}: exit code {process.returncode}: {last}")
    return output


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout.strip()
