"""Everything about GPUs that doubles cannot tell, by one command on a machine with an NVIDIA GPU:
`python -m tools.gpu.check`.

Needs only this repository, a Python that has torch with CUDA, and ddtop's dependencies: installed,
as wheels in `.whl` or `wheels` here (`--wheels FOLDER`), or from a package index. The hook of ddtop
is put into a virtual environment in /tmp that sees the packages of this Python; nothing of the
machine is changed. Wheels for a machine without network:

    pip download -d .whl --only-binary=:all: --python-version 3.12 textual pyzmq msgspec psutil
    nvidia-ml-py click

Each part is a process with a deadline of its own, all of them together take a quarter of an hour
(`--seconds`); names of parts run only these. PASS and FAIL are claims that were compared with
numbers, SEEN is for a reader to judge, SKIP what this machine cannot show. The last lines repeat
what matters; everything that was said is in `--log FILE`, or in $OUT/gpu-check.log. Without a
driver it ends with 3.
"""

# Only the standard library: no other package may be installed yet.
from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
import zipfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "textual": "textual",
    "zmq": "pyzmq",
    "msgspec": "msgspec",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "click": "click",
}
_OWN = "DDTOP_CHECK_"
PREPARED = "DDTOP_CHECK_PREPARED"
PARTS = {
    "machine": 40,
    "cards": 40,
    "costs": 30,
    "command": 30,
    "untouched": 80,
    "allocator": 40,
    "counts": 60,
    "samples": 90,
    "training": 75,
    "waits": 60,
    "busy": 60,
    "shared": 90,
    "twice": 50,
    "memory": 50,
    "several": 400,
    "quiet": 250,
    "ended": 150,
    "outside": 130,
    "steps": 280,
}
"""Name -> seconds that it may take; most take half of that. The order is that of worth: what is
left out for time comes last.
"""
CHARACTERS, LINE = 11_500, 230
WORDS = ("PASS", "FAIL", "SEEN", "SKIP")
_DEVICES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")


def missing() -> list[str]:
    """Distributions that ddtop needs and this Python does not have."""
    return [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]


def hooked() -> bool:
    """Whether a Python that is started like this one runs ddtop's start-up line."""
    code = "import sys, ddtop; print('ddtop.agent.hook' in sys.modules, ddtop.__file__)"
    environment = {**os.environ, "DDTOP": "1"}
    # Run elsewhere, because in this folder `import ddtop` always finds the repository.
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() == f"True {ROOT / 'ddtop/__init__.py'}"


