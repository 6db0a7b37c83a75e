"""The list of GPUs of a host, to choose one, and `gpus --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddtop.diagnosis.gpus import strangers
from ddtop.model.facts import ENVIRONMENT, PROCESS, TORCH, Device, RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.present.numbers import WAITS, only_waits
from ddtop.present.text import (
    ELLIPSIS,
    UNICODE,
    Field,
    Glyphs,
    Line,
    Page,
    Span,
    bar,
    cell_width,
    clean,
    clip,
    clip_line,
    hollow,
    table_for,
)
from ddtop.say.said import that_hold
from ddtop.thresholds import chosen
from ddtop.wire.records import AMD, Gpu, GpuProcess, GpuWatch
from ddtop.words import units
from ddtop.words.sentences import rank_list, ranks_text

GPUS_SCHEMA = "ddtop.gpus/1"
FIELDS = (
    Field("gpu", "GPU", 4),
    Field("name", "NAME", 10, grows=1, most=26, rank=2),
    Field("util", "UTIL", 4, right=True),
    Field("memory", "MEMORY", 11, right=True),
    Field("power", "POWER", 9, right=True, rank=3),
    Field("temp", "TEMP", 4, right=True, rank=4),
    Field("held", "HELD BY", 26, grows=4),
)


def is_free(gpu: Gpu, policy: Policy) -> bool:
    """No process computes on it and its memory is free. A divided GPU (MIG) counts by its parts."""
    if gpu.lost or gpu.mig or gpu.prohibited or gpu.used_bytes is None or not gpu.total_bytes:
        return False
    if gpu.exclusive and gpu.processes:
        return False
    most = policy.gpu_free_ratio
    return gpu.used_bytes <= most * gpu.total_bytes and (gpu.util_ratio or 0.0) <= most


def gpus_json(gpus: Sequence[Gpu], driver: str | None, policy: Policy) -> dict[str, Any]:
    """All GPUs with their processes; null for values that the driver does not report."""
    return {
        "schema": GPUS_SCHEMA,
        "driver": driver,
        "gpus": [_gpu_json(gpu, policy) for gpu in gpus],
    }


def _gpu_json(gpu: Gpu, policy: Policy) -> dict[str, Any]:
    known = gpu.used_bytes is not None and gpu.total_bytes is not None
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "free": is_free(gpu, policy),
        "free_bytes": max(0, (gpu.total_bytes or 0) - (gpu.used_bytes or 0)) if known else None,
        "total_bytes": gpu.total_bytes,
        "util_ratio": gpu.util_ratio,
        "power_watts": gpu.power_watts,
        "celsius": gpu.celsius,
        "exclusive": gpu.exclusive,
        "prohibited": gpu.prohibited,
        "mig_parent": gpu.parent,
        "lost": gpu.lost,
        "vendor": gpu.vendor,
        "processes": None
        if gpu.processes is None
        else [
            {
                "pid": process.pid,
                "local": process.local,
                "user": process.user,
                "used_bytes": process.used_bytes,
                "command": process.command,
            }
            for process in gpu.processes
        ],
    }


def gpus_lines(gpus: Sequence[Gpu], driver: str | None, width: int, policy: Policy) -> list[str]:
    """A sentence, one row per GPU and one for each further process, and how to start on the free
    ones."""
    table = table_for(FIELDS, width)
    lines = [headline(gpus, driver, policy), "", _text(table.titles())]
    for gpu in gpus:
        first, *more = _held(gpu, policy)
        lines.append(_text(table.line(_cells(gpu, first))))
        empty: dict[str, Span] = {field.key: ("", "") for field in FIELDS}
        lines += [_text(table.line({**empty, "held": (text, "")})) for text in more]
    free = [gpu for gpu in gpus if is_free(gpu, policy)]
    if free:
        names = [gpu.uuid if gpu.parent else str(gpu.index) for gpu in free]
        variables = "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES"
        if free[0].vendor == AMD:
            # UUIDs are the same in every numbering.
            named = all(gpu.uuid.startswith("GPU-") for gpu in free)
            names = [gpu.uuid for gpu in free] if named else names
            variables = "ROCR_VISIBLE_DEVICES"
        lines += ["", f"{variables}={','.join(names)}"]
    return [line.rstrip() for line in lines]


def headline(gpus: Sequence[Gpu], driver: str | None, policy: Policy) -> str:
    """`2 of 8 GPUs are free (driver 580.65.06)`; GPUs that are divided count by their parts."""
    parts = [gpu for gpu in gpus if not gpu.mig]
    free = sum(1 for gpu in parts if is_free(gpu, policy))
    text = (
        f"{free} of {units.plural(len(parts), 'GPU')} {'is' if free == 1 else 'are'} free"
        if parts
        else "no GPU"
    )
    return f"{text} (driver {clean(driver)})" if driver else text


def process_text(process: GpuProcess) -> str:
    """`ada 4711 python train.py 40.0G`; only the pid for a process that is not visible."""
    if not process.local:
        return f"pid {process.pid} outside this container {units.size(process.used_bytes)}"
    command = clean(process.command or "")
    words = [
        clean(process.user or ""),
        str(process.pid),
        command,
        units.size(process.used_bytes) if process.used_bytes else "",
    ]
    return " ".join(word for word in words if word)


def _held(gpu: Gpu, policy: Policy) -> list[str]:
    if gpu.lost:
        return ["lost: it no longer answers"]
    if gpu.prohibited and not gpu.processes:
        return ["no process may: compute mode prohibited"]
    if gpu.processes:
        return [process_text(process) for process in gpu.processes]
    if is_free(gpu, policy):
        return ["free"]
    if gpu.mig:
        return ["divided (MIG)"]
    return ["no visible process" if gpu.processes is not None else "the driver does not say"]


def _cells(gpu: Gpu, held: str) -> dict[str, Span]:
    memory = (
        f"{units.size(gpu.used_bytes)}/{units.size(gpu.total_bytes)}"
        if gpu.total_bytes
        else units.NOT_MEASURED
    )
    cap = f"/{gpu.power_cap_watts:.0f}W" if gpu.power_cap_watts is not None else "W"
    return {
        "gpu": (f"{gpu.index}.m" if gpu.parent else str(gpu.index), ""),
        "name": (clean(gpu.name), ""),
        "util": (units.percent(gpu.util_ratio), ""),
        "memory": (memory, ""),
        "power": (
            units.NOT_MEASURED if gpu.power_watts is None else f"{gpu.power_watts:.0f}{cap}",
            "",
        ),
        "temp": (units.NOT_MEASURED if gpu.celsius is None else f"{gpu.celsius}C", ""),
        "held": (held, ""),
    }


def _text(line: Line) -> str:
    return "".join(text for text, _ in line)


# -- A GPU as text: its numbers, what throttles it, which processes use it


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
    codes, ecc = dict.fromkeys(xid.code for xid in gpu.xids or ()), gpu.ecc_uncorrected
    row = (
        "a row of its memory could not be replaced"
        if gpu.remap_failed
        else "a row of its memory waits to be replaced: it needs a reset"
    )
    parts = that_hold(
        (codes, f"Xid {', '.join(map(str, codes))}"),
        (ecc, f"{ecc or 0:,} uncorrectable memory errors"),
        (gpu.remap_failed or gpu.remap_pending, row),
    )
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
    lost = (f"{'lost: it no longer answers':<{BARRED if bars else PLAIN}}", "critical")
    spans: list[Span] = [
        (f"{name:<10}", "dim"),
        *([lost] if gpu.lost else _numbers(gpu, glyphs, waits, bars)),
    ]
    spans += [(f"  {ranks_words(device):<{RANKS}}", "" if device.ranks else "dim")]
    room = width - sum(len(text) for text, _ in spans)
    for text, style in (
        (trouble_text(gpu), "critical"),
        (throttle_text(gpu), "warning" if alarming(gpu) else "dim"),
        (refused_text(device), "warning"),
        (
            "; ".join(process_text(process) for process in device.foreign),
            "warning" if device.ranks else "dim",
        ),
    ):
        shown = clip_words(text, room - 2, glyphs.ellipsis) if text else ""
        if shown:
            spans += [("  ", ""), (shown, style)]
            room -= cell_width(shown) + 2
    return clip_line(tuple(spans), width, glyphs.ellipsis)


def gpu_titles(width: int) -> Line:
    """The titles above the rows of `gpu_line`."""
    memory = 11 + (BAR + 1 if width >= BARS_FROM else 0)
    text = (
        f"{'  GPU':<10}{'BUSY':>{BAR + 5}}  {'MEMORY':>{memory}}  {'POWER':>5} {'HEAT':>4}  RANKS"
    )
    return clip_line(((text, "heading"),), width)


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


# -- The section of a rank's page about its GPU and about NCCL


KNOWN_BY = {
    TORCH: "torch says so",
    PROCESS: "the driver lists its process there",
    ENVIRONMENT: "from CUDA_VISIBLE_DEVICES and its local rank; CUDA has not started yet",
}


def gpu_lines(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """Empty where the rank's GPU is not known."""
    own, cuda = rank.gpu.own, rank.gpu.cuda
    if own is None and cuda is None:
        return
    page.heading("GPU")
    watch = next((host.gpu_watch for host in snapshot.hosts if host.host == rank.host), None)
    device = _device(snapshot, rank)
    if own is not None:
        gpu = own.gpu
        lost, style = (", lost: it no longer answers", "critical") if gpu.lost else ("", "")
        used = f"{units.long_size(gpu.used_bytes)} of {units.long_size(gpu.total_bytes)} used"
        page.items(
            ("GPU", name_text(gpu) + lost, style),
            ("known", KNOWN_BY[own.by]),
            ("driver", _driver(watch), "critical"),
            ("busy", _busy(rank, device)),
            ("memory", used if gpu.used_bytes is not None else ""),
        )
    if cuda is not None and cuda.reserved_bytes is not None:
        page.items(
            (
                "torch has",
                f"{units.long_size(cuda.allocated_bytes)} allocated, at most"
                f" {units.long_size(cuda.allocated_peak_bytes)},"
                f" {units.long_size(cuda.reserved_bytes)} reserved",
            ),
            ("failed", _failed(cuda.retries or 0, cuda.ooms or 0)),
            ("NCCL", clean(cuda.nccl or "")),
        )
    if own is None:
        return
    others = device.ranks if device is not None else ()
    foreign = device.foreign if device is not None else ()
    heat = "" if own.gpu.celsius is None else f"{own.gpu.celsius} C"
    page.items(
        ("shared with", ranks_text([one for one in others if one != rank.rank], 8), "warning"),
        ("strangers", "; ".join(map(process_text, foreign)), "warning"),
        ("clock", clocks_text(own.gpu)),
        ("held back", throttle_text(own.gpu), "warning"),
        ("power", ", ".join(part for part in (power_text(own.gpu), heat) if part)),
        ("links", links_text(own.gpu)),
        ("errors", trouble_text(own.gpu), "critical"),
    )


