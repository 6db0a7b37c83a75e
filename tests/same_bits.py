"""Wheel and sdist are the same bits twice: `python -m tests.same_bits FOLDER`.

It builds both in two clones of the commit, at two paths and with two umasks, compares them, and
leaves one pair in FOLDER. The times in the archives are that of the commit (`SOURCE_DATE_EPOCH`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*words: str) -> str:
    """What git prints."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def built(clone: Path, folder: Path, umask: int) -> dict[str, str]:
    """SHA-256 by name of what a clone of the commit builds into `folder`."""
    git("clone", "-q", str(ROOT), str(clone))
    subprocess.run([sys.executable, "-m", "docs.generate"], check=True, cwd=clone)
    environ = os.environ | {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(clone)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ, umask=umask)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def main() -> int:
    """1 if the two differ."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="ddtop-bits-") as name:
        one = built(Path(name, "a"), target, 0o022)
        other = built(Path(name, "another", "path"), Path(name, "dist"), 0o077)
    for file, digest in sorted(one.items()):
        print(f"{'same' if other.get(file) == digest else 'DIFFERENT'}  {digest}  {file}")
    return 0 if one == other and len(one) == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