def prepare(wheels: Path | None, folder: Path) -> Path:
    """A virtual environment with the hook and all that is needed; its Python. SystemExit says
    what to type where it cannot be.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
    )
    names = {"base": str(folder), "platbase": str(folder)}
    site = Path(
        sysconfig.get_path(
            "purelib", "venv" if "venv" in sysconfig.get_scheme_names() else None, names
        )
    )
    # A venv in a venv sees the packages of the outermost Python only. The path comes before ddtop's
    # own line, which imports from it.
    seen = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (site / "0-here.pth").write_text("\n".join([str(ROOT), *seen]) + "\n")
    (site / "ddtop.pth").write_text((ROOT / "ddtop/agent/ddtop.pth").read_text())
    absent = missing()
    if absent:
        _install(absent, wheels, site)
    return folder / "bin/python"


def _install(absent: list[str], wheels: Path | None, site: Path) -> None:
    if wheels is not None:
        for wheel in sorted(wheels.glob("*.whl")):
            # A wheel contains packages that are unpacked into the folder where Python looks for
            # them.
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), *absent]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise SystemExit(
            f"{', '.join(absent)} not installed here, and pip found none"
            f" ({done.stderr.strip()[-200:]}).\nElsewhere: pip download -d .whl --only-binary=:all:"
            f" --python-version {sys.version_info[0]}.{sys.version_info[1]}"
            f" {' '.join(NEEDED.values())}\nthen here: python -m tools.gpu.check --wheels .whl"
        )


def run(name: str, seconds: float, log: IO[str]) -> list[str]:
    """All lines of one part."""
    began = time.monotonic()
    command = [sys.executable, "-u", "-m", "tools.gpu.check", "--part", name]
    with tempfile.TemporaryFile("w+") as out:
        part = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        late = False
        try:
            part.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        # The part ends its jobs. Its process group ends the rest, also what is left of the part.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                part.wait(15)
        out.seek(0)
        lines = [line.rstrip() for line in out if line.strip()]
    if late:
        lines.append(f"FAIL {name}: not done after {seconds:.0f} s")
    elif part.returncode:
        lines.append(f"FAIL {name}: the part itself ended with {part.returncode}")
    print(*lines, sep="\n", file=log, flush=True)
    return [f"== {name} ({time.monotonic() - began:.0f} s)", *lines]


def shown(lines: list[str], room: int) -> list[str]:
    """The lines that fit: claims first, then the rest, in the order of the output. Each line is cut
    to a width.
    """
    lines = [line if len(line) <= LINE else line[: LINE - 4] + " ..." for line in lines]
    keep = {number for number, line in enumerate(lines) if line.startswith(("==", *WORDS))}
    left = room - sum(len(lines[number]) + 1 for number in keep)
    for number, line in enumerate(lines):
        if number not in keep and len(line) + 1 <= left:
            keep.add(number)
            left -= len(line) + 1
    return [lines[number] for number in sorted(keep)]


def inside(name: str) -> int:
    """One part, in its own process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for variable in [
        one for one in os.environ if one.startswith("DDTOP") and not one.startswith(_OWN)
    ]:
        del os.environ[variable]
    try:
        for module in ("tools.gpu.cards", "tools.gpu.jobs", "tools.gpu.nccl", "tools.gpu.several"):
            part = getattr(importlib.import_module(module), name, None)
            if part is not None:
                part()
                return 0
    except Exception as error:  # noqa: BLE001 - what a part saw before counts, the next ones go on
        print(f"FAIL {name}: {type(error).__name__}: {error}"[:LINE])
        traceback.print_exc(file=sys.stdout)
    return 0


def main() -> int:
    """Run all parts, or those that the command line names. Returns 1 if a claim failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu.check", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--wheels", type=Path, help="a folder of wheels, for a machine without network"
    )
    parser.add_argument(
        "--seconds", type=float, default=1000.0, help="for all parts together (default 1000)"
    )
    parser.add_argument("--log", type=Path, help="everything that was said")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if set(options.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    if options.part:
        return inside(options.part)
    if not any(os.path.exists(path) for path in _DEVICES):
        print("no NVIDIA driver: nothing to check here")
        return 3
    ends = time.monotonic() + options.seconds
    if PREPARED not in os.environ and (missing() or not hooked()):
        found = [
            one
            for one in (options.wheels, ROOT / ".whl", ROOT / "wheels")
            if one is not None and one.is_dir()
        ]
        with tempfile.TemporaryDirectory(prefix="ddtop-check-") as folder:
            python = prepare(found[0] if found else None, Path(folder) / "venv")
            command = [str(python), "-m", "tools.gpu.check", *sys.argv[1:]]
            environment = {**os.environ, PREPARED: "1"}
            return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    return _all(options, ends)


def _all(options: argparse.Namespace, ends: float) -> int:
    path = options.log or (
        Path(os.environ["OUT"]) / "gpu-check.log" if "OUT" in os.environ else Path(os.devnull)
    )
    claims: list[str] = []
    room, wanted = CHARACTERS, options.parts or list(PARTS)
    with path.open("w") as log:
        for number, name in enumerate(wanted):
            left = ends - time.monotonic() - 3
            lines = (
                run(name, min(PARTS[name], left), log)
                if left > 15
                else [f"== {name}", f"SKIP {name}: no time left"]
            )
            claims += [line for line in lines if line.startswith(WORDS)]
            text = shown(lines, room // (len(wanted) - number))
            room -= sum(len(line) + 1 for line in text)
            print(*text, sep="\n", flush=True)
    count = {word: sum(1 for line in claims if line.startswith(word)) for word in WORDS}
    print("==", ", ".join(f"{number} {word}" for word, number in count.items()), flush=True)
    return 1 if count["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
