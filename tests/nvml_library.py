"""A double of libnvidia-ml.so.1 below the real pynvml: C functions over the structs of nvml.h, so
that the true bindings run.

The structs are written as in the header, not as in pynvml: where the two differ, a test shows what
would be read.

    library = Library(FakeCard(used=60 * GIB))
    with loaded(library) as nv:
        Nvml(nv).sample()

    nv = fake_nvml(FakeCard(processes={4711: 60 * GIB}))
    nv.cards[0].raises["nvmlDeviceGetTemperature"] = NOT_SUPPORTED
"""

# The names are NVIDIA's.
# ruff: noqa: N801, N802, N815

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from tests.nvml import (
    INVALID,
    NO_DRIVER,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    TOO_SMALL,
    UNINITIALIZED,
    UNKNOWN,
    WRONG_VERSION,
    FakeCard,
)

RESERVED = 600 << 20
"""Memory that the driver keeps: a part of `used` in the older struct, not in the newer."""


class Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Memory_v2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        *((name, c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class ProcessInfo_v1(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("usedGpuMemory", c_ulonglong))


class ProcessInfo(ctypes.Structure):
    _fields_ = (*ProcessInfo_v1._fields_, ("gpuInstanceId", c_uint), ("computeInstanceId", c_uint))


class PciInfo(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", c_char * 16),
        *((name, c_uint) for name in ("domain", "bus", "device", "pciDeviceId", "pciSubSystemId")),
        ("busId", c_char * 32),
    )


class EventData(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p), ("eventType", c_ulonglong), ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint), ("computeInstanceId", c_uint),
    )  # fmt: skip


class Temperature(ctypes.Structure):
    _fields_ = (("version", c_uint), ("sensorType", c_uint), ("temperature", c_int))


_NUMBER, _LARGE = POINTER(c_uint), POINTER(c_ulonglong)

# Calls that return one number of one GPU: their C signature after the handle, and the value.
_TELLS: dict[str, tuple[tuple[Any, ...], Callable[..., int]]] = {
    "nvmlDeviceGetPowerUsage": ((_NUMBER,), lambda card: card.power_mw),
    "nvmlDeviceGetEnforcedPowerLimit": ((_NUMBER,), lambda card: card.cap_mw),
    "nvmlDeviceGetTemperature": ((c_uint, _NUMBER), lambda card, sensor: {0: card.celsius}[sensor]),
    "nvmlDeviceGetClockInfo": (
        (c_uint, _NUMBER),
        lambda card, kind: {1: card.sm_mhz, 2: card.memory_mhz}[kind],
    ),
    "nvmlDeviceGetMaxClockInfo": (
        (c_uint, _NUMBER),
        lambda card, kind: {1: card.sm_max_mhz, 2: 2619}[kind],
    ),
    "nvmlDeviceGetCurrentClocksEventReasons": ((_LARGE,), lambda card: card.reasons),
    "nvmlDeviceGetCurrentClocksThrottleReasons": ((_LARGE,), lambda card: card.reasons),
    "nvmlDeviceGetTotalEccErrors": (
        (c_uint, c_uint, _LARGE),
        lambda card, kind, counter: {(1, 0): card.ecc}[kind, counter],
    ),
    "nvmlDeviceGetCurrPcieLinkGeneration": ((_NUMBER,), lambda card: card.pcie[0]),
    "nvmlDeviceGetMaxPcieLinkGeneration": ((_NUMBER,), lambda card: card.pcie[1]),
    "nvmlDeviceGetCurrPcieLinkWidth": ((_NUMBER,), lambda card: card.pcie[2]),
    "nvmlDeviceGetMaxPcieLinkWidth": ((_NUMBER,), lambda card: card.pcie[3]),
    "nvmlDeviceGetComputeMode": ((_NUMBER,), lambda card: card.mode),
    "nvmlDeviceGetMaxMigDeviceCount": ((_NUMBER,), lambda card: 7),
}


class FailingError(Exception):
    """A call that returns this error code."""


