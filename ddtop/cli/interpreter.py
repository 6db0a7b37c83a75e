"""Checks whether the start-up hook is in the Python that will run the job.

Many users install tools and training in different environments.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ddtop import start_python
from ddtop.launch.launchers import OpenMpi

_ASK = (
    "import sys, site, os; paths = site.getsitepackages() + [site.getusersitepackages()];"
    "hook = any(os.path.exists(os.path.join(p, 'ddtop.pth')) for p in paths);"
    "from importlib.util import find_spec;"
    "print(int(hook and find_spec('ddtop') is not None), int(find_spec('torch') is not None))"
)
ASK_S = 20.0
"""A Python on a slow file server takes seconds to start."""


def of_command(command: list[str]) -> str | None:
    """The Python interpreter that a command line runs; None if that is not known.

    It is read from the first word, or from the first line of the script that it names.
    """
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None
    if Path(program).name.startswith("python"):
        return program
    words = _interpreter_line(program)
    if len(words) > 1 and Path(words[0]).name == "env":
        return shutil.which(words[1])
    return words[0] if words and "python" in Path(words[0]).name else None


def _interpreter_line(script: str) -> list[str]:
    """The words behind `#!`; empty if there is no such line."""
    try:
        with open(script, "rb") as file:
            line = file.readline(512)
    except OSError:
        return []
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []


def looks(python: str) -> tuple[bool, bool] | None:
    """(hook installed, torch installed) in that interpreter; None if it does not answer."""
    try:
        done = subprocess.run(
            start_python.program(python, _ASK),
            capture_output=True,
            text=True,
            timeout=ASK_S,
            env=start_python.environment(),
            check=False,
        )
        hook, torch = done.stdout.split()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return hook == "1", torch == "1"


def install_advice(python: str) -> str | None:
    """What to install so that ddtop sees jobs of that interpreter; None if the hook is
    installed."""
    found = looks(python)
    if found is None or found[0]:
        return None
    return f"the start-up hook is not in {python}: {python} -m pip install ddtop"


_HOST_OPTIONS = (
    "--host",
    "-host",
    "-H",
    "--hostfile",
    "-hostfile",
    "--machinefile",
    "-machinefile",
)


def not_passed_on(command: list[str], environ: Mapping[str, str]) -> str | None:
    """What to add to a launcher that does not pass the environment on to ranks on other hosts.

    Open MPI does not. None if nothing must be added.
    """
    if Path(command[0]).name not in OpenMpi.commands or "-x" in command:
        return None
    if not any(word in _HOST_OPTIONS for word in command):
        return None
    names = ("DDTOP", "DDTOP_JOB", "DDTOP_HUB", "DDTOP_KEY")
    words = " ".join(f"-x {name}" for name in names if name in environ)
    return f"with Open MPI, ranks on other hosts are seen only with: {words}"
