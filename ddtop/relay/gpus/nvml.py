"""What NVIDIA's driver reports about the GPUs, through NVML.

Every call may fail separately: a value that a GPU does not report is None. The library is an
argument, so that tests can use a double. Values that change every second are read in every sample,
processes every few samples, the states of links and memory rarely. A call costs 10 to 100 us, the
one for processes costs milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ddtop.relay.gpus.driver import DriverError, LibraryDriver, Schedule, largest_processes
from ddtop.wire.records import Gpu, GpuProcess

_BITS = {
    0x8: "hw_slowdown",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x20: "sw_thermal",
    0x4: "sw_power_cap",
    0x10: "sync_boost",
    0x2: "app_clocks",
}
_SM, _GPU_SENSOR, _UNCORRECTED, _SINCE_BOOT, _EXCLUSIVE, _PROHIBITED, _MEMORY_V2 = (
    1,
    0,
    1,
    0,
    3,
    2,
    0x2000028,
)
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _INVALID, _DRIVER_NOT_LOADED = 3, 4, 6, 2, 9
_LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND, _LOST, _RESET_REQUIRED = 12, 13, 15, 16
"""Numbers from nvml.h, which never change; older releases of the Python module lack some of the
names."""
_LINKS = 18
_DEVICES = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
NO_DRIVER, NOT_ANSWERING = "no NVIDIA driver", "the NVIDIA driver cannot be asked"


class NvmlError(DriverError):
    """The driver cannot be asked; the text says why."""


class _LostError(Exception):
    """The GPU no longer answers."""


def driver_is_there() -> bool:
    """Whether this host (or container) has an NVIDIA driver at all.

    It looks at three files and loads nothing.
    """
    return any(path.exists() for path in _DEVICES)


def library() -> Any:
    """The pynvml module. Call it only if there is a driver, because the module has eight thousand
    lines.

    Raises:
        NvmlError: it is not installed.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NvmlError(f"nvidia-ml-py is not installed ({error})") from None
    return pynvml


class NvidiaDriver(LibraryDriver):
    """NVIDIA's driver."""

    maker = "NVIDIA"

    def __init__(
        self, there: Callable[[], bool] = driver_is_there, opened: Callable[[], Any] = library
    ) -> None:
        super().__init__(there, opened)

    # NVML itself says that a GPU is lost.
    def session(self, library: Any) -> Nvml:
        """A new session.

        Raises:
            NvmlError: the driver does not answer, or it does not fit the library.
        """
        return Nvml(library)


