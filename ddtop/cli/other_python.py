"""Puts the agent into another Python: an environment, a container, or a folder for PYTHONPATH.

Problem: the agent must be in the Python that trains, and that is often not the Python in which
somebody types `ddtop`. What does not work: pointing the other Python at our own folder, since
pyzmq and msgspec are compiled for one version of Python. What we do: that Python's own pip (or uv)
installs the agent there, without the packages of the commands; a note beside it lists what was
added, so that it can be removed again. An image that cannot be written gets a folder instead, with
a `sitecustomize` that does what the start-up line does, because Python reads no start-up lines from
PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import ddtop
from ddtop import private, start_python
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError

ANSWER_S, INSTALL_S = 60.0, 900.0
"""How long that Python may take to start, and its pip to install three packages."""
NOTE = "ddtop-setup-env.json"
OF_THE_AGENT = ("pyzmq>=26", "msgspec>=0.18", "psutil>=5.9")
"""What pip installs beside ddtop itself, which it installs without dependencies."""
OF_THE_COMMANDS = ("click", "textual")
OLDEST = (3, 10)
_ASK = """
import importlib.metadata, importlib.util, json, os, sys, sysconfig
folder = sysconfig.get_path("purelib")
found = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
print(json.dumps({
    "version": list(sys.version_info[:3]), "folder": folder, "packages": found,
    "writable": os.access(folder, os.W_OK), "pip": importlib.util.find_spec("pip") is not None,
    "hook": "ddtop.agent.hook" in sys.modules, "python": sys.executable,
}))
"""
_WRITE = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_text(sys.argv[2]) if sys.argv[2] else path.unlink(missing_ok=True)
"""
_PIP = "import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
_READ = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text())"
SITECUSTOMIZE = '''\
"""Written by `ddtop setup-env --target`: ddtop's agent, then the next sitecustomize."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

if os.environ.get("DDTOP", "0") not in ("", "0"):
    try:
        import ddtop.agent.hook
    except BaseException:
        pass

_here = os.path.dirname(os.path.abspath(__file__))
_next = PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _here]
)
if _next is not None and _next.loader is not None:
    _module = module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)
'''


@dataclass(frozen=True)
class Environment:
    """The facts that another Python reports about itself. `version`: (major, minor, micro)."""

    python: str
    version: tuple[int, ...]
    folder: str
    writable: bool
    has_pip: bool
    hook_runs: bool
    packages: dict[str, str]

    def missing_packages(self, requirements: Sequence[str]) -> list[str]:
        """The names of those that are not installed there, whatever their versions."""
        names = [requirement.partition(">=")[0] for requirement in requirements]
        return [name for name in names if name not in self.packages]


