"""What is known of the GPUs of all hosts: frozen values. None is "not measured"."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ddtop.wire.gpu import Gpu, GpuProcess

TORCH, PROCESS, ENVIRONMENT = "torch", "process", "environment"
"""How the GPU of a rank is known: torch names it, the driver lists its process there, or its
environment selects it."""


class GpuProgress(NamedTuple):
    """How far the ranks on one GPU are."""

    #: Iteration; None where nothing counts iterations, or where several ranks use the GPU.
    steps: int | None = None
    #: Collectives enqueued by all of its ranks.
    calls: int = 0
    #: Allocations of torch that did not fit at once, of all of its ranks.
    refused: int = 0


class Span(NamedTuple):
    """Means of one GPU over one span of `policy.gpu_mean_s`."""

    #: Number of the span; the same span has the same number on all GPUs.
    number: int
    #: Share of the span in which a kernel ran; None: not measured for most of the span.
    util_ratio: float | None
    #: Mean power; None as above.
    power_watts: float | None
    #: Mean SM clock; None as above.
    sm_mhz: float | None
    #: How far the ranks were at the end of the span.
    done: GpuProgress


class Device(msgspec.Struct, frozen=True, gc=False):
    """One GPU, or MIG instance, of one host. Times are unix ns on the hub's clock."""

    host: str
    #: The last report of the driver.
    gpu: Gpu
    #: Ranks that are known to be on it, by torch or by the driver's list of processes.
    ranks: tuple[int, ...] = ()
    #: Processes that are not the job's.
    foreign: tuple[GpuProcess, ...] = ()
    #: Memory of the job's processes; None where the driver does not report it for some, or counts
    #: in another pid namespace.
    ours_bytes: int | None = None
    #: Memory of processes that are not the job's; None as above.
    foreign_bytes: int | None = None
    #: Uncorrectable ECC errors since the job's first report of this GPU.
    ecc_new: int = 0
    #: Since when each report has found its clocks held down by heat, power or the hardware.
    throttled_since_unix_ns: int | None = None

    # Only of a GPU that is a rank's own:
    #: Share of time in which a kernel ran, over about the last `gpu_mean_s`.
    util_mean_ratio: float | None = None
    #: Mean power over about the last `gpu_mean_s`.
    power_mean_watts: float | None = None
    #: The largest mean power of a span.
    power_peak_watts: float | None = None
    #: It is busy and draws little power for that; None while that is not known.
    waits: bool | None = None
    #: Allocations of torch that did not fit at once, within the spans that are kept.
    refused_lately: int = 0
    #: Pids of the processes in `foreign` that were first seen a moment ago.
    foreign_new: tuple[int, ...] = ()
    #: The last spans, oldest first.
    spans: tuple[Span, ...] = ()
    #: In the last report it drew more power than any GPU that waits; None: not known.
    computes: bool | None = None


class Own(msgspec.Struct, frozen=True, gc=False):
    """The GPU of one rank, and how that is known."""

    gpu: Gpu
    #: `TORCH`, `PROCESS` or `ENVIRONMENT`.
    by: str
    #: The uuid by which torch knows it; None where torch does not report one.
    uuid: str | None = None

    @property
    def certain(self) -> bool:
        """Not a guess from the environment."""
        return self.by != ENVIRONMENT
