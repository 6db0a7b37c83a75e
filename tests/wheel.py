"""What people install: `python -m tests.wheel`.

It builds the sdist, and the wheel from the sdist, as `pip` would, checks both, and installs them
into new virtual environments without an index:

- `pip install ddtop`: the commands work, `ddtop demo` says what it needs;
- `pip install --no-deps ddtop` and three packages, for an image: a rank is watched there, and the
  command says what it lacks.

`--tools` also tries `uv tool install`, `uvx` and `pipx run` (they are installed into an environment
of their own). `--beside torch lightning` installs ddtop next to these and asks `pip check`: by
hand, it downloads gigabytes. Everything lies in one folder, which is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from docs.generate import write_man_page

ROOT = Path(__file__).resolve().parents[1]
INSTALL_PAGE = ROOT / "docs" / "howto" / "install.md"
IMAGE_LINE = re.compile(r"^pip install (--no-deps .*)$", re.MULTILINE)
SEEN_S, LONGEST_S = 60.0, 900.0
LIGHT = {"ddtop", "msgspec", "psutil", "pyzmq"}
CONSTRAINTS = ROOT / "constraints.txt"
NO_CAP = {key: value for key, value in os.environ.items() if not key.startswith("DDTOP")}


class UntrueError(Exception):
    """A claim that does not hold. The text has the claim."""


def said(*command: str | Path, code: int = 0, **more: str) -> str:
    """What a command prints, on both streams.

    Raises:
        UntrueError: it ended with another exit code, or with a traceback.
    """
    ended = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=NO_CAP | more,
        timeout=LONGEST_S,
    )
    if ended.returncode != code or "Traceback" in ended.stdout:
        raise UntrueError(f"{command}: exit code {ended.returncode}, not {code}:\n{ended.stdout}")
    return ended.stdout


def claim(holds: bool, text: str) -> None:
    """Print what holds.

    Raises:
        UntrueError: it does not.
    """
    if not holds:
        raise UntrueError(text)
    print(f"ok  {text}", flush=True)


def built(folder: Path) -> tuple[Path, Path]:
    """(the wheel, the sdist), made in `folder`: the wheel from the sdist."""
    write_man_page()
    said(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def look_inside(wheel: Path, sdist: Path) -> None:
    """The wheel has the package and its start-up line; the sdist has what its own tests need."""
    said(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    claim(True, f"twine finds nothing wrong with {wheel.name} and {sdist.name}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    others = {top for top in tops if not top.endswith((".dist-info", ".data"))}
    claim(others == {"ddtop", "ddtop.pth"}, f"the wheel holds {', '.join(sorted(others))}")
    data = {name.partition(".data/data/")[2] for name in names if ".data/" in name}
    claim(data == {"share/man/man1/ddtop.1"}, "and the man page")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"tests/conftest.py", "tools/house.py", ".ci/run", "constraints.txt", "pylock.toml"}
    wanted |= {"CITATION.cff", ".github/workflows/release.yml"}
    wanted |= {"LICENSE", "ddtop/py.typed", "screenshots/demo.gif", "screenshots/draw.py"}
    claim(wanted <= names, "the sdist holds the tests and what they need")


def wheelhouse(folder: Path, wheel: Path) -> None:
    """ddtop and every package that it needs, as a wheel in `folder`: no index is asked later."""
    pip = (sys.executable, "-m", "pip")
    said(*pip, "wheel", "-q", "-w", folder, "-c", CONSTRAINTS, wheel)


def environment(folder: Path, wheels: Path, *what: str) -> Path:
    """The bin folder of a new virtual environment with these packages, from `wheels` only."""
    venv.create(folder, with_pip=True, symlinks=True)
    install(folder / "bin", wheels, *what)
    return folder / "bin"


def install(binaries: Path, wheels: Path, *what: str) -> str:
    """Install these there, from `wheels` only. Returns what pip says, warnings included."""
    pip = (binaries / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    offline = ("--no-index", "--find-links", wheels)
    return said(*pip, *offline, *what, PIP_CONSTRAINT="", PIP_CONFIG_FILE=os.devnull)


def packages(binaries: Path) -> set[str]:
    """The names of what is installed there, without the installers."""
    listed = said(binaries / "python", "-m", "pip", "list", "--format", "freeze")
    names = {line.partition("==")[0].lower() for line in listed.splitlines() if "==" in line}
    return names - {"pip", "setuptools", "wheel"}


def to_look(folder: Path, wheels: Path) -> Path:
    """`pip install ddtop`: the command with its dashboard. Returns the bin folder."""
    binaries = environment(folder / "full", wheels, "ddtop")
    said(binaries / "python", "-m", "pip", "check")
    found = packages(binaries)
    claim({"textual", "click"} | LIGHT < found, f"ddtop installs {', '.join(sorted(found))}")
    version = said(binaries / "ddtop", "--version").split()[-1]
    claim(version[0].isdigit(), f"ddtop --version says {version}")
    said(binaries / "ddtop", "explain", "not-in-collective")
    state = {"DDTOP_STATE": str(folder / "state"), "DDTOP_RUNTIME": str(folder / "runtime")}
    said(binaries / "ddtop", "jobs", **state)
    claim(True, "ddtop explain and ddtop jobs work")
    text = said(binaries / "ddtop", "demo", code=2, **state)
    wanted = "uvx --from 'ddtop[demo]' ddtop demo"
    claim(wanted in text, f"ddtop demo without torch says: {text.strip()}")
    return binaries


def in_an_image(folder: Path, wheels: Path, full: Path) -> None:
    """The line for images of the page on installation: the agent alone."""
    (words,) = (shlex.split(line) for line in IMAGE_LINE.findall(INSTALL_PAGE.read_text()))
    binaries = environment(folder / "light", wheels, *words)
    found = packages(binaries)
    claim(found == LIGHT, f"pip install {shlex.join(words)} installs {', '.join(sorted(found))}")
    for command in ("status", "doctor"):
        text = said(binaries / "ddtop", command, code=3)
        wanted = text.count("\n") == 1 and "the agent works" in text and "need click" in text
        claim(wanted, f"ddtop {command} says there: {text.strip()}")
    text = said(full / "ddtop", "doctor", "--python", binaries / "python")
    claim("it has only the agent" in text, "and ddtop doctor --python says it from elsewhere")
    with tempfile.TemporaryDirectory(prefix="ddtop-run-") as runtime:
        state = {"DDTOP_STATE": str(folder / "state"), "DDTOP_RUNTIME": runtime}
        rank = {"RANK": "0", "WORLD_SIZE": "1", "DDTOP_LINGER_S": "0", "DDTOP": "1", **state}
        until = time.monotonic() + SEEN_S
        (folder / "rank.py").write_text("import sys; sys.stdin.read()")
        program = subprocess.Popen(
            [binaries / "python", folder / "rank.py"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=NO_CAP | rank,
        )
        try:
            pids = [None]
            while pids == [None] and time.monotonic() < until:
                text = said(full / "ddtop", "status", "--json", "--wait", **state)
                pids = [row["pid"] for row in json.loads(text)["ranks"]]
            claim(pids == [program.pid], "a rank is watched there, and seen from elsewhere")
        finally:
            program.communicate()
            # The relay ends with its job: until then it writes into these folders.
            for job in (folder / "state").glob("*.json"):
                relay = Path(f"/proc/{json.loads(job.read_text())['relay_pid']}")
                while relay.exists() and time.monotonic() < until + SEEN_S:
                    time.sleep(0.05)


def with_tools(folder: Path, wheels: Path) -> None:
    """The tools that install programs apart: from the built wheel and these wheels only."""
    binaries = folder / "tools" / "bin"
    venv.create(folder / "tools", with_pip=True, symlinks=True)
    said(binaries / "python", "-m", "pip", "install", "-q", "uv", "pipx")
    own = {
        "UV_TOOL_DIR": str(folder / "uv"),
        "UV_TOOL_BIN_DIR": str(folder / "uv-bin"),
        "PIPX_HOME": str(folder / "pipx"),
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheels),
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_PYTHON": sys.executable,
        # pipx takes uv or pip.
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }
    said(binaries / "uv", "tool", "run", "ddtop", "--version", **own)
    claim(True, "uvx ddtop works")
    said(binaries / "uv", "tool", "install", "ddtop", **own)
    said(folder / "uv-bin" / "ddtop", "--version")
    claim(True, "uv tool install ddtop gives a command that works")
    said(binaries / "pipx", "run", "ddtop", "--version", **own)
    claim(True, "pipx run ddtop works")


def beside(folder: Path, wheel: Path, names: list[str]) -> None:
    """Next to other packages: nobody's requirement is broken."""
    venv.create(folder / "beside", with_pip=True, symlinks=True)
    pip = (folder / "beside" / "bin" / "python", "-m", "pip")
    for name in names:
        said(*pip, "install", "-q", "-c", CONSTRAINTS, name)
    before = packages(folder / "beside" / "bin")
    said(*pip, "install", "-q", wheel)
    said(*pip, "check")
    added = sorted(packages(folder / "beside" / "bin") - before)
    claim(True, f"next to {', '.join(names)}: no conflict; it added {', '.join(added)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description=__doc__)
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--beside", nargs="+", default=[], metavar="PACKAGE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddtop-wheel-") as name:
        folder = Path(name)
        try:
            wheel, sdist = built(folder / "dist")
            look_inside(wheel, sdist)
            wheels = folder / "wheels"
            wheelhouse(wheels, wheel)
            in_an_image(folder, wheels, to_look(folder, wheels))
            if arguments.tools:
                with_tools(folder, wheels)
            if arguments.beside:
                beside(folder, wheel, arguments.beside)
        except UntrueError as error:
            print(f"FAILED  {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
