"""What people install: `python -m tests.wheel`.

It builds the sdist, and the wheel from the sdist, as `pip` would, checks both, and installs them
into new virtual environments without an index:

- `ddtop` alone, as beside a training: three packages, the hook works, the command says what its
  viewer needs;
- `ddtop[viewer]`, as on a login node: the commands work, `ddtop demo` says what it needs.

`--tools` also tries `uv tool install`, `uvx` and `pipx run` (they are installed into an environment
of their own). `--beside torch lightning` installs ddtop next to these and asks `pip check`: by
hand, it downloads gigabytes. Everything lies in one folder, which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
    wanted = {"tests/conftest.py", "tools/house.py", ".ci/run", "constraints.txt"}
    wanted |= {"LICENSE", "ddtop/py.typed", "screenshots/demo.gif", "screenshots/draw.py"}
    claim(wanted <= names, "the sdist holds the tests and what they need")


def wheelhouse(folder: Path, wheel: Path) -> None:
    """Every package that the viewer needs, as a wheel in `folder`: no index is asked later."""
    pip = (sys.executable, "-m", "pip")
    said(*pip, "wheel", "-q", "-w", folder, "-c", CONSTRAINTS, f"{wheel}[viewer]")


def environment(folder: Path, wheels: Path, *what: str) -> Path:
    """The bin folder of a new virtual environment with these packages, from `wheels` only."""
    venv.create(folder, with_pip=True, symlinks=True)
    pip = (folder / "bin" / "python", "-m", "pip")
    offline = ("--no-index", "--find-links", wheels)
    said(*pip, "install", "-q", *offline, *what, PIP_CONSTRAINT="", PIP_CONFIG_FILE=os.devnull)
    said(*pip, "check")
    return folder / "bin"


def packages(binaries: Path) -> set[str]:
    """The names of what is installed there, without the installers."""
    listed = said(binaries / "python", "-m", "pip", "list", "--format", "freeze")
    names = {line.partition("==")[0].lower() for line in listed.splitlines() if "==" in line}
    return names - {"pip", "setuptools", "wheel"}


def beside_a_training(folder: Path, wheels: Path) -> None:
    """`pip install ddtop`: what a training environment gets."""
    binaries = environment(folder / "light", wheels, "ddtop")
    found = packages(binaries)
    claim(found == LIGHT, f"ddtop alone installs {', '.join(sorted(found))}")
    hook = "import sys; print('ddtop.agent.hook' in sys.modules)"
    claim(
        said(binaries / "python", "-c", hook, DDTOP="1").strip() == "True",
        "the start-up hook runs with DDTOP=1",
    )
    text = said(binaries / "ddtop", "status", code=3)
    claim("pip install 'ddtop[viewer]'" in text, "the command says what its viewer needs")


def on_a_login_node(folder: Path, wheels: Path) -> None:
    """`pip install 'ddtop[viewer]'`: where people look at jobs."""
    binaries = environment(folder / "viewer", wheels, "ddtop[viewer]")
    version = said(binaries / "ddtop", "--version").split()[-1]
    claim(version[0].isdigit(), f"ddtop --version says {version}")
    said(binaries / "ddtop", "explain", "not-in-collective")
    state = {"DDTOP_STATE": str(folder / "state"), "DDTOP_RUNTIME": str(folder / "runtime")}
    said(binaries / "ddtop", "jobs", **state)
    claim(True, "ddtop explain and ddtop jobs work")
    text = said(binaries / "ddtop", "demo", code=2, **state)
    wanted = "uvx --from 'ddtop[demo]' ddtop demo"
    claim(wanted in text, f"ddtop demo without torch says: {text.strip()}")


def with_tools(folder: Path, wheels: Path, wheel: Path) -> None:
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
    }
    what = f"ddtop[viewer] @ file://{wheel}"
    said(binaries / "uv", "tool", "install", what, **own)
    said(folder / "uv-bin" / "ddtop", "--version")
    claim(True, "uv tool install 'ddtop[viewer]' gives a command that works")
    said(binaries / "uv", "tool", "run", "--from", what, "ddtop", "--version", **own)
    claim(True, "uvx --from 'ddtop[viewer]' ddtop works")
    pip_args = f"--no-index --find-links={wheels}"
    spec = f"{wheel}[viewer]"
    said(
        *(binaries / "pipx", "run", "--spec", spec, "--pip-args", pip_args, "ddtop", "--version"),
        **own,
    )
    claim(True, "pipx run --spec 'ddtop[viewer]' ddtop works")


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
            beside_a_training(folder, wheels)
            on_a_login_node(folder, wheels)
            if arguments.tools:
                with_tools(folder, wheels, wheel)
            if arguments.beside:
                beside(folder, wheel, arguments.beside)
        except UntrueError as error:
            print(f"FAILED  {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
