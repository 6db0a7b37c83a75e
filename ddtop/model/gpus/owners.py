"""Which card is whose: the ranks of a host laid beside what its relay reads of the cards."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from ddtop.model.gpus.gpu_load import Kept, Load, Span
from ddtop.policy import POLICY, Policy
from ddtop.wire.gpu import CudaState, Gpu, GpuProcess
from ddtop.wire.records import Hello, HostState, RankState

TORCH, PROCESS, ENVIRONMENT = "torch", "process", "environment"
"""How the card of a rank is known: torch says so, the driver lists its process there, or it follows from its environment."""
NOTHING_SAID: Mapping[int, RankState | None] = MappingProxyType({})


class Device(msgspec.Struct, frozen=True, gc=False):
    """One card, or MIG instance, of one host. `ranks`: those that are known to be on it, by torch or by the driver's list.

    `foreign`: processes that are none of the job's, `foreign_new`: those of them that came a moment ago. `ecc_new`: uncorrectable
    errors since the job's first report of the card. `throttled_since_unix_ns`: since when each report has found its clocks held down by heat, power or the
    hardware. `ours_bytes`, `foreign_bytes`: their memory, None where the driver does not tell it of some, or counts in another pid namespace.

    Only of cards that are a rank's own: `util_mean_ratio`, `power_mean_watts` over about the last `gpu_mean_s`, `power_peak_watts`
    the most that such a time has had, `spans` the last ones; `waits`: it is busy and draws little for that, None while that cannot be told;
    `computes`: at the last look it drew more than any card that waits, None likewise; `refused_lately`: allocations of torch that did not fit at once.
    """

    host: str
    gpu: Gpu
    ranks: tuple[int, ...] = ()
    foreign: tuple[GpuProcess, ...] = ()
    ours_bytes: int | None = None
    foreign_bytes: int | None = None
    ecc_new: int = 0
    throttled_since_unix_ns: int | None = None
    util_mean_ratio: float | None = None
    power_mean_watts: float | None = None
    power_peak_watts: float | None = None
    waits: bool | None = None
    refused_lately: int = 0
    foreign_new: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    computes: bool | None = None


class Own(msgspec.Struct, frozen=True, gc=False):
    """The card of one rank, and how that is known; `said`: the name by which torch knows it."""

    gpu: Gpu
    by: str
    said: str | None = None

    @property
    def certain(self) -> bool:
        """Not a guess from the environment."""
        return self.by != ENVIRONMENT


def own_card(hello: Hello, cuda: CudaState | None, gpus: Sequence[Gpu]) -> Own | None:
    """The rank's card among those of its host; None where nothing tells."""
    if cuda is not None:
        uuid = bare(cuda.uuid) if cuda.uuid is not None else None
        for gpu in gpus:
            if bare(gpu.uuid) == uuid:
                return Own(gpu, TORCH, cuda.uuid)
        for gpu in gpus:
            if cuda.pci is not None and gpu.pci == cuda.pci and not gpu.mig:
                return Own(gpu, TORCH)
    held = [gpu for gpu in gpus if any(one.rank == hello.rank for one in gpu.processes or ())]
    parents = {gpu.parent for gpu in held}
    held = [gpu for gpu in held if gpu.uuid not in parents]
    if len(held) == 1:
        return Own(held[0], PROCESS)
    if "nccl" not in (hello.backend or ""):
        return None
    guess = by_environment(hello, gpus)
    return Own(guess, ENVIRONMENT) if guess is not None else None


def unheard(gpu: Gpu) -> Gpu:
    """The card without its numbers: the driver has not answered for long, and what it said last is not what is."""
    return Gpu(
        gpu.index, gpu.uuid, name=gpu.name, pci=gpu.pci, total_bytes=gpu.total_bytes, parent=gpu.parent, xids=gpu.xids
    )


def again(own: Own | None, gpus: Sequence[Gpu]) -> Own | None:
    """The card that was known before, with the numbers of now where there are any: what is not told once is not forgotten."""
    if own is None:
        return None
    now = next((gpu for gpu in gpus if gpu.uuid == own.gpu.uuid), None)
    return Own(now, own.by) if now is not None else own


def by_environment(hello: Hello, gpus: Sequence[Gpu]) -> Gpu | None:
    """The card that CUDA_VISIBLE_DEVICES and the local rank lead to, as CUDA reads them."""
    found = visible(hello.environment, gpus)
    if found is None:
        return None
    if len(found) == 1:
        return found[0]
    local = hello.local_rank
    return found[local] if local is not None and 0 <= local < len(found) else None


