"""A GPU as text: its numbers, what throttles it, which processes use it."""

from __future__ import annotations

from ddtop.diagnosis.gpus import strangers
from ddtop.model.state.facts import Snapshot
from ddtop.model.state.gpu_facts import Device
from ddtop.policy import Policy
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.gpus.gpu_list import process_text
from ddtop.present.table.bars import bar, hollow
from ddtop.present.table.columns import WAITS
from ddtop.present.text import ELLIPSIS, Line, Span, cell_width, clean, clip, clip_line
from ddtop.wire.gpu import AMD, Gpu, GpuWatch
from ddtop.words import units
from ddtop.words.ranks import rank_list

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
CAUSES = ("hw_thermal", "hw_power_brake")
BAR, RANKS = 6, 10
BARS_FROM = 100
"""Narrower rows have no memory bar, to leave room for problems."""
PLAIN = BAR + 1 + 4 + 2 + 11 + 2 + 5 + 1 + 4
BARRED = PLAIN + BAR + 1


def throttle_text(gpu: Gpu) -> str:
    """Why its clocks are lowered, each reason once; empty if they are not."""
    words = [word for word in gpu.throttle or () if word in THROTTLED]
    if len(words) > 1 and not set(words).isdisjoint(CAUSES):
        # The driver sets it together with the reason.
        words = [word for word in words if word != "hw_slowdown"]
    return ", ".join(dict.fromkeys(THROTTLED[word] for word in words))


def clocks_text(gpu: Gpu) -> str:
    """`1755 of 1980 MHz`."""
    if gpu.sm_mhz is None:
        return ""
    return f"{gpu.sm_mhz}" + (f" of {gpu.sm_max_mhz}" if gpu.sm_max_mhz else "") + " MHz"


def power_text(gpu: Gpu, mean_watts: float | None = None) -> str:
    """`650 of 700 W`; of the last second, or of that mean."""
    watts = gpu.power_watts if mean_watts is None else mean_watts
    if watts is None:
        return ""
    return f"{watts:.0f}" + (f" of {gpu.power_cap_watts:.0f}" if gpu.power_cap_watts else "") + " W"


def trouble_text(gpu: Gpu) -> str:
    """Errors that the GPU or its driver has counted; empty if there are none."""
    parts = []
    if gpu.xids:
        parts.append(
            "Xid " + ", ".join(str(code) for code in dict.fromkeys(one.code for one in gpu.xids))
        )
    if gpu.ecc_uncorrected:
        parts.append(f"{gpu.ecc_uncorrected:,} uncorrectable memory errors")
    if gpu.remap_failed:
        parts.append("a row of its memory could not be replaced")
    elif gpu.remap_pending:
        parts.append("a row of its memory waits to be replaced: it needs a reset")
    return ", ".join(parts)


def links_text(gpu: Gpu) -> str:
    """`PCIe 5 x16, 18 NVLinks`; with the maximum only if it is not reached."""
    parts = []
    if gpu.pcie_generation is not None and gpu.pcie_width is not None:
        narrow = (
            f" of x{gpu.pcie_width_max}"
            if gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max
            else ""
        )
        parts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}{narrow}")
    if gpu.nvlinks is not None:
        down = (
            f" of {gpu.nvlinks_total}"
            if gpu.nvlinks_total and gpu.nvlinks < gpu.nvlinks_total
            else ""
        )
        parts.append(f"{gpu.nvlinks}{down} {'XGMI links' if gpu.vendor == AMD else 'NVLinks'}")
    return ", ".join(parts)


def trouble_of(device: Device, time_unix_ns: int, policy: Policy) -> str:
    """The style for a GPU with a problem: "critical" or "warning"; empty without a problem."""
    gpu = device.gpu
    if gpu.lost or gpu.xids or device.ecc_new or gpu.remap_failed:
        return "critical"
    since = device.throttled_since_unix_ns
    if (
        since is not None
        and time_unix_ns - since >= policy.gpu_throttled_s * units.SECOND_NS
        and alarming(gpu)
    ):
        return "warning"
    if device.refused_lately >= policy.gpu_refused_shown or len(device.ranks) > 1:
        return "warning"
    return "warning" if device.ranks and device.foreign and strangers(device, policy) else ""


def alarming(gpu: Gpu) -> bool:
    """Whether heat, power or the hardware lowers its clocks."""
    return any(word in ALARMING for word in gpu.throttle or ())


def driver_text(watch: GpuWatch | None, policy: Policy) -> str:
    """`driver silent 40s`, `driver fails`; empty while it answers."""
    if watch is None:
        return ""
    if watch.why is not None:
        return "driver fails"
    silent_s = (watch.age_ms or 0) / 1000
    return f"driver silent {units.age(silent_s)}" if silent_s > policy.gpu_silent_s else ""