class Nvml:
    """A session with the driver, for one thread. Each call may block for as long as the driver
    does.

    Raises:
        NvmlError: there is no driver, or it does not fit the library.
    """

    def __init__(self, nv: Any) -> None:
        self._nv = nv
        # The second error is not an NVMLError: an older driver lacks a function that the Python
        # module needs.
        self._errors = (nv.NVMLError, getattr(nv, "NVMLLibraryMismatchError", nv.NVMLError))
        try:
            nv.nvmlInit()
        except self._errors as error:
            absent = _code(error) in (_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND)
            raise NvmlError(f"{NO_DRIVER if absent else NOT_ANSWERING} ({error})") from None
        self._unsupported: set[tuple[str, str]] = set()
        self._lists_processes = not _misreads(nv)
        self._handles: dict[int, tuple[Any, str]] = {}
        self._seen: dict[int, Gpu] = {}
        self._rare: dict[str, Gpu] = {}
        self._held: dict[str, tuple[GpuProcess, ...] | None] = {}
        self._schedule = Schedule()
        driver = self._ask("", "nvmlSystemGetDriverVersion")
        self.driver = text(driver) if driver is not None else None

    def close(self) -> None:
        """End the session: only a new session can use a driver that was loaded again."""
        with contextlib.suppress(*self._errors):
            self._nv.nvmlShutdown()

    def sample(self, now_s: float | None = None) -> tuple[Gpu, ...]:
        """All GPUs and their MIG instances now. `now_s`: monotonic.

        Raises:
            NvmlError: the session is gone (the driver was unloaded).
        """
        now_s = time.monotonic() if now_s is None else now_s
        processes, slowly = self._schedule.due(now_s)
        if slowly:
            self._handles.clear()
        found: list[Gpu] = []
        for index in range(self._count()):
            try:
                gpus = self._gpu(index, processes, slowly)
            except _LostError:
                self._handles.pop(index, None)
                gpu = self._seen.get(index, Gpu(index, f"lost-{index}"))
                lost = Gpu(
                    index,
                    gpu.uuid,
                    name=gpu.name,
                    pci=gpu.pci,
                    total_bytes=gpu.total_bytes,
                    lost=True,
                )
                gpus = [lost]
            if gpus:
                self._seen[index] = gpus[0]
            found += gpus
        return tuple(found)

    def _count(self) -> int:
        try:
            return int(self._nv.nvmlDeviceGetCount())
        except self._errors as error:
            raise NvmlError(f"the driver does not answer ({error})") from None

    def _ask(self, uuid: str, name: str, *arguments: Any) -> Any:
        """The answer of a call; None where GPU, driver or library do not have it."""
        if (uuid, name) in self._unsupported:
            return None
        call = getattr(self._nv, name, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._errors as error:
            code = _code(error)
            if code in (_LOST, _RESET_REQUIRED):
                raise _LostError from None
            if code in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND) and uuid:
                self._unsupported.add((uuid, name))
            return None

    def _handle(self, index: int) -> tuple[Any, str] | None:
        """(handle, UUID) of a GPU.

        None if it does not belong to this container, or by its cgroup not to this job.
        """
        known = self._handles.get(index)
        if known is not None:
            return known
        try:
            handle = self._nv.nvmlDeviceGetHandleByIndex(index)
        except self._errors as error:
            if _code(error) in (_NO_PERMISSION, _NOT_FOUND, _INVALID, _NOT_SUPPORTED):
                return None
            # For a GPU that has fallen off the bus, drivers may also report "unknown error" here.
            raise _LostError from None
        uuid = text(self._ask("", "nvmlDeviceGetUUID", handle) or f"unknown-{index}")
        self._handles[index] = handle, uuid
        return handle, uuid

    def _gpu(self, index: int, processes: bool, slowly: bool) -> list[Gpu]:
        known = self._handle(index)
        if known is None:
            return []
        handle, uuid = known
        if slowly or uuid not in self._rare:
            self._rare[uuid] = self._read_slowly(index, uuid, handle)
        if processes or uuid not in self._held:
            self._held[uuid] = self._processes(uuid, handle)
        rare = self._rare[uuid]
        util = self._ask(uuid, "nvmlDeviceGetUtilizationRates", handle)
        used, total = self._memory(uuid, handle)
        power = self._ask(uuid, "nvmlDeviceGetPowerUsage", handle)
        gpu = msgspec.structs.replace(
            rare,
            util_ratio=util.gpu / 100 if util is not None else None,
            used_bytes=used,
            total_bytes=total,
            processes=self._held[uuid],
            sm_mhz=self._ask(uuid, "nvmlDeviceGetClockInfo", handle, _SM),
            power_watts=power / 1000 if power is not None else None,
            celsius=self._celsius(uuid, handle),
            throttle=self._throttle(uuid, handle),
        )
        return [gpu, *(self._instances(gpu, handle, processes) if rare.mig else ())]

    def _instances(self, gpu: Gpu, handle: Any, processes: bool) -> list[Gpu]:
        """The MIG instances of a GPU.

        They have separate memory; clocks and power are those of the GPU.
        """
        gpus = []
        for number in range(self._ask(gpu.uuid, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = self._ask("", "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if part is None:
                continue
            uuid = text(self._ask("", "nvmlDeviceGetUUID", part) or f"{gpu.uuid}/{number}")
            used, total = self._memory(uuid, part)
            if processes or uuid not in self._held:
                self._held[uuid] = self._processes(uuid, part)
            name = text(self._ask("", "nvmlDeviceGetName", part) or gpu.name)
            gpus.append(
                Gpu(
                    gpu.index,
                    uuid,
                    None,
                    used,
                    total,
                    name,
                    processes=self._held[uuid],
                    parent=gpu.uuid,
                    exclusive=False,
                )
            )
        return gpus

    def _memory(self, uuid: str, handle: Any) -> tuple[int | None, int | None]:
        """(used, total) as in nvidia-smi: memory that the driver reserves does not count as
        used."""
        newer = (uuid, "memory v2")
        memory = None
        if newer not in self._unsupported:
            try:
                memory = self._ask("", "nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
            except TypeError:
                # The old, unmaintained pynvml takes no version argument.
                self._unsupported.add(newer)
        if memory is None:
            memory = self._ask(uuid, "nvmlDeviceGetMemoryInfo", handle)
            if memory is not None:
                # An older driver has only the older struct.
                self._unsupported.add(newer)
        return (int(memory.used), int(memory.total)) if memory is not None else (None, None)

    def _celsius(self, uuid: str, handle: Any) -> int | None:
        found = self._ask(uuid, "nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
        if found is None:
            # Its replacement: a future driver may no longer have the older call.
            found = self._ask(uuid, "nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
        return int(found) if found is not None else None

    def _throttle(self, uuid: str, handle: Any) -> tuple[str, ...] | None:
        bits = self._ask(uuid, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._ask(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return (
            tuple(word for bit, word in _BITS.items() if bits & bit) if bits is not None else None
        )

    def _processes(self, uuid: str, handle: Any) -> tuple[GpuProcess, ...] | None:
        if not self._lists_processes:
            return None
        computing = self._list_processes(uuid, "nvmlDeviceGetComputeRunningProcesses", handle)
        if computing is None:
            return None
        found: dict[int, int | None] = {}
        for one in (
            *computing,
            *(self._list_processes(uuid, "nvmlDeviceGetGraphicsRunningProcesses", handle) or ()),
        ):
            used = one.usedGpuMemory
            used = int(used) if isinstance(used, int) and 0 <= used < 1 << 62 else None
            known = found.get(int(one.pid))
            found[int(one.pid)] = (
                max(known, used) if known is not None and used is not None else used or known
            )
        return largest_processes(found)

    def _list_processes(self, uuid: str, name: str, handle: Any) -> Any:
        """The processes; drivers before 510 know an older form of the call only."""
        found = self._ask(uuid, name, handle)
        return found if found is not None else self._ask(uuid, f"{name}_v2", handle)

    def _read_slowly(self, index: int, uuid: str, handle: Any) -> Gpu:
        rows = self._ask(uuid, "nvmlDeviceGetRemappedRows", handle)
        power = self._ask(uuid, "nvmlDeviceGetEnforcedPowerLimit", handle)
        mig = self._ask(uuid, "nvmlDeviceGetMigMode", handle)
        mode = self._ask(uuid, "nvmlDeviceGetComputeMode", handle)
        pci = self._ask(uuid, "nvmlDeviceGetPciInfo", handle)
        links, links_total = self._links(uuid, handle)
        return Gpu(
            index,
            uuid,
            name=text(self._ask(uuid, "nvmlDeviceGetName", handle) or ""),
            pci=text(pci.busId).lower().partition(".")[0] if pci is not None else None,
            sm_max_mhz=self._ask(uuid, "nvmlDeviceGetMaxClockInfo", handle, _SM),
            power_cap_watts=power / 1000 if power is not None else None,
            ecc_uncorrected=self._ask(
                uuid,
                "nvmlDeviceGetTotalEccErrors",
                handle,
                _UNCORRECTED,
                _SINCE_BOOT,
            ),
            remap_pending=bool(rows[2]) if rows is not None else None,
            remap_failed=bool(rows[3]) if rows is not None else None,
            pcie_generation=self._ask(uuid, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_width=self._ask(uuid, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            pcie_width_max=self._ask(uuid, "nvmlDeviceGetMaxPcieLinkWidth", handle),
            nvlinks=links,
            nvlinks_total=links_total,
            mig=bool(mig[0]) if mig is not None else None,
            exclusive=mode == _EXCLUSIVE if mode is not None else None,
            prohibited=mode == _PROHIBITED,
        )

    def _links(self, uuid: str, handle: Any) -> tuple[int | None, int | None]:
        if (uuid, "links") in self._unsupported:
            return None, None
        states = []
        for link in range(getattr(self._nv, "NVML_NVLINK_MAX_LINKS", _LINKS)):
            # For links that a GPU does not have, a driver reports "invalid argument" or "not
            # supported". This says nothing about the other links.
            state = self._ask("", "nvmlDeviceGetNvLinkState", handle, link)
            if state is not None:
                states.append(bool(state))
        if not states:
            self._unsupported.add((uuid, "links"))
        return (sum(states), len(states)) if states else (None, None)


def text(value: Any) -> str:
    """The text that a call returns: bytes in older releases of the Python module."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _misreads(nv: Any) -> bool:
    """Whether this nvidia-ml-py reads the list of processes wrongly.

    Release 12.535.77 uses a struct that only one driver had. From the second process on, its
    numbers are garbage.
    """
    struct = getattr(nv, "c_nvmlProcessInfo_t", None)
    return any(name == "usedGpuCcProtectedMemory" for name, *_ in getattr(struct, "_fields_", ()))


def _code(error: Exception) -> int:
    """NVML's number; an error of the Python module alone says that the driver does not know the
    call.
    """
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else _FUNCTION_NOT_FOUND
