"""A double of pynvml: GPUs whose numbers a test sets, and which fail as NVML does, with NVML's own
codes.

nv = FakeNvml(FakeCard(used=60 * GIB, processes={4711: 60 * GIB}))
nv.cards[0].raises["nvmlDeviceGetTemperature"] = NOT_SUPPORTED
"""

# The names are NVIDIA's.
# ruff: noqa: N802, N815

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30
NOT_SUPPORTED, FUNCTION_NOT_FOUND, TIMEOUT, IS_LOST, NO_DRIVER = 3, 13, 10, 15, 9


class NVMLError(Exception):
    """Like pynvml's error: it has the driver's code."""

    def __init__(self, value: int) -> None:
        super().__init__(
            {
                NOT_SUPPORTED: "Not Supported",
                IS_LOST: "GPU is lost",
                NO_DRIVER: "Driver Not Loaded",
            }.get(value)
        )
        self.value = value


@dataclass
class FakeCard:
    """One GPU. The defaults are those of an H100 at work."""

    uuid: str = "GPU-11111111-2222-3333-4444-555555555555"
    name: str = "NVIDIA H100 80GB HBM3"
    util: int = 97
    memory_util: int = 40
    used: int = 41 * GIB
    total: int = 80 * GIB
    processes: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    sm_mhz: int = 1755
    sm_max_mhz: int = 1980
    memory_mhz: int = 2619
    power_mw: int = 650_000
    cap_mw: int = 700_000
    celsius: int = 61
    reasons: int = 0
    ecc: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    bus: str = "00000000:1B:00.0"
    pcie: tuple[int, int, int, int] = (5, 5, 16, 16)
    links: tuple[int, ...] = (1,) * 18
    mode: int = 0
    mig: tuple[FakeCard, ...] | None = None
    raises: dict[str, int] = field(default_factory=dict)

    @property
    def _as_parameter_(self) -> int:
        """A GPU is its own handle, and the C library identifies it by its address."""
        return id(self)


class FakeNvml:
    """The module. `calls` counts its calls by name. `standing`: while it is set, no call
    returns.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_NVLINK_MAX_LINKS, nvmlMemory_v2 = 1, 18, 0x02000028

    def __init__(self, *cards: FakeCard, driver: bool = True) -> None:
        self.cards, self.driver = list(cards), driver
        self.calls: dict[str, int] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.xids: list[tuple[FakeCard, int]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or f"_{name}" not in dir(type(self)):
            raise AttributeError(name)
        function = getattr(self, f"_{name}")

        def call(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            assert self.answers.wait(30)
            first = arguments[0] if arguments else None
            if isinstance(first, FakeCard):
                for key in (name, "*"):
                    if key in first.raises:
                        raise NVMLError(first.raises[key])
            return function(*arguments)

        return call

    def _nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError(NO_DRIVER)

    def _nvmlShutdown(self) -> None:
        """Does nothing but count."""

    def _nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def _nvmlDeviceGetCount(self) -> int:
        if not self.driver:
            raise NVMLError(NO_DRIVER)
        return len(self.cards)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        card = self.cards[index]
        if "nvmlDeviceGetHandleByIndex" in card.raises:
            raise NVMLError(card.raises["nvmlDeviceGetHandleByIndex"])
        return card

    def _nvmlDeviceGetUUID(self, card: FakeCard) -> bytes:
        return card.uuid.encode()

    def _nvmlDeviceGetName(self, card: FakeCard) -> str:
        return card.name

    def _nvmlDeviceGetUtilizationRates(self, card: FakeCard) -> Any:
        return SimpleNamespace(gpu=card.util, memory=card.memory_util)

    def _nvmlDeviceGetMemoryInfo(self, card: FakeCard, version: int | None = None) -> Any:
        assert version in (None, self.nvmlMemory_v2)
        return SimpleNamespace(used=card.used, total=card.total)

    def _nvmlDeviceGetComputeRunningProcesses(self, card: FakeCard) -> Any:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes.items()
        ]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, card: FakeCard) -> Any:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.graphics.items()]

    def _nvmlDeviceGetClockInfo(self, card: FakeCard, kind: int) -> int:
        return card.sm_mhz if kind == self.NVML_CLOCK_SM else card.memory_mhz

    def _nvmlDeviceGetMaxClockInfo(self, card: FakeCard, kind: int) -> int:
        return card.sm_max_mhz if kind == self.NVML_CLOCK_SM else card.memory_mhz

    def _nvmlDeviceGetPowerUsage(self, card: FakeCard) -> int:
        return card.power_mw

    def _nvmlDeviceGetEnforcedPowerLimit(self, card: FakeCard) -> int:
        return card.cap_mw

    def _nvmlDeviceGetTemperature(self, card: FakeCard, sensor: int) -> int:
        return card.celsius

    def _nvmlDeviceGetCurrentClocksEventReasons(self, card: FakeCard) -> int:
        return card.reasons

    def _nvmlDeviceGetTotalEccErrors(self, card: FakeCard, kind: int, counter: int) -> int:
        return card.ecc

    def _nvmlDeviceGetRemappedRows(self, card: FakeCard) -> tuple[int, int, int, int]:
        return card.rows

    def _nvmlDeviceGetPciInfo(self, card: FakeCard) -> Any:
        return SimpleNamespace(busId=card.bus.encode())

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, card: FakeCard) -> int:
        return card.pcie[0]

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, card: FakeCard) -> int:
        return card.pcie[1]

    def _nvmlDeviceGetCurrPcieLinkWidth(self, card: FakeCard) -> int:
        return card.pcie[2]

    def _nvmlDeviceGetMaxPcieLinkWidth(self, card: FakeCard) -> int:
        return card.pcie[3]

    def _nvmlDeviceGetNvLinkState(self, card: FakeCard, link: int) -> int:
        if link >= len(card.links):
            raise NVMLError(2)
        return card.links[link]

    def _nvmlDeviceGetComputeMode(self, card: FakeCard) -> int:
        return card.mode

    def _nvmlDeviceGetMigMode(self, card: FakeCard) -> list[int]:
        if card.mig is None:
            raise NVMLError(NOT_SUPPORTED)
        return [int(bool(card.mig)), 0]

    def _nvmlDeviceGetMaxMigDeviceCount(self, card: FakeCard) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, card: FakeCard, number: int) -> FakeCard:
        if card.mig is None or number >= len(card.mig):
            raise NVMLError(6)
        return card.mig[number]

    def _nvmlEventSetCreate(self) -> Any:
        return SimpleNamespace(cards=[])

    def _nvmlDeviceRegisterEvents(self, card: FakeCard, kinds: int, events: Any) -> None:
        events.cards.append(card)

    def _nvmlEventSetFree(self, events: Any) -> None:
        """Does nothing but count."""

    def _nvmlEventSetWait(self, events: Any, timeout_ms: int) -> Any:
        # After the last one the session ends. Otherwise a listener in a loop would use a whole
        # core.
        if not self.xids:
            raise NVMLError(1)
        card, code = self.xids.pop(0)
        if code == 0:
            raise NVMLError(TIMEOUT)
        return SimpleNamespace(device=card, eventType=8, eventData=code)
