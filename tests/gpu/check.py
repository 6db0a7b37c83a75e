"""Everything about GPUs that doubles cannot tell, by one command on a machine with an NVIDIA GPU: `python -m tests.gpu.check`.

Each part prints what it saw, and goes on where another failed; the output belongs into the note of whoever ran it. Without a
driver it says so and ends with 3. Needs ddtop installed in this Python (its hook), and torch with CUDA for most parts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ddtop.relay.nvml import NO_DRIVER, Nvml, NvmlError, driver_is_there, library
from ddtop.relay.ras import ADDRESS, ask

PROGRAMS = Path(__file__).parent / "programs"
GIB = 1 << 30


def say(*words: object) -> None:
    print("   ", *words, flush=True)


def smi(what: str) -> list[list[str]]:
    """What nvidia-smi says of all cards."""
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]


class Job:
    """A watched job under torchrun, with folders of its own."""

    def __init__(self, name: str, ranks: int, program: str, *words: object, watched: bool = True) -> None:
        self.name, self._folder = name, tempfile.mkdtemp(prefix="ddt-")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("DDTOP")} | {
            "DDTOP_STATE": f"{self._folder}/state", "DDTOP_RUNTIME": f"{self._folder}/run", "DDTOP_JOB": name,
            "DDTOP_QUIET": "1", "DDTOP_LINGER_S": "5", **({"DDTOP": "1"} if watched else {}),
        }  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        self._process = subprocess.Popen(
            [*command, str(PROGRAMS / program), *map(str, words)],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def ddtop(self, *words: str) -> Any:
        """The JSON of one command about this job."""
        done = subprocess.run(
            [sys.executable, "-m", "ddtop", *words, "--json"],
            env=self.environment, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        return json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr.strip()}

    def until(self, kind: str, seconds: float) -> dict[str, Any] | None:
        """The finding of that kind, as soon as it is there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for finding in self.ddtop("diagnose", self.name, "--for", "1").get("findings", []):
                if finding["kind"] == kind:
                    return dict(finding)
            time.sleep(0.5)
        return None

    def output(self, seconds: float = 120) -> str:
        """All that it printed, when it has ended."""
        try:
            return self._process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[0]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        if self._process.poll() is None:
            self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def job(name: str, ranks: int, program: str, *words: object, watched: bool = True) -> Iterator[Job]:
    one = Job(name, ranks, program, *words, watched=watched)
    try:
        yield one
    finally:
        one.close()


def cards() -> None:
    """NVML through ddtop beside nvidia-smi, and what a sample costs."""
    nvml = Nvml(library())
    for card, told in zip(
        nvml.sample(), smi("index,uuid,memory.used,memory.total,power.draw,temperature.gpu"), strict=False
    ):
        say(f"GPU {card.index} {card.name} driver {nvml.driver}")
        say(
            f"  ddtop:      {card.uuid} {(card.used_bytes or 0) >> 20} MiB of {(card.total_bytes or 0) >> 20}, {card.power_watts} W, {card.celsius} C"
        )
        say("  nvidia-smi:", *told)
        say(
            "  not told:",
            ", ".join(name for name in card.__struct_fields__ if getattr(card, name) is None) or "nothing",
        )
        say("  whole:", card)


def costs() -> None:
    """What NVML's calls cost: each by itself, and a second of sampling."""
    nv = library()
    nvml = Nvml(nv)
    (handle, *_) = nvml.handles()
    for name, more in (
        ("nvmlDeviceGetUtilizationRates", ()), ("nvmlDeviceGetMemoryInfo", ()), ("nvmlDeviceGetPowerUsage", ()),
        ("nvmlDeviceGetTemperature", (0,)), ("nvmlDeviceGetClockInfo", (1,)),
        ("nvmlDeviceGetCurrentClocksEventReasons", ()), ("nvmlDeviceGetComputeRunningProcesses", ()),
        ("nvmlDeviceGetRemappedRows", ()), ("nvmlDeviceGetTotalEccErrors", (1, 0)), ("nvmlDeviceGetNvLinkState", (0,)),
    ):  # fmt: skip
        spent = []
        for _ in range(30):
            began = time.perf_counter()
            try:
                getattr(nv, name)(handle, *more)
            except nv.NVMLError as error:
                say(f"{name}: {error}")
                break
            spent.append((time.perf_counter() - began) * 1e6)
        if spent:
            say(f"{name:<44} {statistics.median(spent):8.0f} us, at most {max(spent):.0f}")
    began, cpu = time.perf_counter(), time.process_time()
    for second in range(30):
        nvml.sample(float(second))
    count = len(nvml.handles())
    say(f"30 seconds' samples of {count} cards: {(time.perf_counter() - began) / 30 * 1000:.2f} ms each, "
        f"CPU {(time.process_time() - cpu) / 30 * 100:.3f} % of a core; for 8 cards about {(time.process_time() - cpu) / 30 * 800 / max(count, 1):.3f} %")  # fmt: skip


