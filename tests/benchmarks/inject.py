"""Can code be put into a running Python without harm? By hand, with a Python and a tool:

    python -m tests.benchmarks.inject --python PYTHON --tool gdb --each 25

Tools: `gdb` (on the PATH), `hypno` and `pyinjector` (installed for PYTHON), and `remote_exec` of
Python 3.14. Each target is a process of its own that computes something whose result is known. A
target is taken if the code has run in it. It is harmed if it dies, if it does not end although it
may, if its result is another one, or if it prints something. A tool that has not returned after 10
seconds is ended and counted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TARGET = Path(__file__).with_name("inject_target.py")
KINDS = (
    "malloc",
    "malloc-c",
    "regcomp",
    "c-gil",
    "c-no-gil",
    "worker",
    "gloo",
    "spin",
    "threads",
    "stopped",
)
START_S, TOOL_S, END_S, TAKEN_S = 180.0, 60.0, 60.0, 3.0
THREAD_C = r"""
#include <pthread.h>
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int);
extern int PyRun_SimpleString(const char *);
static void *work(void *unused) {
    int state = PyGILState_Ensure();
    PyRun_SimpleString(CODE);
    PyGILState_Release(state);
    return unused;
}
__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_detach(thread);
}
"""


@dataclass
class Row:
    """The outcomes of the targets of one kind."""

    tried: int = 0
    taken: int = 0
    late: int = 0
    slowest_s: float = 0.0
    harmed: list[str] = field(default_factory=list)


def inject(tool: str, python: str, pid: int, folder: Path) -> str | None:
    """Let the tool put code into `pid` that creates the file `taken`. Returns what went wrong, or
    None.
    """
    taken = str(folder / "taken")
    if tool == "gdb":
        code = f"open('{taken}', 'w').close()"
        command = ["gdb", "-p", str(pid), "-batch", "-nx"]
        command += ["-ex", "set $state = (int)PyGILState_Ensure()"]
        command += ["-ex", f'call (int)PyRun_SimpleString("{code}")']
        command += ["-ex", "call (void)PyGILState_Release($state)"]
    elif tool == "hypno":
        script = f"import hypno; hypno.inject_py({pid}, \"open('{taken}', 'w').close()\")"
        command = [python, "-c", script]
    elif tool == "pyinjector":
        library = folder / "thread.so"
        source = THREAD_C.replace("CODE", f"\"open('{taken}', 'w').close()\"")
        build = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-lpthread"]
        subprocess.run(build, input=source.encode(), check=True)
        command = [python, "-c", f"import pyinjector; pyinjector.inject({pid}, '{library}')"]
    else:
        file = folder / "code.py"
        file.write_text(f"open({taken!r}, 'w').close()\n")
        command = [python, "-c", f"import sys; sys.remote_exec({pid}, {str(file)!r})"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        _, errors = process.communicate(timeout=TOOL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "the tool hung"
    return None if process.returncode == 0 else errors.decode()[-200:].strip()


def start(kind: str, python: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    """The target, and its other rank where it has one."""
    ranks = 2 if kind == "gloo" else 1
    found = []
    for rank in range(ranks):
        out = (folder / f"out{rank}").open("wb")
        environment = {**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [python, str(TARGET), kind, str(folder)]
        found.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))
    return found


def one(tool: str | None, kind: str, python: str, draw: random.Random, row: Row) -> str | None:
    """One target from start to end; returns what it printed."""
    folder = Path(tempfile.mkdtemp(prefix="ddtop-inject-"))
    processes = start(kind, python, folder)
    try:
        end = time.monotonic() + START_S
        while not (folder / "ready").exists():
            if time.monotonic() > end:
                sys.exit(f"a {kind} target did not start within {START_S:.0f} s")
            time.sleep(0.02)
        pid = int((folder / "pid").read_text()) if kind == "worker" else processes[0].pid
        time.sleep(draw.uniform(0.05, 0.4))
        if kind == "stopped":
            os.kill(pid, signal.SIGSTOP)
        error = None
        if tool is not None:
            row.tried += 1
            began = time.monotonic()
            error = inject(tool, python, pid, folder)
            while not (folder / "taken").exists() and time.monotonic() - began < TAKEN_S:
                time.sleep(0.01)
            if (folder / "taken").exists():
                row.taken += 1
                row.slowest_s = max(row.slowest_s, time.monotonic() - began)
        before = (folder / "taken").exists()
        if kind == "stopped":
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.3)
        (folder / "go").touch()
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(END_S))
            except subprocess.TimeoutExpired:
                codes.append(None)
        row.late += not before and (folder / "taken").exists()
        text = (folder / "out0").read_text(errors="replace").strip()
        if codes != [0] * len(codes):
            row.harmed.append(f"exit {codes}: {error or ''} {text[-200:]}")
        elif error == "the tool hung":
            row.harmed.append(error)
        return text
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Print the table as it grows. A kind ends with its first harmed target, unless --all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tool", choices=("gdb", "hypno", "pyinjector", "remote_exec"))
    parser.add_argument("--each", type=int, default=25)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--all", action="store_true", help="go on after a harmed target")
    arguments = parser.parse_args()
    draw = random.Random(1)
    print("| target | tried | taken | later | slowest | harmed |\n|---|---|---|---|---|---|")
    for kind in arguments.kinds.split(","):
        row = Row()
        expected = one(None, kind, arguments.python, draw, Row())
        for _ in range(arguments.each):
            text = one(arguments.tool, kind, arguments.python, draw, row)
            if text != expected and not row.harmed:
                row.harmed.append(f"printed {text!r}, not {expected!r}")
            if row.harmed and not arguments.all:
                break
        slowest = f"{row.slowest_s:.1f} s" if row.taken else ""
        harmed = "; ".join(row.harmed[:2]).replace("\n", " ")
        counts = f"{row.tried} | {row.taken} | {row.late} | {slowest}"
        print(f"| {kind} | {counts} | {len(row.harmed)} {harmed[:300]} |", flush=True)


if __name__ == "__main__":
    main()