class Library:
    """A stand-in for `CDLL("libnvidia-ml.so.1")`. `absent`: functions that this driver does not
    have yet, or no more.

    `loaded`: the kernel's module is there. `sessions`: inits without a shutdown. `answers`: while
    it is not set, no call returns. `broken`: what went wrong in the double itself; `loaded(...)`
    raises it at its end.
    """

    def __init__(
        self, *cards: FakeCard, absent: tuple[str, ...] = (), is_loaded: bool = True
    ) -> None:
        self.cards, self.absent, self.loaded = list(cards), set(absent), is_loaded
        self.sessions, self.calls, self.broken = 0, dict[str, int](), list[str]()
        self.answers = threading.Event()
        self.answers.set()
        self.xids: list[tuple[FakeCard, int]] = []
        self.heard = threading.Event()
        self._handles: dict[int, FakeCard] = {}
        self._functions: dict[str, Any] = {}
        self._unknown = ctypes.create_string_buffer(b"Unknown Error")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.absent:
            raise AttributeError(name)
        if name not in self._functions:
            self._functions[name] = self._made(name)
        return self._functions[name]

    def _made(self, name: str) -> Any:
        if name == "nvmlErrorString":
            return ctypes.CFUNCTYPE(c_void_p, c_int)(lambda code: ctypes.addressof(self._unknown))
        if name in _TELLS:
            types, tell = (c_void_p, *_TELLS[name][0]), self._telling(name)
        else:
            types, tell = getattr(_Calls, f"{name}_types", None), getattr(_Calls, name, None)
            if tell is None:
                raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] = self.calls.get(name, 0) + 1
            try:
                self.answers.wait()
                if name not in ("nvmlInitWithFlags", "nvmlInit_v2") and not self.sessions:
                    raise FailingError(UNINITIALIZED)
                if not self.loaded:
                    raise FailingError(NO_DRIVER)
                tell(self, *arguments)
            except FailingError as failing:
                return int(failing.args[0])
            except Exception:  # noqa: BLE001 - an error in a callback would be printed only
                self.broken.append(traceback.format_exc())
                return UNKNOWN
            return 0

        return ctypes.CFUNCTYPE(c_int, *types)(call)

    def _telling(self, name: str) -> Callable[..., None]:
        def tell(library: Library, handle: int, *arguments: Any) -> None:
            *given, told = arguments
            told[0] = _TELLS[name][1](library.card(handle, name), *given)

        return tell

    def card(self, handle: int, name: str) -> FakeCard:
        """The GPU of a handle, if this call on it succeeds."""
        card = self._handles[handle]
        for key in (name, "*"):
            if key in card.raises:
                raise FailingError(card.raises[key])
        return card

    def handle(self, card: FakeCard) -> int:
        """Handles like the driver's: an address without meaning for others."""
        known = next((n for n, one in self._handles.items() if one is card), None)
        number = (
            known if known is not None else 0x7F00_0000_0000 + 0x1000 * (1 + len(self._handles))
        )
        self._handles[number] = card
        return number


def _put(address: int, struct: ctypes.Structure) -> None:
    ctypes.memmove(address, ctypes.byref(struct), ctypes.sizeof(struct))


def _write(buffer: Any, length: int, text: str) -> None:
    if length <= len(text):
        raise FailingError(TOO_SMALL)
    ctypes.memmove(buffer, text.encode() + b"\0", len(text) + 1)


_TEXT = (c_void_p, c_void_p, c_uint)
_LIST = (c_void_p, _NUMBER, c_void_p)


