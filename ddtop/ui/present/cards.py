"""A card in words: its numbers, what holds it back, who is on it."""

from __future__ import annotations

from ddtop.model.devices import Device
from ddtop.wire.gpu import Gpu

from . import units
from .bars import bar
from .glyphs import UNICODE, Glyphs
from .gpus import process_text
from .text import Line, Span, clean, clip_line, ranks_text

THROTTLED = {
    "hw_slowdown": "slowed down by the hardware",
    "hw_thermal": "slowed down by heat",
    "hw_power_brake": "slowed down by the power brake",
    "sw_thermal": "slowed down by heat",
    "sw_power_cap": "at its power cap",
    "sync_boost": "held to the clocks of its neighbours",
    "app_clocks": "held to set clocks",
}
ALARMING = ("hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal")
BAR = 6


def throttle_text(gpu: Gpu) -> str:
    """Why its clocks are held down, each reason once; empty where nothing does."""
    return ", ".join(dict.fromkeys(THROTTLED[word] for word in gpu.throttle or () if word in THROTTLED))


def clocks_text(gpu: Gpu) -> str:
    """`1755 of 1980 MHz`."""
    if gpu.sm_mhz is None:
        return ""
    return f"{gpu.sm_mhz}" + (f" of {gpu.sm_max_mhz}" if gpu.sm_max_mhz else "") + " MHz"


def power_text(gpu: Gpu) -> str:
    """`650 of 700 W`."""
    if gpu.power_watts is None:
        return ""
    return f"{gpu.power_watts:.0f}" + (f" of {gpu.power_cap_watts:.0f}" if gpu.power_cap_watts else "") + " W"


def trouble_text(gpu: Gpu) -> str:
    """Errors that the card or its driver have counted; empty where there are none."""
    parts = []
    if gpu.xids:
        parts.append("Xid " + ", ".join(str(code) for code in dict.fromkeys(one.code for one in gpu.xids)))
    if gpu.ecc_uncorrected:
        parts.append(f"{gpu.ecc_uncorrected:,} uncorrectable memory errors")
    if gpu.remap_failed:
        parts.append("a row of its memory could not be replaced")
    elif gpu.remap_pending:
        parts.append("a row of its memory waits to be replaced: it needs a reset")
    return ", ".join(parts)


def links_text(gpu: Gpu) -> str:
    """`PCIe 5 x16, 18 NVLinks`; of a maximum only where it is not reached."""
    parts = []
    if gpu.pcie_generation is not None and gpu.pcie_width is not None:
        narrow = f" of x{gpu.pcie_width_max}" if gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max else ""
        parts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}{narrow}")
    if gpu.nvlinks is not None:
        down = f" of {gpu.nvlinks_total}" if gpu.nvlinks_total and gpu.nvlinks < gpu.nvlinks_total else ""
        parts.append(f"{gpu.nvlinks}{down} NVLinks")
    return ", ".join(parts)


def card_line(device: Device, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """A card as one row below its host: use, memory, power, heat, its ranks, strangers on it, trouble."""
    gpu = device.gpu
    name = f"  {'MIG' if gpu.parent else 'GPU'} {gpu.index}"
    spans: list[Span] = [(f"{name:<9}", "dim")]
    if gpu.lost:
        spans.append(("lost: it does not answer any more", "critical"))
        return clip_line(tuple(spans), width, glyphs.ellipsis)
    spans += [*_share(gpu.util_ratio, f"{units.percent(gpu.util_ratio):>4}", glyphs), ("  ", "")]
    memory = f"{units.size(gpu.used_bytes)}/{units.size(gpu.total_bytes)}"
    ratio = gpu.used_bytes / gpu.total_bytes if gpu.used_bytes is not None and gpu.total_bytes else None
    spans += [*_share(ratio, f"{memory:>11}", glyphs), ("  ", "")]
    watts = "-" if gpu.power_watts is None else f"{gpu.power_watts:.0f}W"
    celsius = "-" if gpu.celsius is None else f"{gpu.celsius}C"
    spans += [(f"{watts:>5} {celsius:>4}  ", "")]
    spans.append((ranks_words(device), "" if device.ranks else "dim"))
    alarm = [word for word in gpu.throttle or () if word in ALARMING]
    for text, style in (
        (trouble_text(gpu), "critical"),
        (throttle_text(gpu), "warning" if alarm else "dim"),
        ("; ".join(process_text(one) for one in device.foreign), "warning" if device.ranks else "dim"),
    ):
        if text:
            spans += [("  ", ""), (text, style)]
    return clip_line(tuple(spans), width, glyphs.ellipsis)


def ranks_words(device: Device) -> str:
    """`rank 3`, `ranks 0,1`, `no rank`."""
    if not device.ranks:
        return "no rank"
    return f"{'rank' if len(device.ranks) == 1 else 'ranks'} {ranks_text(device.ranks, 4)}"


def name_text(gpu: Gpu) -> str:
    """`GPU 3, NVIDIA H100 80GB HBM3`."""
    return f"{'MIG instance of GPU' if gpu.parent else 'GPU'} {gpu.index}" + (
        f", {clean(gpu.name)}" if gpu.name else ""
    )


def _share(ratio: float | None, text: str, glyphs: Glyphs) -> list[Span]:
    return [(bar(ratio, BAR, glyphs) if ratio is not None else " " * BAR, "bar"), (f" {text}", "")]
