"""How long a scrape of `ddtop exporter` takes, of one job of 10,000 ranks and of 200 jobs, and what
following them costs.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator

from tools.benchmarks.procfs import memory_mib
from tools.benchmarks.stage import Stage
from tools.benchmarks.table import Row, limited

SCRAPE_BAR_MS, SERIES_BAR, CPU_BAR = 50.0, 60.0, 0.5
RANKS, JOBS, RANKS_EACH = 10_000, 200, 4
SETTLE_S, PAUSE_S = 15.0, 0.5


def measure(scrapes: int) -> Iterator[Row]:
    """Rows for both."""
    one = ["tools.benchmarks.sim_relay", str(RANKS), "hang"]
    yield from _one(f"1 job of {RANKS:,} ranks", one, 1, scrapes, SCRAPE_BAR_MS)
    many = ["tools.benchmarks.sim_fleet", str(JOBS), str(RANKS_EACH)]
    yield from _one(f"{JOBS} jobs of {RANKS_EACH} ranks", many, JOBS, scrapes, None)


def _one(
    what: str, played: list[str], jobs: int, scrapes: int, bar_ms: float | None
) -> Iterator[Row]:
    with Stage("exporter") as stage:
        environment = stage.environment(False, PYTHONPATH=os.getcwd())
        stage.start([sys.executable, "-m", *played], environment, stage.output(0))
        stage.wait_for("simulated relay", lambda: "ready" in stage.output(0).read_text())
        command = [sys.executable, "-m", "ddtop", "exporter", "--listen", "127.0.0.1:0"]
        exporter = stage.start(command, environment, stage.output(1))
        stage.wait_for("exporter", lambda: "serving" in stage.output(1).read_text())
        url = stage.output(1).read_text().split()[-1]
        time.sleep(SETTLE_S)
        before, began = _cpu_s(exporter.pid), time.monotonic()
        took, text = [], ""
        for _ in range(scrapes):
            time.sleep(PAUSE_S)
            asked = time.monotonic()
            with urllib.request.urlopen(url, timeout=30) as answer:
                text = answer.read().decode()
            took.append(1000 * (time.monotonic() - asked))
        cores = (_cpu_s(exporter.pid) - before) / (time.monotonic() - began)
        memory = memory_mib(exporter.pid)["rss"]
    series = sum('job="' in line for line in text.splitlines() if not line.startswith("#"))
    took.sort()
    p95 = took[max(0, int(len(took) * 0.95) - 1)]
    detail = f"p95 {p95:.0f} ms, longest {took[-1]:.0f} ms of {scrapes}; {series} series"
    median = statistics.median(took)
    if bar_ms is not None:
        yield limited(f"{what}: a scrape, median", median, bar_ms, "ms", detail, digits=0)
    else:
        yield Row(f"{what}: a scrape, median", f"{median:.0f} ms", detail=detail)
    yield limited(f"{what}: series a job", series / jobs, SERIES_BAR, "", digits=0)
    lines = [line for line in text.splitlines() if line.startswith("ddtop_look_age_seconds{")]
    ages = [float(line.rpartition(" ")[2]) for line in lines]
    detail = f"{memory:.0f} MiB; the oldest look is {max(ages, default=0.0):.1f} s old"
    yield limited(f"{what}: exporter CPU", cores, CPU_BAR, "cores", detail, digits=2)


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
