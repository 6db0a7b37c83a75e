"""What the relay's watch of GPUs costs a host of eight GPUs: our own Python and pynvml's, over a
double of the driver's library.

The time that the driver itself takes comes on top, and only a machine with GPUs can tell it
(`python -m tools.gpu.check`).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from ddtop.relay.gpus.nvml import Nvml
from ddtop.relay.gpus.reader import GpuReader
from tests.nvml import GIB, FakeCard
from tests.nvml_library import Library, loaded
from tools.benchmarks.table import Row, limited, missing

CPU_BAR_PERCENT, OWN_BAR_PERCENT = 1.0, 0.3
GPUS, PROCESSES = 8, 8


def measure(samples: int) -> Iterator[Row]:
    """Take this many samples in a row, with a clock that shows one second more each time."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        for _ in range(PROCESSES)
    ]
    try:
        pids = [child.pid for child in children]
        library = Library(
            *(
                FakeCard(
                    uuid=f"GPU-{number}0000000-0000-0000-0000-000000000000",
                    bus=f"00000000:{number:02X}:00.0",
                    processes=dict.fromkeys(pids, GIB),
                )
                for number in range(GPUS)
            )
        )
        yield from _sampled(library, samples, {pid: rank for rank, pid in enumerate(pids)})
    finally:
        for child in children:
            child.communicate()


def _sampled(library: Library, samples: int, owners: dict[int, int | None]) -> Iterator[Row]:
    with loaded(library) as nv:
        nvml, gpus = Nvml(nv), GpuReader(())
        gpus._owners = owners
        spent = []
        for second in range(samples):
            began = time.process_time_ns()
            found = tuple(gpus._describe(number) for number in nvml.sample(float(second)))
            spent.append((time.process_time_ns() - began) / 1e6)
    assert [one.rank for one in found[0].processes or ()] == list(owners.values())
    mean = statistics.fmean(spent)
    detail = (
        f"{samples} samples of {GPUS} GPUs with {PROCESSES} processes each: mean {mean:.2f} ms a"
        f" second, median {statistics.median(spent):.2f}, longest {max(spent):.2f};"
        f" {sum(library.calls.values()) / samples:.0f} calls a second\nthe driver's own time is not"
        " in it, that of the double's answers in Python is"
    )
    yield limited(
        "GPUs: CPU of the relay's watch, 8 GPUs", mean / 10, OWN_BAR_PERCENT, "% of a core", detail
    )
    text = "needs a machine with GPUs: python -m tools.gpu.check costs"
    yield missing(
        "GPUs: the same with the driver's time", text, f"<= {CPU_BAR_PERCENT:g} % of a core"
    )