class OtherPython:
    """One other Python. `through`: the words in front of each command, such as `docker exec NAME`.

    Every method raises CommandError: 3, that Python or its pip did not answer as it should.
    """

    def __init__(self, python: str, through: Sequence[str] = ()) -> None:
        inside = Path(python) / "bin" / "python"
        # `Path.exists` raises where a folder may not be entered.
        self.python = str(inside) if not through and os.path.exists(inside) else python
        self._through = list(through)

    def ask(self, watched: bool = False) -> Environment:
        """Ask it about itself. `watched`: with DDTOP=1, so that the start-up hook runs.

        Check: `DDTOP=1 PYTHON -c "import sys; print('ddtop.agent.hook' in sys.modules)"`.
        """
        prefix = ["env", "DDTOP=1", "DDTOP_QUIET=1"] if watched else []
        text = self._run([*prefix, *start_python.program(self.python, _ASK)], ANSWER_S)
        try:
            found = json.loads(text.splitlines()[-1])
            return Environment(
                found["python"],
                tuple(found["version"]),
                found["folder"],
                found["writable"],
                found["pip"],
                found["hook"],
                {name.lower(): version for name, version in found["packages"].items() if name},
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            raise CommandError(
                f"ddtop: {self.python} does not answer as a Python does: {text[:200]!r}",
                UNREACHABLE,
            ) from None

    def install(self, here: Environment, what: str) -> dict[str, str]:
        """Install ddtop there. Returns what was added, name to version."""
        self._run([*self._installer(here, "install"), what, *OF_THE_AGENT], INSTALL_S)
        now = self.ask()
        added = {
            name: version
            for name, version in now.packages.items()
            if here.packages.get(name) != version
        }
        noted = json.loads(self._note(here) or "{}")
        text = json.dumps({**noted, **{name: added[name] for name in sorted(added)}})
        self._run(
            start_python.program(self.python, _WRITE, f"{here.folder}/{NOTE}", text), ANSWER_S
        )
        return added

    def uninstall(self, here: Environment) -> dict[str, str]:
        """Remove what `install` added, and nothing else. Returns what was removed; empty: nothing
        had been added."""
        noted: dict[str, str] = json.loads(self._note(here) or "{}")
        if noted:
            words = [*self._installer(here, "uninstall"), *noted]
            self._run([*words, "-y"] if here.has_pip else words, INSTALL_S)
            self._run(
                start_python.program(self.python, _WRITE, f"{here.folder}/{NOTE}", ""), ANSWER_S
            )
        return noted

    def install_into(self, folder: Path, here: Environment, what: str) -> None:
        """Install ddtop into a folder for PYTHONPATH, for an image that cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise CommandError(f"ddtop: {folder} is another user's: name a new folder", USAGE)
        if any(folder.iterdir()) and not (folder / NOTE).exists():
            raise CommandError(f"ddtop: {folder} holds other files: name a new folder", USAGE)
        words = [*self._installer(here, "install"), "--target", str(folder)]
        self._run([*words, what, *OF_THE_AGENT], INSTALL_S)
        for name, text in (("sitecustomize.py", SITECUSTOMIZE), (NOTE, "{}")):
            with private.written(folder / name, 0o666) as file:
                file.write(text.encode())

    def _note(self, here: Environment) -> str | None:
        try:
            asks = start_python.program(self.python, _READ, f"{here.folder}/{NOTE}")
            return self._run(asks, ANSWER_S)
        except CommandError:
            return None

    def _installer(self, here: Environment, verb: str) -> list[str]:
        alone = ["--no-deps"] if verb == "install" else []
        if here.has_pip:
            return [
                *start_python.program(here.python, _PIP, verb, "--quiet"),
                *("--disable-pip-version-check", *alone),
            ]
        if shutil.which("uv") and not self._through:
            # Else it reads a uv.toml of the current folder, which may name another index.
            words = ["uv", "--project", start_python.FOLDER, "pip", verb, "--quiet"]
            return [*words, "--python", here.python, *alone]
        raise CommandError(
            f"ddtop: {self.python} has no pip: {self.python} -m ensurepip, then again", UNREACHABLE
        )

    def _run(self, command: list[str], within_s: float) -> str:
        words = [*self._through, *command]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                env=start_python.environment(),
                check=False,
            )
        except OSError as error:
            raise CommandError(f"ddtop: {words[0]}: {error.strerror}", UNREACHABLE) from None
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"ddtop: {words[0]} did not answer within {within_s:.0f} s", UNREACHABLE
            ) from None
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            why = next(
                (line for line in lines if "error" in line.lower()), (lines or ["no word"])[-1]
            )
            typed = " ".join("..." if "\n" in word else word for word in words[:6])
            raise CommandError(
                f"ddtop: {typed}: exit code {done.returncode}: {why[:160]}", UNREACHABLE
            )
        return done.stdout


def of_this_copy() -> str:
    """What pip must install to get this version: the folder that it came from, or a version on an
    index."""
    try:
        text = distribution("ddtop").read_text("direct_url.json")
    except PackageNotFoundError:
        return str(Path(ddtop.__file__).parents[1])
    url = json.loads(text).get("url", "") if text else ""
    return url if url.startswith("file:") else f"ddtop=={ddtop.__version__}"


def too_old(version: Sequence[int]) -> str | None:
    """Why ddtop cannot run in that version of Python; None if it can."""
    if tuple(version[:2]) >= OLDEST:
        return None
    found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
    return f"it is Python {found}; ddtop needs {oldest} or newer"