def gpus_command() -> None:
    """`ddtop gpus`."""
    done = subprocess.run(
        [sys.executable, "-m", "ddtop", "gpus"], capture_output=True, text=True, timeout=60, check=False
    )
    say(f"exit code {done.returncode}")
    for line in (done.stdout + done.stderr).splitlines():
        say(line)


def training() -> None:
    """A training whose numbers agree with nvidia-smi; NCCL with one rank, and its status service."""
    with job("gpu-train", 1, "train.py", "nccl", 25, "local", 2) as one:
        time.sleep(15)
        said = one.ddtop("status", "gpu-train")
        say("ddtop:", json.dumps(said.get("ranks", [said])[0].get("gpu", said)))
        say("NCCL word:", said.get("ranks", [{}])[0].get("nccl"))
        say("nvidia-smi:", smi("utilization.gpu,memory.used,memory.total,clocks.sm,power.draw"))
        began = time.monotonic()
        answer = ask(ADDRESS)
        say(f"RAS took {(time.monotonic() - began) * 1000:.0f} ms:", answer)
        say("findings:", [finding["kind"] for finding in one.ddtop("diagnose", "gpu-train").get("findings", [])])
        say(one.output().strip().splitlines()[-1:])


def busy() -> None:
    """A second process fills the card: gpu-busy with its pid."""
    total = (Nvml(library()).sample()[0].total_bytes or 0) / GIB
    holder = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "hold.py"), str(total * 0.5)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        say("holder", holder.pid, holder.stdout.readline().strip())
        with job("gpu-busy", 1, "train.py", "gloo", 60, "0", 0) as one:
            say("found:", one.until("gpu-busy", 45))
    finally:
        if holder.stdin is not None:
            holder.stdin.close()
        holder.wait(30)


def out_of_memory() -> None:
    """An allocation that fails."""
    with job("gpu-oom", 1, "too_much.py") as one:
        one.output(90)
        time.sleep(1)
        say("found:", one.ddtop("diagnose", "gpu-oom").get("findings"))


def shared() -> None:
    """Two ranks on one card with gloo: gpu-shared. With NCCL: refused."""
    with job("gpu-shared", 2, "train.py", "gloo", 60, "0", 0) as one:
        say("found:", one.until("gpu-shared", 45))
    with job("gpu-twice", 2, "train.py", "nccl", 20, "0", 0) as one:
        one.output(90)
        say("NCCL:", one.ddtop("diagnose", "gpu-twice").get("findings"))


def step_cost() -> None:
    """The step with the agent and without, in turn."""
    pairs = []
    for _ in range(4):
        spent = {}
        for watched in (False, True):
            with job("gpu-cost", 1, "train.py", "nccl", 12, "local", 0, watched=watched) as one:
                text = one.output()
            words = text.split()
            spent[watched] = float(words[words.index("STEP_MS") + 1]) if "STEP_MS" in words else float("nan")
        pairs.append((spent[False], spent[True]))
        say(
            f"without {spent[False]:.3f} ms, with {spent[True]:.3f} ms: {(spent[True] / spent[False] - 1) * 100:+.2f} %"
        )
    say(
        f"median {statistics.median((on / off - 1) * 100 for off, on in pairs):+.2f} % of a step of {statistics.median(off for off, _ in pairs):.2f} ms"
    )


def allocator() -> None:
    """What a read of torch's allocator costs in a rank."""
    import torch

    from ddtop.agent.cuda import EVERY_NS, Cuda

    torch.ones(1, device="cuda")
    cuda, spent = Cuda(), []
    for number in range(50):
        began = time.perf_counter()
        cuda.sample(number * EVERY_NS, ("line", number), False, 0)
        spent.append((time.perf_counter() - began) * 1e6)
    say(f"first {spent[0]:.0f} us, then {statistics.median(spent[1:]):.0f} us:", cuda.state)


PARTS: tuple[Callable[[], None], ...] = (
    cards, costs, gpus_command, allocator, training, busy, out_of_memory, shared, step_cost,
)  # fmt: skip


def main() -> int:
    """Run all parts, or those named on the command line."""
    if not driver_is_there():
        say(f"{NO_DRIVER}: nothing to check here")
        return 3
    wanted = sys.argv[1:]
    failed = 0
    for part in PARTS:
        if wanted and part.__name__ not in wanted:
            continue
        print(f"== {part.__name__}: {part.__doc__}", flush=True)
        try:
            part()
        except (Exception, NvmlError):  # noqa: BLE001 - the next part may still tell something
            failed += 1
            traceback.print_exc(file=sys.stdout)
    print(f"== {failed} of {len(wanted) or len(PARTS)} parts failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