def visible(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Gpu] | None:
    """The cards that a program with this environment sees, in its order; None where that cannot be told.

    CUDA numbers the fastest card first and NVML by PCI address: numbers mean the same only where all cards are alike, or
    CUDA_DEVICE_ORDER says PCI_BUS_ID.
    """
    cards = [gpu for gpu in gpus if gpu.parent is None and not gpu.lost]
    same_order = len({gpu.name for gpu in cards}) <= 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return cards if same_order and not any(gpu.mig for gpu in cards) else None
    words = [word.strip() for word in text.split(",")]
    if words[0].startswith(("GPU-", "MIG-")):
        return _by_prefix(words, gpus)
    found: list[Gpu] = []
    for word in words:
        # CUDA stops at the first that is no number, or no card.
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 6 else -1
        if not 0 <= number < len(cards):
            break
        if cards[number] in found:
            return []
        found.append(cards[number])
    return found if same_order and not any(gpu.mig for gpu in found) else None


def _by_prefix(words: Iterable[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    found: list[Gpu] = []
    for word in words:
        fitting = [gpu for gpu in gpus if gpu.uuid.lower().startswith(word.lower())]
        # A prefix that fits two cards is refused by CUDA, and ends the list.
        if len(fitting) != 1:
            break
        if fitting[0] in found:
            return []
        found.append(fitting[0])
    return found


def bare(uuid: str) -> str:
    """Without `GPU-` or `MIG-`, which torch leaves out."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


_HELD_DOWN = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal", "sw_power_cap"})
CARDS_MAX = 256
"""Cards and MIG instances remembered of one relay: eight cards of seven instances, and room for those that come and go."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What a relay has said last of its cards; `on`: the ranks whose own they are, by card."""

    host: str
    gpus: tuple[Gpu, ...]
    on: Mapping[str, Sequence[int]]
    at_unix_ns: int


class Cards:
    """What is remembered of cards from report to report, by relay: two hosts may call theirs alike.

    A report only adds to what is remembered: the devices are made when somebody looks, which of ten thousand cards is every third report.
    """

    def __init__(self, policy: Policy = POLICY) -> None:
        self._policy = policy
        self._kept: dict[str, dict[str, Kept]] = {}
        self._reports: dict[str, _Report] = {}
        self._devices: dict[str, tuple[Device, ...]] = {}

    def __copy__(self) -> Cards:
        made = Cards(self._policy)
        made._kept = {
            sender: {uuid: copy.copy(one) for uuid, one in kept.items()} for sender, kept in self._kept.items()
        }
        made._reports, made._devices = dict(self._reports), dict(self._devices)
        return made

    def __contains__(self, sender: str) -> bool:
        return sender in self._reports

    def __bool__(self) -> bool:
        return bool(self._reports)

    def move(self, sender: str, by_ns: int) -> None:
        """What that relay has reported was so much later, by the hub's clock."""
        for one in self._kept.get(sender, {}).values():
            one.move(by_ns)
        if sender in self._reports:
            report = self._reports[sender]
            self._reports[sender] = replace(report, at_unix_ns=report.at_unix_ns + by_ns)
            self._devices.pop(sender, None)

    def take(
        self,
        host: HostState,
        owns: Mapping[int, Own],
        at_unix_ns: int,
        states: Mapping[int, RankState | None] = NOTHING_SAID,
        sender: str = "",
        pids: Collection[int] = (),
    ) -> None:
        """Take in the cards of one host with the ranks on them. `owns`: what is known of each rank there, `states`: what each has said last;
        `pids`: all processes that are or were ranks."""
        kept = self._kept.setdefault(sender, {})
        if len(kept) > CARDS_MAX:
            here = {gpu.uuid for gpu in host.gpus}
            kept = self._kept[sender] = {uuid: one for uuid, one in kept.items() if uuid in here}
        on: dict[str, list[int]] = {}
        for rank, own in owns.items():
            if own.certain:
                on.setdefault(own.gpu.uuid, []).append(rank)
        age_ms = host.gpu_watch.age_ms if host.gpu_watch is not None else None
        fresh = (age_ms or 0) <= self._policy.gpu_fresh_s * 1000
        for gpu in host.gpus:
            one = kept.get(gpu.uuid)
            if one is None:
                one = kept[gpu.uuid] = Kept()
            _remember(one, gpu, at_unix_ns, pids)
            mine = on.get(gpu.uuid)
            if mine is not None and not gpu.mig:
                self._load(one, gpu, at_unix_ns, tuple([states.get(rank) for rank in mine]), fresh)
        self._reports[sender] = _Report(host.host, host.gpus, on, at_unix_ns)
        self._devices.pop(sender, None)

    def devices(self) -> dict[str, tuple[Device, ...]]:
        """The cards of all hosts as their last reports have them, by relay."""
        return {sender: self._devices_of(sender, report) for sender, report in self._reports.items()}

    def _devices_of(self, sender: str, report: _Report) -> tuple[Device, ...]:
        found = self._devices.get(sender)
        if found is None:
            kept, on = self._kept[sender], report.on
            made = [self._device(report, gpu, on.get(gpu.uuid, ()), kept[gpu.uuid]) for gpu in report.gpus]
            found = self._devices[sender] = tuple(made)
        return found

    def _load(self, one: Kept, gpu: Gpu, at: int, states: tuple[RankState | None, ...], fresh: bool) -> None:
        if one.load is None:
            one.load = Load()
        if gpu.lost or (gpu.util_ratio is None and gpu.used_bytes is None):
            one.load.silent()
        elif fresh:
            one.load.add(at, gpu, states, self._policy)

    def _device(self, report: _Report, gpu: Gpu, mine: Sequence[int], one: Kept) -> Device:
        ranks, told, foreign = set(mine), gpu.processes is not None, one.strangers
        ours_bytes: int | None = 0
        for process in gpu.processes or ():
            if process.rank is not None:
                ranks.add(process.rank)
                if ours_bytes is not None:
                    ours_bytes = ours_bytes + process.used_bytes if process.used_bytes is not None else None
            told = told and process.local
        new: tuple[int, ...] = ()
        if foreign:
            soon = report.at_unix_ns - int(self._policy.gpu_foreign_s * 1e9)
            new = tuple([pid for pid, came in one.foreign.items() if came > soon])
        load = one.load if mine else None
        return Device(
            report.host,
            gpu,
            tuple(sorted(ranks)),
            foreign,
            ours_bytes if told else None,
            (_sum(process.used_bytes for process in foreign) if foreign else 0) if told else None,
            max(0, (gpu.ecc_uncorrected or 0) - (one.ecc or 0)) if one.ecc is not None else 0,
            one.throttled_unix_ns,
            load.util_ratio if load is not None else None,
            load.power_watts if load is not None else None,
            load.peak_watts if load is not None else None,
            self._waits(load, gpu, foreign) if load is not None and len(ranks) == 1 else None,
            load.refused_lately if load is not None else 0,
            new,
            load.spans if load is not None else (),
            self._computes(load, gpu, foreign) if load is not None and len(ranks) == 1 else None,
        )

    def _computes(self, load: Load, gpu: Gpu, foreign: Sequence[GpuProcess]) -> bool | None:
        power, peak, cap, policy = gpu.power_watts, load.peak_watts, gpu.power_cap_watts, self._policy
        if power is None or peak is None or not cap or not self._tells(gpu, foreign):
            return None
        # A kernel of NCCL that waits draws more than the small models that some people train.
        return power > max(policy.gpu_wait_power_ratio * peak, policy.gpu_wait_cap_ratio * cap)

    def _tells(self, gpu: Gpu, foreign: Sequence[GpuProcess]) -> bool:
        """Its power is that of its rank's work. At low clocks a card draws little however hard it computes: the slowest one would read as
        one that waits."""
        return _HELD_DOWN.isdisjoint(gpu.throttle or ()) and not large(foreign, gpu, self._policy)

    def _waits(self, load: Load, gpu: Gpu, foreign: Sequence[GpuProcess]) -> bool | None:
        """Busy all the time, and it draws little of what it can: None while that cannot be told."""
        util, power, peak, policy = load.util_ratio, load.power_watts, load.peak_watts, self._policy
        if util is None or power is None or peak is None:
            return None
        if not self._tells(gpu, foreign):
            return None
        if util < policy.gpu_wait_busy_ratio or power > policy.gpu_wait_power_ratio * peak:
            return False
        return not gpu.power_cap_watts or power <= policy.gpu_wait_cap_ratio * gpu.power_cap_watts


def large(processes: Iterable[GpuProcess], gpu: Gpu, policy: Policy) -> tuple[GpuProcess, ...]:
    """Those that hold a part of the card's memory that counts: a display server's or a notebook's context does not."""
    least = policy.gpu_foreign_ratio * (gpu.total_bytes or 0)
    return tuple([one for one in processes if one.used_bytes is not None and one.used_bytes >= least > 0])


def _remember(one: Kept, gpu: Gpu, at: int, pids: Collection[int]) -> None:
    if one.ecc is None:
        one.ecc = gpu.ecc_uncorrected
    if not gpu.throttle or _HELD_DOWN.isdisjoint(gpu.throttle):
        one.throttled_unix_ns = None
    elif one.throttled_unix_ns is None:
        one.throttled_unix_ns = at
    strangers = []
    for process in gpu.processes or ():
        if process.rank is None and process.local and not process.ours and process.pid not in pids:
            strangers.append(process)
    if strangers or one.strangers:
        since = one.foreign
        one.strangers = tuple(strangers)
        one.foreign = {process.pid: since.get(process.pid, at) for process in strangers}


def devices_of(host: HostState, owns: Mapping[int, Own]) -> tuple[Device, ...]:
    """The cards of one host as its first report has them."""
    cards = Cards()
    cards.take(host, owns, 0)
    return cards.devices()[""]


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