def gpu_line(
    device: Device,
    width: int,
    glyphs: Glyphs = UNICODE,
    waits: bool = False,
    part: int | None = None,
) -> Line:
    """A GPU as one row below its host: utilisation, memory, power, temperature, its ranks,
    problems, processes outside the job.

    `waits`: it is busy only with waiting in NCCL. `part`: the number of the MIG instance on its
    GPU, from 0.
    """
    gpu = device.gpu
    name = f"  GPU {gpu.index}" if part is None else f"    MIG {gpu.index}.{part}"
    bars = width >= BARS_FROM
    spans: list[Span] = [
        (f"{name:<10}", "dim"),
        *(_lost(bars) if gpu.lost else _numbers(gpu, glyphs, waits, bars)),
    ]
    spans += [(f"  {ranks_words(device):<{RANKS}}", "" if device.ranks else "dim")]
    room = width - sum(len(text) for text, _ in spans)
    for text, style in (
        (trouble_text(gpu), "critical"),
        (throttle_text(gpu), "warning" if alarming(gpu) else "dim"),
        (refused_text(device), "warning"),
        (
            "; ".join(process_text(one) for one in device.foreign),
            "warning" if device.ranks else "dim",
        ),
    ):
        shown = clip_words(text, room - 2, glyphs.ellipsis) if text else ""
        if shown:
            spans += [("  ", ""), (shown, style)]
            room -= cell_width(shown) + 2
    return clip_line(tuple(spans), width, glyphs.ellipsis)


def _lost(bars: bool) -> list[Span]:
    return [(f"{'lost: it no longer answers':<{BARRED if bars else PLAIN}}", "critical")]


def _numbers(gpu: Gpu, glyphs: Glyphs, waits: bool, bars: bool) -> list[Span]:
    share = WAITS if waits else units.percent(gpu.util_ratio)
    memory = f"{units.size(gpu.used_bytes)}/{units.size(gpu.total_bytes)}"
    ratio = (
        gpu.used_bytes / gpu.total_bytes if gpu.used_bytes is not None and gpu.total_bytes else None
    )
    watts = "-" if gpu.power_watts is None else f"{gpu.power_watts:.0f}W"
    celsius = "-" if gpu.celsius is None else f"{gpu.celsius}C"
    drawn: Span = (_bar(gpu.util_ratio, glyphs), "bar")
    if waits:
        drawn = (hollow(gpu.util_ratio or 0.0, BAR, glyphs), "dim")
    # A silent driver or a MIG instance reports no memory: the cell is dimmed.
    rest: Span = (f"{memory:>11}  {watts:>5} {celsius:>4}", "dim" if gpu.used_bytes is None else "")
    spans: list[Span] = [
        drawn,
        (f" {share:>4}  ", "dim" if waits or gpu.util_ratio is None else ""),
    ]
    return [*spans, (_bar(ratio, glyphs) + " ", "bar"), rest] if bars else [*spans, rest]


def refused_text(device: Device) -> str:
    """`4 allocations did not fit`; empty where all did."""
    return (
        f"{units.plural(device.refused_lately, 'allocation')} did not fit"
        if device.refused_lately
        else ""
    )


def driver_line(
    watch: GpuWatch, gpus: int, width: int, policy: Policy, glyphs: Glyphs = UNICODE
) -> Line:
    """One row that replaces the rows of GPUs whose driver does not answer."""
    text = driver_text(watch, policy)
    more = clean(watch.why) if watch.why is not None else "its last values are left out"
    style = "warning" if watch.why is not None else "critical"
    lead = f"  {units.plural(gpus, 'GPU')}" if gpus else "  GPUs"
    spans: Line = ((f"{lead:<10}", "dim"), (text, style), (f": {more}", ""))
    return clip_line(spans, width, glyphs.ellipsis)


def silent_note(snapshot: Snapshot, policy: Policy) -> str:
    """`driver silent on node3`, `on 3 hosts`; empty while the drivers of all hosts answer."""
    silent = [host for host in snapshot.hosts if driver_text(host.gpu_watch, policy)]
    if not silent:
        return ""
    host = silent[0]
    word = "fails" if host.gpu_watch is not None and host.gpu_watch.why is not None else "silent"
    return (
        f"driver {word} on"
        f" {clean(host.host) if len(silent) == 1 else units.plural(len(silent), 'host')}"
    )


def clip_words(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """At most `width` columns of the text, cut between words; empty if not even the first word
    fits."""
    if cell_width(text) <= width:
        return text
    short = clip(text, width - len(ellipsis), "")
    if len(short) < len(text) and text[len(short)] != " ":
        short = short.rpartition(" ")[0]
    return f"{short.rstrip(' ,;')}{ellipsis}" if short.strip() else ""


def ranks_words(device: Device) -> str:
    """`rank 3`, `ranks 0,1`, `no rank`."""
    if not device.ranks:
        return "divided" if device.gpu.mig else "no rank"
    return f"{'rank' if len(device.ranks) == 1 else 'ranks'} {rank_list(device.ranks, 4)}"


def name_text(gpu: Gpu) -> str:
    """`GPU 3, NVIDIA H100 80GB HBM3`."""
    return f"{'MIG instance of GPU' if gpu.parent else 'GPU'} {gpu.index}" + (
        f", {clean(gpu.name)}" if gpu.name else ""
    )


def _bar(ratio: float | None, glyphs: Glyphs) -> str:
    return bar(ratio, BAR, glyphs) if ratio is not None else " " * BAR
