"""The parts about GPUs: ddtop's values compared with nvidia-smi's, what reading them costs, and
`ddtop gpus`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version

from ddtop.relay.gpus.nvml import Nvml, library
from ddtop.wire.records import Gpu
from tools.gpu.check import hooked
from tools.gpu.stage import GIB, claim, program, say, see, smi, smi_cards, smi_processes

MIB = 1 << 20


def machine() -> None:
    """The machine and versions of the measurements."""
    import torch

    nvml = Nvml(library())
    cards = nvml.sample()
    see(
        "machine",
        f"{platform.release()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, uid"
        f" {os.getuid()}, Python {platform.python_version()}",
    )
    has_cuda = torch.cuda.is_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_cuda else None
    see(
        "torch",
        f"{torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}, nvidia-ml-py"
        f" {version('nvidia-ml-py')}",
    )
    see(
        "cards", f"driver {nvml.driver}; {', '.join(f'{card.index} {card.name}' for card in cards)}"
    )
    claim("torch has CUDA here", has_cuda, torch.cuda.device_count())
    claim("the hook runs in a Python that is started with DDTOP=1", hooked(), sys.executable)


# Field of Gpu -> (field of nvidia-smi, allowed relative difference, allowed absolute difference)
_FIELDS: dict[str, tuple[str, float, float]] = {
    "uuid": ("uuid", 0, 0),
    "name": ("name", 0, 0),
    "used_bytes": ("memory.used", 0.02, 64),
    "total_bytes": ("memory.total", 0, 1),
    "util_ratio": ("utilization.gpu", 0, 10),
    "power_watts": ("power.draw", 0.15, 15),
    "power_cap_watts": ("enforced.power.limit", 0, 1),
    "celsius": ("temperature.gpu", 0, 3),
    "sm_mhz": ("clocks.current.sm", 0.1, 100),
    "sm_max_mhz": ("clocks.max.sm", 0, 0),
    "pcie_generation": ("pcie.link.gen.current", 0, 0),
    "pcie_width": ("pcie.link.width.current", 0, 0),
    "pcie_width_max": ("pcie.link.width.max", 0, 0),
    "ecc_uncorrected": ("ecc.errors.uncorrected.volatile.total", 0, 0),
}
_SCALE = {"used_bytes": 1 / MIB, "total_bytes": 1 / MIB, "util_ratio": 100.0}


def cards() -> None:
    """NVML through ddtop beside nvidia-smi: idle, then with a program that holds 4 GiB and
    computes.
    """
    _compare("idle")
    with program("hold.py", 4, "burn") as (pid, line):
        say("a program computes:", pid, line)
        time.sleep(3)
        _compare("computing")
        ours, theirs = Nvml(library()).sample(), smi_processes()
        listed = {one.pid: one.used_bytes for card in ours for one in card.processes or ()}
        same = set(listed) == set(theirs) and all(
            used is None or theirs[one] is None or abs(used / MIB - (theirs[one] or 0)) <= 2
            for one, used in listed.items()
        )
        claim(
            "processes as in nvidia-smi",
            same,
            f"ddtop {[(one, (used or 0) // MIB) for one, used in listed.items()]}, nvidia-smi {theirs}",  # noqa: E501
        )
        see(
            "its pid is listed as it is here (no other pid namespace)",
            f"{pid in listed}; processes told: {ours[0].processes is not None}",
        )
        busy = ours[0]
        claim(
            "a busy card is busy",
            (busy.util_ratio or 0) > 0.8,
            f"{busy.util_ratio}, {busy.power_watts} W, {busy.sm_mhz} MHz, {busy.throttle}",
        )
    links = [
        line
        for line in smi("nvlink", "-s", "-i", "0").splitlines()
        if line.strip().startswith("Link ")
    ]
    active = sum(1 for line in links if "GB/s" in line)
    claim(
        "NVLinks as in nvidia-smi",
        (busy.nvlinks or 0) == active,
        f"ddtop {busy.nvlinks} of {busy.nvlinks_total}, nvidia-smi {active} of {len(links)}",
    )
    rows = smi(
        "--query-remapped-rows=remapped_rows.pending,remapped_rows.failure",
        "--format=csv,noheader",
    )
    see(
        "remapped rows",
        f"ddtop {busy.remap_pending}, {busy.remap_failed}; nvidia-smi {rows.strip()!r}",
    )
    see("not told", [name for name in Gpu.__struct_fields__ if getattr(busy, name) is None])
    say(busy)


def _compare(when: str) -> None:
    before = smi_cards(["index", *(field for field, _, _ in _FIELDS.values())])
    ours = [card for card in Nvml(library()).sample() if card.parent is None]
    claim(
        f"{when}: as many cards as nvidia-smi has",
        len(ours) == len(before),
        f"{len(ours)} and {len(before)}",
    )
    for card, told in zip(ours, before, strict=False):
        differing, compared = [], 0
        for name, (field, part, least) in _FIELDS.items():
            text, value = told.get(field), getattr(card, name)
            if text is None:
                continue
            compared += 1
            if value is None or not text[:1].isalnum():
                fits = value is None and not text[:1].isalnum()
            elif isinstance(value, str):
                fits = value == text
            else:
                value = value * _SCALE.get(name, 1)
                fits = abs(value - float(text)) <= max(least, part * abs(float(text)))
            if not fits:
                differing.append(f"{name} {value} against {text}")
        claim(
            f"{when}: card {card.index} as in nvidia-smi",
            not differing,
            "; ".join(differing) or f"{compared} fields",
        )


def costs() -> None:
    """What NVML's calls cost: each by itself, and a second of sampling."""
    nv = library()
    nvml = Nvml(nv)
    count = len(nvml.sample())
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    found = []
    for name, *more in (
        ("nvmlDeviceGetUtilizationRates",),
        ("nvmlDeviceGetMemoryInfo", nv.nvmlMemory_v2),
        ("nvmlDeviceGetPowerUsage",),
        ("nvmlDeviceGetTemperature", 0),
        ("nvmlDeviceGetClockInfo", 1),
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        ("nvmlDeviceGetComputeRunningProcesses",),
        ("nvmlDeviceGetGraphicsRunningProcesses",),
        ("nvmlDeviceGetRemappedRows",),
        ("nvmlDeviceGetTotalEccErrors", 1, 0),
        ("nvmlDeviceGetNvLinkState", 0),
        ("nvmlDeviceGetPciInfo",),
    ):
        spent = []
        for _ in range(30):
            began = time.perf_counter()
            try:
                getattr(nv, name)(handle, *more)
            except nv.NVMLError as error:
                found.append(f"{name.removeprefix('nvmlDeviceGet')}: {error}")
                break
            spent.append((time.perf_counter() - began) * 1e6)
        else:
            found.append(
                f"{name.removeprefix('nvmlDeviceGet')}"
                f" {statistics.median(spent):.0f}/{max(spent):.0f}"
            )
    for group in (found[:6], found[6:]):
        see("calls, us, median/most", ", ".join(group))
    began, cpu = time.perf_counter(), time.process_time()
    for second in range(90):
        nvml.sample(100.0 + second)
    wall, cpu = (time.perf_counter() - began) / 90 * 1000, (time.process_time() - cpu) / 90 * 1000
    claim(
        "sampling costs at most 1 % of a core for 8 cards",
        cpu / 10 / count * 8 <= 1,
        f"{cpu:.2f} ms of CPU a second for {count}, so {cpu / 10 / count * 8:.3f} % for 8; {wall:.2f} ms of time",  # noqa: E501
    )
    began = time.perf_counter()
    Nvml(nv)
    see("a second nvmlInit", f"{(time.perf_counter() - began) * 1000:.1f} ms")


