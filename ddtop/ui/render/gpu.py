"""The section of a rank's page about its GPU and about NCCL."""

from __future__ import annotations

from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.model.state.gpu_facts import ENVIRONMENT, PROCESS, TORCH, Device
from ddtop.present.gpus.gpu_list import process_text
from ddtop.present.gpus.gpu_text import (
    alarming,
    clocks_text,
    driver_text,
    links_text,
    name_text,
    power_text,
    throttle_text,
    trouble_text,
)
from ddtop.present.text import clean
from ddtop.ui.render.page import Page
from ddtop.viewer.thresholds import chosen
from ddtop.wire.gpu import GpuWatch
from ddtop.words import units
from ddtop.words.ranks import ranks_text

KNOWN_BY = {
    TORCH: "torch says so",
    PROCESS: "the driver lists its process there",
    ENVIRONMENT: "from CUDA_VISIBLE_DEVICES and its local rank; CUDA is not up yet",
}


def gpu_lines(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """Empty where the rank's GPU is not known."""
    own, cuda = rank.gpu.own, rank.gpu.cuda
    if own is None and cuda is None:
        return
    page.heading("GPU")
    watch = next((one.gpu_watch for one in snapshot.hosts if one.host == rank.host), None)
    device = _device(snapshot, rank)
    if own is not None:
        gpu = own.gpu
        page.item(
            "GPU",
            name_text(gpu) + (", lost: it no longer answers" if gpu.lost else ""),
            *_alarm(gpu.lost),
        )
        page.item("known", KNOWN_BY[own.by])
        page.item("driver", _driver(watch), "critical")
        page.item("busy", _busy(rank, device))
        if gpu.used_bytes is not None:
            page.item(
                "memory",
                f"{units.long_size(gpu.used_bytes)} of {units.long_size(gpu.total_bytes)} used",
            )
    if cuda is not None and cuda.reserved_bytes is not None:
        page.item(
            "torch has",
            f"{units.long_size(cuda.allocated_bytes)} allocated, at most"
            f" {units.long_size(cuda.allocated_peak_bytes)}, {units.long_size(cuda.reserved_bytes)}"
            " reserved",
        )
        page.item("failed", _failed(cuda.retries or 0, cuda.ooms or 0))
        page.item("NCCL", clean(cuda.nccl or ""))
    if own is None:
        return
    if device is not None:
        others = tuple(number for number in device.ranks if number != rank.rank)
        page.item("shared with", ranks_text(others, 8) if others else "", "warning")
        page.item("strangers", "; ".join(process_text(one) for one in device.foreign), "warning")
    page.item("clock", clocks_text(own.gpu))
    page.item("held back", throttle_text(own.gpu), "warning")
    heat = "" if own.gpu.celsius is None else f"{own.gpu.celsius} C"
    page.item("power", ", ".join(part for part in (power_text(own.gpu), heat) if part))
    page.item("links", links_text(own.gpu))
    page.item("errors", trouble_text(own.gpu), "critical")


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
    elif rank.gpu.waits:
        text = _busy(rank, _device(snapshot, rank))
    elif gpu.used_bytes is None:
        text, style = "nothing is reported of it", "dim"
    page.text(f"GPU {gpu.index}: {text}", style)


def _alarm(wrong: bool) -> tuple[str, ...]:
    return ("critical",) if wrong else ()


def _device(snapshot: Snapshot, rank: RankFacts) -> Device | None:
    if rank.gpu.own is None:
        return None
    uuid = rank.gpu.own.gpu.uuid
    return next(
        (one for one in snapshot.devices if one.gpu.uuid == uuid and one.host == rank.host), None
    )


def _driver(watch: GpuWatch | None) -> str:
    if watch is None or not driver_text(watch, chosen()):
        return ""
    if watch.why is not None:
        return f"cannot be asked: {clean(watch.why)}"
    return f"silent for {units.duration((watch.age_ms or 0) / 1000)}: its last values are left out"


def _busy(rank: RankFacts, device: Device | None) -> str:
    """How busy it is. A GPU that only waits shows its mean power draw: the low draw gives the
    waiting away."""
    gpu = rank.gpu.own.gpu if rank.gpu.own is not None else None
    if gpu is None or gpu.util_ratio is None:
        return ""
    if not rank.gpu.waits:
        return f"{units.percent(gpu.util_ratio)} of the last second"
    watts = device.power_mean_watts if device is not None else None
    draws = power_text(gpu, watts)
    return f"{units.percent(gpu.util_ratio)}{f' at {draws}' if draws else ''}: waits in NCCL"


def _failed(retries: int, ooms: int) -> str:
    parts = [f"{retries:,} allocations came only after others were given back"] if retries else []
    parts += [f"{ooms:,} ran out of memory"] if ooms else []
    return ", ".join(parts)
