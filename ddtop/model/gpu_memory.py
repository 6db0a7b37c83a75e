"""What is remembered of each GPU from report to report.

A GPU that computes and one that waits differ by the power they draw, over seconds and never in one
report. An NCCL kernel that waits spins, so the GPU is busy all the time and draws a third of what
it draws while it computes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ddtop.model.facts import Device, GpuProgress, Span
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Gpu, GpuProcess, RankState


@dataclass(frozen=True)
class GpuMean(Limits, of="gpu-mean"):
    """What a mean over the reports of a GPU needs."""

    told_ratio: float = 0.7
    """This share of the reports of `gpu_mean_s` has to have fresh numbers."""


SPANS = 4
"""Spans kept of a GPU. What is true in all of them is lasting."""
GPUS_MAX = 256
"""GPUs and MIG instances remembered of one relay: eight GPUs of seven instances each, and spare
room for instances that come and go."""


States = tuple[Union[RankState, None], ...]
"""The last reports of the ranks on one GPU; None for a rank that has not reported yet."""


def progress_of(states: States) -> GpuProgress:
    """How far the ranks of one GPU are."""
    steps = states[0].iteration if len(states) == 1 and states[0] is not None else None
    calls = sum([group.enqueued for state in states if state for group in state.groups])
    return GpuProgress(steps, calls, _refused_bytes(states))


def _refused_bytes(states: States) -> int:
    total = 0
    for state in states:
        cuda = state.cuda if state is not None else None
        if cuda is not None:
            total += (cuda.retries or 0) + (cuda.ooms or 0)
    return total


class Load:
    """Means of one GPU's use and power. A report comes once a second and costs a few additions.

    `util_ratio` and `power_watts` are running means over about `policy.gpu_mean_s`. They are None
    while the driver does not report them. `peak_watts` is the largest mean of a span.
    """

    __slots__ = (
        "_at", "_count", "_first", "_known", "_measured", "_mhz", "_number", "_power", "_refused",
        "_util", "peak_watts", "power_watts", "spans", "util_ratio",
    )  # fmt: skip

    def __init__(self) -> None:
        self.util_ratio: float | None = None
        self.power_watts: float | None = None
        self.peak_watts: float | None = None
        self.spans: tuple[Span, ...] = ()
        self._refused = 0
        self._first: GpuProgress | None = None
        self._at = self._number = self._count = self._known = self._measured = 0
        self._util = self._power = self._mhz = 0.0

    def __copy__(self) -> Load:
        load = Load.__new__(Load)
        for name in Load.__slots__:
            setattr(load, name, getattr(self, name))
        return load

    @property
    def refused_lately(self) -> int:
        """Allocations of torch that did not fit at once, within the spans that are kept."""
        since = self.spans[0].done if self.spans else self._first
        return max(0, self._refused - since.refused) if since is not None else 0

    def add(self, at_unix_ns: int, gpu: Gpu, states: States, policy: Policy) -> None:
        """Add one report with fresh numbers.

        `states`: the last reports of the ranks on this GPU. None of them is kept.
        """
        mean_s = policy.gpu_mean_s
        number = int(at_unix_ns // (mean_s * 1e9))
        if number != self._number:
            # What was refused since the last report counts for the new span.
            self._close(number, progress_of(states)._replace(refused=self._refused), policy)
        if not -mean_s < (at_unix_ns - self._at) / 1e9 < mean_s:
            self._known = 0
        self._at, self._refused = at_unix_ns, _refused_bytes(states)
        if self._first is None:
            self._first = progress_of(states)
        self._count += 1
        util, power = gpu.util_ratio, gpu.power_watts
        if util is None:
            self.silent()
            return
        known = self._known = self._known + 1 if self._known < mean_s else self._known
        before, drawn = self.util_ratio, self.power_watts
        self.util_ratio = util if before is None or known <= 1 else before + (util - before) / known
        if power is None:
            self.power_watts = None
            return
        self.power_watts = power if drawn is None or known <= 1 else drawn + (power - drawn) / known
        self._measured += 1
        self._util += util
        self._power += power
        self._mhz += gpu.sm_mhz or 0

    def silent(self) -> None:
        """The driver no longer answers: the means of now are not known."""
        self.util_ratio = self.power_watts = None
        self._known = 0

    def _close(self, number: int, now: GpuProgress, policy: Policy) -> None:
        """Keep the span that is over, if enough of it was measured and the one before is known."""
        least, measured = policy.of(GpuMean).told_ratio * policy.gpu_mean_s, self._measured
        if number != self._number + 1 or self._count < least:
            self.spans = ()
        elif measured < least:
            self.spans = (*self.spans, Span(self._number, None, None, None, now))[-SPANS:]
        else:
            power = self._power / measured
            mhz = self._mhz / measured or None
            span = Span(self._number, self._util / measured, power, mhz, now)
            self.spans = (*self.spans, span)[-SPANS:]
            self.peak_watts = power if self.peak_watts is None else max(self.peak_watts, power)
        self._number, self._count, self._measured = number, 0, 0
        self._util = self._power = self._mhz = 0.0


class GpuMemory:
    """What is remembered of one GPU. Times are unix ns of its relay."""

    __slots__ = ("ecc", "foreign", "load", "strangers", "throttled_unix_ns")

    def __init__(self) -> None:
        #: Uncorrectable ECC errors in the first report of this GPU.
        self.ecc: int | None = None
        #: Since when each report has found its clocks held down; None: they are not.
        self.throttled_unix_ns: int | None = None
        #: When each process that is not the job's was first seen, by pid.
        self.foreign: dict[int, int] = {}
        #: The processes of the last report that are not the job's.
        self.strangers: tuple[GpuProcess, ...] = ()
        #: None while no rank is known to use this GPU.
        self.load: Load | None = None

    def __copy__(self) -> GpuMemory:
        memory = GpuMemory()
        memory.ecc, memory.throttled_unix_ns = self.ecc, self.throttled_unix_ns
        memory.foreign, memory.strangers = dict(self.foreign), self.strangers
        memory.load = copy.copy(self.load)
        return memory

    def move(self, by_ns: int) -> None:
        """Add `by_ns` to all times: the offset of the relay's clock was corrected."""
        if self.throttled_unix_ns is not None:
            self.throttled_unix_ns += by_ns
        self.foreign = {pid: at + by_ns for pid, at in self.foreign.items()}


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The last report of a relay about its GPUs. `on`: the ranks that own each GPU, by uuid."""

    host: str
    gpus: tuple[Gpu, ...]
    on: Mapping[str, Sequence[int]]
    at_unix_ns: int


class JobGpus:
    """What is remembered of all GPUs, by relay: two hosts may use the same uuid.

    `ddtop.model.gpus` fills it. `devices` caches what a snapshot made of a report, because
    of ten thousand GPUs only every third report is looked at.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, GpuMemory]] = {}
        self.reports: dict[str, GpuReport] = {}
        self.devices: dict[str, tuple[Device, ...]] = {}

    def __copy__(self) -> JobGpus:
        job_gpus = JobGpus()
        job_gpus.kept = {
            sender: {uuid: copy.copy(memory) for uuid, memory in kept.items()}
            for sender, kept in self.kept.items()
        }
        job_gpus.reports, job_gpus.devices = dict(self.reports), dict(self.devices)
        return job_gpus

    def __contains__(self, sender: str) -> bool:
        return sender in self.reports

    def __bool__(self) -> bool:
        return bool(self.reports)

    def move(self, sender: str, by_ns: int) -> None:
        """Add `by_ns` to all times of that relay: the offset of its clock was corrected."""
        for value in self.kept.get(sender, {}).values():
            value.move(by_ns)
        if sender in self.reports:
            report = self.reports[sender]
            self.reports[sender] = replace(report, at_unix_ns=report.at_unix_ns + by_ns)
            self.devices.pop(sender, None)
