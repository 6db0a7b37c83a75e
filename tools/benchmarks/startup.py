"""What the start-up line costs every Python of the environment, and what it costs a rank.

With DDTOP unset: two virtual environments that differ only in ddtop.pth start `python -c pass` in
turn; the median of the paired differences. In a rank: the line's work is done by hand in a fresh
process (DDTOP unset at its start, set before the import), so that the time from the line's begin to
the end of `become_rank` can be taken on the main thread.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import ddtop
from ddtop.wire.records import RankState
from tools.benchmarks.stage import HERE, Stage, history
from tools.benchmarks.table import Row, limited, spread

UNSET_BAR_MS, START_BAR_S, MEMORY_BAR_MIB = 1.0, 0.1, 15.0
LINE = Path(ddtop.__file__).parent / "agent" / "ddtop.pth"
HEAVY = ("zmq", "msgspec", "ddtop", "psutil", "asyncio")


def unset(starts: int) -> Iterator[Row]:
    """The cost where DDTOP is not set."""
    with tempfile.TemporaryDirectory(prefix="ddb-") as folder:
        without, having = (_environment(Path(folder) / name) for name in ("without", "having"))
        site = subprocess.check_output(
            [having, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
        )
        Path(site.decode().strip(), LINE.name).write_bytes(LINE.read_bytes())
        for python in (without, having):
            _start(python)
        walls, cpus = [], []
        for index in range(starts):
            order = (without, having) if index % 2 else (having, without)
            found = {python: _start(python) for python in order}
            walls.append(found[having][0] - found[without][0])
            cpus.append(found[having][1] - found[without][1])
        loaded = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
        imported = subprocess.check_output([having, "-c", loaded], env=_plain()).decode().strip()
    detail = (
        f"median of {starts} pairs of starts; CPU {statistics.median(cpus):+.3f} ms; "
        f"the line alone {_line_us():.1f} us; of {', '.join(HEAVY)} it imports {imported}"
    )
    yield limited(
        "python -c pass, DDTOP unset, on - off",
        statistics.median(walls),
        UNSET_BAR_MS,
        "ms",
        detail,
    )


def _environment(path: Path) -> str:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(path)
    return str(path / "bin" / "python")


def _plain() -> dict[str, str]:
    dropped = ("DDTOP", "PYTHON", "COVERAGE")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _start(python: str) -> tuple[float, float]:
    """(wall, CPU) in ms of one start."""
    began = time.perf_counter()
    pid = os.posix_spawn(python, [python, "-c", "pass"], _plain())
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    if status:
        raise RuntimeError(f"{python} -c pass ended with status {status}")
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def _line_us() -> float:
    # `site` does the same with a line that begins with "import": it execs the text.
    text, times = LINE.read_text().strip(), []
    for _ in range(200):
        began = time.perf_counter()
        exec(text, {})
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def in_a_rank(starts: int) -> Iterator[Row]:
    """Main thread: from the beginning of the line to the end of `become_rank`. Agent's thread: up
    to its first report.
    """
    mains, cpus, agents = [], [], []
    for _ in range(starts):
        with Stage("start") as stage:
            variables = stage.environment(False, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
            stage.start([sys.executable, str(HERE / "one_start.py")], variables, stage.output(0))
            said = stage.wait_for("start", lambda stage=stage: stage.said(0))[-1]
            mains.append(said["wall_s"])
            cpus.append(said["cpu_s"])
            entry = stage.entry(1)
            agents.append(stage.wait_for("report", lambda entry=entry: _first_cpu_s(entry)))
    detail = (
        f"median of {starts}, longest {max(mains):.3f} s; CPU of the main thread"
        f" {statistics.median(cpus):.3f} s"
    )
    yield limited("agent start, main thread", statistics.median(mains), START_BAR_S, "s", detail)
    yield Row("agent thread, CPU until its first report", f"{statistics.median(agents):.3f} s")


def _first_cpu_s(entry: object) -> float:
    reports = [record for _, record in history(entry, 600.0) if isinstance(record, RankState)]  # type: ignore[arg-type]
    return reports[0].agent_cpu_ns / 1e9 if reports else 0.0


def memory(pairs: int) -> Iterator[Row]:
    """Memory of a rank after some steps, watched and not."""
    from tools.benchmarks.stage import WORKLOAD

    differences: dict[str, list[float]] = {"private_kib": [], "pss_kib": [], "rss_kib": []}
    base = 0.0
    for index in range(pairs):
        found: dict[bool, dict[str, float]] = {}
        for watched in (False, True) if index % 2 else (True, False):
            with Stage("memory") as stage:
                stage.ranks(WORKLOAD, 2, watched, "--steps", "150")
                stage.wait(120)
                found[watched] = stage.said(1)[-1]
        base = found[False]["private_kib"] / 1024
        for name, values in differences.items():
            values.append((found[True][name] - found[False][name]) / 1024)
    median = {name: statistics.median(values) for name, values in differences.items()}
    detail = (
        f"private, of {base:.0f} MiB: {spread(differences['private_kib'], 'MiB', 1)}\n"
        f"with shared library pages: RSS {median['rss_kib']:+.1f} MiB, PSS"
        f" {median['pss_kib']:+.1f} MiB"
    )
    yield limited(
        "agent memory, private, on - off",
        median["private_kib"],
        MEMORY_BAR_MIB,
        "MiB",
        detail,
        digits=1,
    )
