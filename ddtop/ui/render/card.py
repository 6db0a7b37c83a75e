"""The section of a rank's page about its GPU and about NCCL."""

from __future__ import annotations

from ddtop.model.devices import ENVIRONMENT, PROCESS, TORCH
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.ui.present import units
from ddtop.ui.present.cards import clocks_text, links_text, name_text, power_text, throttle_text, trouble_text
from ddtop.ui.present.gpus import process_text
from ddtop.ui.present.text import clean, rank_words

from .page import Page

KNOWN_BY = {
    TORCH: "torch says so",
    PROCESS: "the driver lists its process there",
    ENVIRONMENT: "from CUDA_VISIBLE_DEVICES and its local rank; CUDA is not up yet",
}


def gpu_lines(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """Nothing where no GPU is known to be the rank's."""
    own, cuda = rank.own, rank.cuda
    if own is None and cuda is None:
        return
    page.heading("GPU")
    if own is not None:
        gpu = own.gpu
        page.item("card", name_text(gpu) + (", lost: it does not answer any more" if gpu.lost else ""))
        page.item("known", KNOWN_BY[own.by])
        if gpu.util_ratio is not None:
            page.item("busy", f"{units.percent(gpu.util_ratio)} of the last second")
        if gpu.used_bytes is not None:
            page.item("memory", f"{units.long_size(gpu.used_bytes)} of {units.long_size(gpu.total_bytes)} used")
    if cuda is not None and cuda.reserved_bytes is not None:
        page.item(
            "torch has",
            f"{units.long_size(cuda.allocated_bytes)} allocated, at most {units.long_size(cuda.allocated_peak_bytes)}, "
            f"{units.long_size(cuda.reserved_bytes)} reserved",
        )
        page.item("failed", _failed(cuda.retries or 0, cuda.ooms or 0))
        page.item("NCCL", clean(cuda.nccl or ""))
    if own is None:
        return
    device = next((one for one in snapshot.devices if one.host == rank.host and one.gpu.uuid == own.gpu.uuid), None)
    if device is not None:
        others = tuple(number for number in device.ranks if number != rank.rank)
        page.item("shared with", rank_words(others, 8) if others else "", "warning")
        page.item("strangers", "; ".join(process_text(one) for one in device.foreign), "warning")
    page.item("clock", clocks_text(own.gpu))
    page.item("held back", throttle_text(own.gpu))
    heat = "" if own.gpu.celsius is None else f"{own.gpu.celsius} C"
    page.item("power", ", ".join(part for part in (power_text(own.gpu), heat) if part))
    page.item("links", links_text(own.gpu))
    page.item("errors", trouble_text(own.gpu), "critical")


def _failed(retries: int, ooms: int) -> str:
    parts = [f"{retries:,} allocations came only after others were given back"] if retries else []
    parts += [f"{ooms:,} ran out of memory"] if ooms else []
    return ", ".join(parts)
