"""Python 3.14 and 3.15 of Debian forky, in a folder of their own: `python -m tools.pythons FOLDER`.

They need a newer glibc than stable distributions have, so they run in a chroot. Needs root,
debootstrap, and the registries of Debian and PyPI. The first run makes the folder (two minutes,
600 MB). Then, for each version, it makes an environment there with the extra `check` and runs the
tests that `.ci/run` runs on other Pythons, and those of the pure rooms.

By hand: `.ci/run` leaves out a Python that is not on the machine, with one line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE, MIRROR = "forky", "http://deb.debian.org/debian"
SCRIPT = "/usr/share/debootstrap/scripts/sid"
VERSIONS = ("3.14", "3.15")
PURE = "tests/wire tests/words tests/model tests/diagnosis tests/present tests/ui/test_app.py"
# Mounts of an own namespace, which end with the command.
INSIDE = """
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"
mount --bind /etc/ssl/certs "$0/etc/ssl/certs" && cp /etc/resolv.conf "$0/etc/"
exec chroot "$0" sh -c "cd /src && $1"
"""


def in_jobs() -> str:
    """What `.ci/run` runs on the other Pythons."""
    found = re.search(r'^in_jobs="(.*)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def make(folder: Path, versions: list[str]) -> None:
    """Install Debian there, with these Pythons."""
    packages = ",".join(["ca-certificates", "git", *(f"python{one}-venv" for one in versions)])
    command = ["debootstrap", "--variant=minbase", f"--include={packages}"]
    subprocess.run([*command, SUITE, str(folder), MIRROR, SCRIPT], check=True)


def inside(folder: Path, command: str) -> int:
    """The exit code of a command of a shell in the folder, beside the project."""
    words = ["unshare", "--mount", "sh", "-ec", INSIDE, str(folder), command]
    return subprocess.run(words, check=False).returncode


def tried(folder: Path, version: str) -> int:
    """The exit code of the tests on this Python."""
    venv = f"/venv-{version}"
    steps = (
        f"python{version} -m venv {venv}",
        f"{venv}/bin/pip install -q -c constraints.txt -e '.[check]'",
        f"{venv}/bin/python -m pytest -q -n auto --dist loadfile -m 'not job' {in_jobs()} {PURE}",
    )
    return inside(folder, " && ".join(steps))


def main() -> None:
    """Make the folder if it is not there, and run the tests on each version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), choices=VERSIONS)
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if not (folder / "usr" / "bin").exists():
        make(folder, list(VERSIONS))
    subprocess.run(["rm", "-rf", str(folder / "src")], check=True)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "src")], check=True)
    codes = {version: tried(folder, version) for version in chosen.versions}
    for version, code in codes.items():
        print(f"+ Python {version}, without torch: exit code {code}", flush=True)
    sys.exit(max(codes.values()))


if __name__ == "__main__":
    main()