def command() -> None:
    """`ddtop gpus` on a GPU that is in use and on one that is free."""
    text = _gpus()
    for line in text.stdout.splitlines():
        say(line)
    took = time.perf_counter()
    said = json.loads(_gpus("--json").stdout)
    claim(
        "gpus --json has the cards",
        said["schema"] == "ddtop.gpus/1" and len(said["gpus"]) == len(smi_cards(["index", "uuid"])),
        f"{time.perf_counter() - took:.2f} s",
    )
    free = said["gpus"][0]["free"]
    total = (said["gpus"][0]["total_bytes"] or 0) / GIB
    with program("hold.py", total / 2) as (pid, _):
        busy = _gpus("--json")
        card = json.loads(busy.stdout)["gpus"][0]
        claim(
            "a card that is half full is not free",
            free and not card["free"],
            f"before {free}, {(card['free_bytes'] or 0) // MIB} MiB free, exit code"
            f" {busy.returncode}",
        )
        see("who holds it", f"{card['processes']}; its pid here is {pid}")
        claim(
            "exit code 1 where none is free",
            busy.returncode == (1 if len(said["gpus"]) == 1 else 0),
            busy.returncode,
        )


def _gpus(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddtop", "gpus", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def allocator() -> None:
    """What a read of torch's allocator costs in a rank."""
    import torch

    from ddtop.agent.probes.cuda import EVERY_NS, Cuda

    cuda = Cuda(None)
    cuda.look(EVERY_NS, ("line", 0), False, 0)
    claim(
        "nothing is read before CUDA is up, and reading does not bring it up",
        cuda.state is None and not torch.cuda.is_initialized(),
        cuda.state,
    )
    torch.ones(1 << 28, device="cuda")
    spent = []
    for number in range(2, 60):
        began = time.perf_counter()
        cuda.look(number * EVERY_NS, ("line", number), False, 0)
        spent.append((time.perf_counter() - began) * 1e6)
    state = cuda.state
    say(state)
    card = next(
        (
            one
            for one in Nvml(library()).sample()
            if state is not None and one.uuid.endswith(state.uuid or "?")
        ),
        None,
    )
    claim("torch's uuid is NVML's", card is not None, state.uuid if state is not None else None)
    claim(
        "and so is its PCI address",
        card is not None and state is not None and card.pci == state.pci,
        f"{state.pci if state else None}, {card.pci if card else None}",
    )
    claim(
        "reserved as torch has it",
        state is not None and state.reserved_bytes == torch.cuda.memory_reserved(0),
        torch.cuda.memory_reserved(0),
    )
    see(
        "a read of the allocator",
        f"first {spent[0]:.0f} us, then {statistics.median(spent[1:]):.0f} us",
    )