class _Calls:
    """The functions that return more than one number. `NAME_types` is how C declares them."""

    nvmlInitWithFlags_types = (c_uint,)
    nvmlShutdown_types = ()
    nvmlSystemGetDriverVersion_types = (c_void_p, c_uint)
    nvmlDeviceGetCount_v2_types = (_NUMBER,)
    nvmlDeviceGetHandleByIndex_v2_types = (c_uint, c_void_p)
    nvmlDeviceGetUUID_types = nvmlDeviceGetName_types = _TEXT
    nvmlDeviceGetMemoryInfo_types = (c_void_p, c_void_p)
    nvmlDeviceGetMemoryInfo_v2_types = (c_void_p, c_void_p)
    nvmlDeviceGetUtilizationRates_types = (c_void_p, c_void_p)
    nvmlDeviceGetPciInfo_v3_types = (c_void_p, c_void_p)
    nvmlDeviceGetRemappedRows_types = (c_void_p, _NUMBER, _NUMBER, _NUMBER, _NUMBER)
    nvmlDeviceGetNvLinkState_types = (c_void_p, c_uint, _NUMBER)
    nvmlDeviceGetTemperatureV_types = (c_void_p, c_void_p)
    nvmlDeviceGetMigMode_types = (c_void_p, _NUMBER, _NUMBER)
    nvmlDeviceGetMigDeviceHandleByIndex_types = (c_void_p, c_uint, c_void_p)
    nvmlEventSetCreate_types = (c_void_p,)
    nvmlEventSetFree_types = (c_void_p,)
    nvmlDeviceRegisterEvents_types = (c_void_p, c_ulonglong, c_void_p)
    nvmlEventSetWait_types = nvmlEventSetWait_v2_types = (c_void_p, c_void_p, c_uint)

    def nvmlInitWithFlags(self: Library, flags: int) -> None:
        self.sessions += 1

    def nvmlShutdown(self: Library) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self: Library, buffer: int, length: int) -> None:
        _write(buffer, length, "580.65.06")

    def nvmlDeviceGetCount_v2(self: Library, count: Any) -> None:
        count[0] = len(self.cards)

    def nvmlDeviceGetHandleByIndex_v2(self: Library, index: int, told: int) -> None:
        if index >= len(self.cards):
            raise FailingError(INVALID)
        handle = self.handle(self.cards[index])
        self.card(handle, "nvmlDeviceGetHandleByIndex")
        c_void_p.from_address(told).value = handle

    def nvmlDeviceGetUUID(self: Library, handle: int, buffer: int, length: int) -> None:
        _write(buffer, length, self.card(handle, "nvmlDeviceGetUUID").uuid)

    def nvmlDeviceGetName(self: Library, handle: int, buffer: int, length: int) -> None:
        _write(buffer, length, self.card(handle, "nvmlDeviceGetName").name)

    def nvmlDeviceGetMemoryInfo(self: Library, handle: int, told: int) -> None:
        card = self.card(handle, "nvmlDeviceGetMemoryInfo")
        _put(told, Memory(card.total, card.total - card.used - RESERVED, card.used + RESERVED))

    def nvmlDeviceGetMemoryInfo_v2(self: Library, handle: int, told: int) -> None:
        card = self.card(handle, "nvmlDeviceGetMemoryInfo")
        version = c_uint.from_address(told).value
        if version != ctypes.sizeof(Memory_v2) | 2 << 24:
            raise FailingError(WRONG_VERSION)
        _put(
            told,
            Memory_v2(version, card.total, RESERVED, card.total - card.used - RESERVED, card.used),
        )

    def nvmlDeviceGetUtilizationRates(self: Library, handle: int, told: int) -> None:
        card = self.card(handle, "nvmlDeviceGetUtilizationRates")
        _put(told, Utilization(card.util, card.memory_util))

    def nvmlDeviceGetPciInfo_v3(self: Library, handle: int, told: int) -> None:
        card = self.card(handle, "nvmlDeviceGetPciInfo")
        _put(told, PciInfo(card.bus.encode()[4:], 0, 0x1B, 0, 0x2330_10DE, 0, card.bus.encode()))

    def nvmlDeviceGetRemappedRows(self: Library, handle: int, *told: Any) -> None:
        for one, number in zip(
            told, self.card(handle, "nvmlDeviceGetRemappedRows").rows, strict=True
        ):
            one[0] = number

    def nvmlDeviceGetNvLinkState(self: Library, handle: int, link: int, told: Any) -> None:
        card = self.card(handle, "nvmlDeviceGetNvLinkState")
        if link >= len(card.links):
            raise FailingError(NOT_SUPPORTED)
        told[0] = card.links[link]

    def nvmlDeviceGetTemperatureV(self: Library, handle: int, told: int) -> None:
        card = self.card(handle, "nvmlDeviceGetTemperatureV")
        asked = Temperature.from_address(told)
        if asked.version != ctypes.sizeof(Temperature) | 1 << 24 or asked.sensorType:
            raise FailingError(WRONG_VERSION)
        asked.temperature = card.celsius

    def nvmlDeviceGetMigMode(self: Library, handle: int, current: Any, pending: Any) -> None:
        card = self.card(handle, "nvmlDeviceGetMigMode")
        if card.mig is None:
            raise FailingError(NOT_SUPPORTED)
        current[0], pending[0] = int(bool(card.mig)), 0

    def nvmlDeviceGetMigDeviceHandleByIndex(
        self: Library, handle: int, number: int, told: int
    ) -> None:
        parts = self.card(handle, "nvmlDeviceGetMigDeviceHandleByIndex").mig or ()
        if number >= len(parts):
            raise FailingError(NOT_FOUND)
        c_void_p.from_address(told).value = self.handle(parts[number])

    def nvmlEventSetCreate(self: Library, told: int) -> None:
        c_void_p.from_address(told).value = 0x5E7

    def nvmlEventSetFree(self: Library, events: int) -> None:
        assert events == 0x5E7

    def nvmlDeviceRegisterEvents(self: Library, handle: int, kinds: int, events: int) -> None:
        assert (kinds, events) == (8, 0x5E7)
        self.card(handle, "nvmlDeviceRegisterEvents")

    def nvmlEventSetWait(self: Library, events: int, told: int, timeout_ms: int) -> None:
        if not self.xids:
            self.heard.set()
            threading.Event().wait(0.02)
            raise FailingError(TIMEOUT)
        card, code = self.xids.pop(0)
        if code < 0:
            raise FailingError(-code)
        _put(told, EventData(self.handle(card), 8, code, 0xFFFFFFFF, 0xFFFFFFFF))

    nvmlEventSetWait_v2 = nvmlEventSetWait


