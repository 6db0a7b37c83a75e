"""Which card is whose: the ranks of a host laid beside what its relay reads of the cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddtop.wire.gpu import CudaState, Gpu, GpuProcess
from ddtop.wire.records import Hello, HostState

TORCH, PROCESS, ENVIRONMENT = "torch", "process", "environment"
"""How the card of a rank is known: torch says so, the driver lists its process there, or it follows from its environment."""


@dataclass(frozen=True, slots=True)
class Device:
    """One card, or MIG instance, of one host. `ranks`: those that are known to be on it, by torch or by the driver's list.

    `foreign`: processes that are no rank's. `ecc_new`: uncorrectable errors since the job's first report of the card.
    `throttled_since_unix_ns`: since when each report has found its clocks held down by heat, power or the hardware. `ours_bytes`, `foreign_bytes`: their memory, None where the driver does not tell it of
    some, or counts in another pid namespace.
    """

    host: str
    gpu: Gpu
    ranks: tuple[int, ...] = ()
    foreign: tuple[GpuProcess, ...] = ()
    ours_bytes: int | None = None
    foreign_bytes: int | None = None
    ecc_new: int = 0
    throttled_since_unix_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Own:
    """The card of one rank, and how that is known."""

    gpu: Gpu
    by: str

    @property
    def certain(self) -> bool:
        """Not a guess from the environment."""
        return self.by != ENVIRONMENT


def own_card(hello: Hello, cuda: CudaState | None, gpus: Sequence[Gpu]) -> Own | None:
    """The rank's card among those of its host; None where nothing tells."""
    if cuda is not None:
        for gpu in gpus:
            if cuda.uuid is not None and bare(gpu.uuid) == bare(cuda.uuid):
                return Own(gpu, TORCH)
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


class Cards:
    """What is remembered of cards from report to report."""

    def __init__(self) -> None:
        self._ecc: dict[str, int] = {}
        self._throttled: dict[str, int] = {}

    def of(self, host: HostState, owns: Mapping[int, Own], at_unix_ns: int) -> tuple[Device, ...]:
        """The cards of one host with the ranks on them; `owns`: what is known of each rank there."""
        found = []
        for gpu in host.gpus:
            if gpu.ecc_uncorrected is not None:
                self._ecc.setdefault(gpu.uuid, gpu.ecc_uncorrected)
            if _HELD_DOWN.isdisjoint(gpu.throttle or ()):
                self._throttled.pop(gpu.uuid, None)
            else:
                self._throttled.setdefault(gpu.uuid, at_unix_ns)
            more = max(0, (gpu.ecc_uncorrected or 0) - self._ecc.get(gpu.uuid, 0))
            found.append(_device(host.host, gpu, owns, more, self._throttled.get(gpu.uuid)))
        return tuple(found)


def devices_of(host: HostState, owns: Mapping[int, Own]) -> tuple[Device, ...]:
    """The cards of one host as its first report has them."""
    return Cards().of(host, owns, 0)


def _device(host: str, gpu: Gpu, owns: Mapping[int, Own], ecc_new: int, throttled_since: int | None) -> Device:
    processes = gpu.processes or ()
    ranks = {one.rank for one in processes if one.rank is not None}
    ranks |= {rank for rank, own in owns.items() if own.certain and own.gpu.uuid == gpu.uuid}
    foreign = tuple(one for one in processes if one.rank is None and one.local)
    told = gpu.processes is not None and all(one.local for one in processes)
    ours = _sum(one.used_bytes for one in processes if one.rank is not None) if told else None
    theirs = _sum(one.used_bytes for one in foreign) if told else None
    return Device(host, gpu, tuple(sorted(ranks)), foreign, ours, theirs, ecc_new, throttled_since)


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