def gpu_title(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """Its GPU in one line: `GPU 3: 100% at 188 of 700 W: waits in NCCL`; empty where none is
    known."""
    if rank.gpu.own is None:
        return
    gpu = rank.gpu.own.gpu
    held = throttle_text(gpu)
    draws = f"at {power_text(gpu)}" if gpu.power_watts is not None else ""
    heat = f"{gpu.celsius} C" if gpu.celsius is not None else ""
    text = ", ".join(
        part for part in (f"{units.percent(gpu.util_ratio)} {draws}".strip(), heat, held) if part
    )
    style = "warning" if alarming(gpu) else ""
    if gpu.lost:
        text, style = "lost: it no longer answers", "critical"
    elif only_waits(rank):
        text = _busy(rank, _device(snapshot, rank))
    elif gpu.used_bytes is None:
        text, style = "nothing reported yet", "dim"
    page.text(f"GPU {gpu.index}: {text}", style)


def _device(snapshot: Snapshot, rank: RankFacts) -> Device | None:
    if rank.gpu.own is None:
        return None
    uuid = rank.gpu.own.gpu.uuid
    return next(
        (
            device
            for device in snapshot.devices
            if device.gpu.uuid == uuid and device.host == rank.host
        ),
        None,
    )


def _driver(watch: GpuWatch | None) -> str:
    if watch is None or not driver_text(watch, chosen()):
        return ""
    if watch.why is not None:
        return f"does not answer: {clean(watch.why)}"
    return f"silent for {units.duration((watch.age_ms or 0) / 1000)}: its last values are left out"


def _busy(rank: RankFacts, device: Device | None) -> str:
    """How busy it is. A GPU that only waits shows its mean power draw: the low draw gives the
    waiting away."""
    gpu = rank.gpu.own.gpu if rank.gpu.own is not None else None
    if gpu is None or gpu.util_ratio is None:
        return ""
    if not only_waits(rank):
        return f"{units.percent(gpu.util_ratio)} of the last second"
    draws = power_text(gpu, device.power_mean_watts if device is not None else None)
    return f"{units.percent(gpu.util_ratio)}{f' at {draws}' if draws else ''}: waits in NCCL"


def _failed(retries: int, ooms: int) -> str:
    parts = [f"{retries:,} allocations succeeded only after others were freed"] if retries else []
    parts += [f"{ooms:,} ran out of memory"] if ooms else []
    return ", ".join(parts)