def _listing(
    name: str, of: Callable[[FakeCard], dict[int, int | None]], struct: Any
) -> Callable[..., None]:
    def tell(library: Library, handle: int, count: Any, told: int | None) -> None:
        held = list(of(library.card(handle, name)).items())
        room, count[0] = count[0], len(held)
        if room < len(held):
            raise FailingError(TOO_SMALL)
        if told is not None:
            array = (struct * room).from_address(told)
            for number, (pid, used) in enumerate(held):
                array[number] = struct(pid, (1 << 64) - 1 if used is None else used)

    return tell


for _kind, _held in (
    ("Compute", lambda card: card.processes),
    ("Graphics", lambda card: card.graphics),
):
    for _version, _struct in (("", ProcessInfo_v1), ("_v2", ProcessInfo), ("_v3", ProcessInfo)):
        _name = f"nvmlDeviceGet{_kind}RunningProcesses"
        setattr(_Calls, _name + _version, _listing(_name, _held, _struct))
        setattr(_Calls, f"{_name}{_version}_types", _LIST)


def fake_nvml(*cards: FakeCard, driver: bool = True) -> Any:
    """The real pynvml over a library of its own, with what tests ask of that library."""
    nv = _copy_over(Library(*cards, is_loaded=driver))
    for name in ("cards", "calls", "answers", "xids"):
        setattr(nv, name, getattr(nv.nvmlLib, name))
    return nv


@contextlib.contextmanager
def loaded(library: Library) -> Iterator[Any]:
    """The real pynvml with this library loaded."""
    yield _copy_over(library)
    assert library.broken == [], library.broken[0]


def _copy_over(library: Library) -> Any:
    """A copy of pynvml, which looks for its errors among the loaded modules, with this library."""
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    if spec.submodule_search_locations:
        spec = importlib.util.find_spec("pynvml.nvml")
    copy = importlib.util.spec_from_file_location("pynvml_of_a_test", spec.origin)
    sys.modules[copy.name] = nv = importlib.util.module_from_spec(copy)
    copy.loader.exec_module(nv)
    del sys.modules[copy.name]
    nv.nvmlLib = library
    return nv
