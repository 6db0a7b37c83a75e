"""What AMD's driver reports about the GPUs, through amdsmi.

Source: `amdsmi` of ROCm 6.1 to 7.0 (`py-interface/amdsmi_interface.py`, `docs/reference/
amdsmi-py-api.md` of github.com/ROCm/amdsmi). Caveat: this was written from the documents and tested
with a double, never with an AMD GPU. Each call may fail separately, and a value that a GPU does not
report is the text "N/A": both become None. Check: `amd-smi monitor`, `amd-smi process`.

amdsmi is not a dependency of ddtop: it comes with ROCm, and must match the driver. sysfs has no one
form for processes, throttling and retired pages, and `amd-smi` is a process a second whose JSON
changes between releases. Units differ
between its releases. Power caps are in W or uW and temperatures in C or mC: numbers that are too
large for the larger unit are in the smaller one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ddtop.relay.gpus.driver import DriverError, LibraryDriver, Schedule, largest_processes
from ddtop.wire.records import AMD, Gpu, GpuProcess

_DEVICE = Path("/dev/kfd")
_MIB = 1 << 20
_LARGEST_WATTS, _LARGEST_CELSIUS = 100_000, 1_000
_THROTTLES = (
    ("active_prochot_thrm", "hw_thermal"),
    ("active_vr_thrm", "hw_thermal"),
    ("active_socket_thrm", "sw_thermal"),
    ("active_hbm_thrm", "sw_thermal"),
    ("active_ppt_pwr", "sw_power_cap"),
)
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
"""MT/s of one lane -> generation of PCIe."""
_PENDING, _UNRESERVABLE = 1, 2
"""`amdsmi_memory_page_status_t`: the page is retired at the next start, or cannot be."""
HOW_TO_INSTALL = "pip install /opt/rocm/share/amd_smi, in the Python of the ranks"
GPU_LOST_SAMPLES = 3
"""An AMD GPU that answered before counts as lost after this many samples without an answer."""


def driver_is_there() -> bool:
    """Whether this host (or container) has a GPU of AMD that can compute. It looks at one file."""
    return _DEVICE.exists()


def library() -> Any:
    """The amdsmi module. Call it only if there is a driver: it loads libamd_smi.so.

    Raises:
        DriverError: it cannot be imported.
    """
    try:
        import amdsmi
    # It raises KeyError without its library, and AttributeError with another release of it.
    except Exception as error:  # noqa: BLE001 - a foreign package may raise anything
        why = f"amdsmi cannot be imported ({type(error).__name__}: {error})"[:120]
        raise DriverError(f"{why}; {HOW_TO_INSTALL}") from None
    return amdsmi


class AmdDriver(LibraryDriver):
    """AMD's driver (amdgpu with its compute part, KFD)."""

    maker = "AMD"

    def __init__(
        self, there: Callable[[], bool] = driver_is_there, opened: Callable[[], Any] = library
    ) -> None:
        super().__init__(there, opened)

    def session(self, library: Any) -> AmdSmi:
        """A new session.

        Raises:
            DriverError: the driver does not answer.
        """
        return AmdSmi(library)


class AmdSmi:
    """A session with AMD's driver, for one thread. Each call may block for as long as the driver
    does.

    Raises:
        DriverError: there is no driver, or it does not answer.
    """

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        try:
            smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
        except smi.AmdSmiException as error:
            raise DriverError(f"the AMD driver cannot be asked ({_text(error)})") from None
        self._handles: list[Any] | None = None
        self._rare: dict[int, Gpu] = {}
        self._held: dict[int, tuple[GpuProcess, ...] | None] = {}
        self._throttle: dict[int, tuple[str, ...] | None] = {}
        self._silent: dict[int, int] = {}
        self._schedule = Schedule()
        self.driver = self._version()

    def close(self) -> None:
        with contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()

    def sample(self, now_s: float | None = None) -> tuple[Gpu, ...]:
        """All GPUs now, in the order of `amd-smi list`. `now_s`: monotonic seconds.

        Raises:
            DriverError: the session is gone (the driver was unloaded).
        """
        now_s = time.monotonic() if now_s is None else now_s
        processes, slowly = self._schedule.due(now_s)
        gpus = [
            self._gpu(index, handle, processes, slowly)
            for index, handle in enumerate(self._all_handles())
        ]
        # The parts of a divided GPU share an address, so it does not identify them.
        addresses = [gpu.pci for gpu in gpus]
        return tuple(
            gpu if addresses.count(gpu.pci) == 1 else msgspec.structs.replace(gpu, pci=None)
            for gpu in gpus
        )

    def _all_handles(self) -> list[Any]:
        if self._handles is None:
            try:
                self._handles = list(self._smi.amdsmi_get_processor_handles())
            except self._smi.AmdSmiException as error:
                raise DriverError(f"the AMD driver does not answer ({_text(error)})") from None
        return self._handles

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer of a call; None if the GPU, the driver or the library does not support it."""
        call = getattr(self._smi, f"amdsmi_get_{name}", None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._smi.AmdSmiException:
            return None

    def _fields(self, name: str, *arguments: Any) -> Callable[[str], Any]:
        """A function that reads the dictionary that a call returns; None for "N/A" and missing
        values."""
        found = self._ask(name, *arguments)
        fields = found if isinstance(found, dict) else {}
        return lambda key: None if fields.get(key) == "N/A" else fields.get(key)

    def _version(self) -> str | None:
        for handle in self._all_handles():
            version = self._fields("gpu_driver_info", handle)("driver_version")
            return str(version) if version else None
        return None

    def _gpu(self, index: int, handle: Any, processes: bool, slowly: bool) -> Gpu:
        if slowly or index not in self._rare:
            self._rare[index] = self._read_slowly(index, handle)
        activity = self._fields("gpu_activity", handle)
        memory = self._fields("gpu_vram_usage", handle)
        power = self._fields("power_info", handle)
        used, watts = _number(memory("vram_used")), self._watts(power)
        util = _number(activity("gfx_activity"))
        if used is None and watts is None and util is None:
            return self._without_answer(index)
        self._silent[index] = 0
        if processes or index not in self._held:
            self._held[index] = self._processes(handle)
            self._throttle[index] = self._throttles(handle)
        total = _number(memory("vram_total"))
        kinds = self._smi.AmdSmiClkType
        return msgspec.structs.replace(
            self._rare[index],
            util_ratio=util / 100 if util is not None else None,
            used_bytes=used * _MIB if used is not None else None,
            total_bytes=total * _MIB if total is not None else None,
            processes=self._held[index],
            sm_mhz=_number(self._fields("clock_info", handle, kinds.GFX)("clk")),
            power_watts=watts,
            celsius=self._celsius(handle),
            throttle=self._throttle[index],
        )

    def _without_answer(self, index: int) -> Gpu:
        """A GPU that has answered none of the calls that each GPU answers."""
        if index in self._silent:
            self._silent[index] += 1
        gpu = self._rare[index]
        return msgspec.structs.replace(gpu, lost=self._silent.get(index, 0) >= GPU_LOST_SAMPLES)

    def _watts(self, power: Callable[[str], Any]) -> float | None:
        for key in ("current_socket_power", "average_socket_power", "socket_power"):
            # MI300 reports the first value, older GPUs the second; the other one is 0 or "N/A".
            watts = _number(power(key))
            if watts:
                return float(watts)
        return None

    def _celsius(self, handle: Any) -> int | None:
        kinds, now = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric.CURRENT
        # MI300 has no edge sensor.
        for kind in (kinds.HOTSPOT, kinds.EDGE):
            found = _number(self._ask("temp_metric", handle, kind, now))
            if found:
                return found if found < _LARGEST_CELSIUS else found // 1000
        return None

    def _throttles(self, handle: Any) -> tuple[str, ...] | None:
        """The reasons why its clocks are lowered. MI300 and later report them; None for older
        GPUs."""
        status = self._fields("violation_status", handle)
        reasons = {word for key, word in _THROTTLES if status(key)}
        known = any(status(key) is not None for key, _ in _THROTTLES)
        return tuple(sorted(reasons)) if known else None

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        listed = self._ask("gpu_process_list", handle)
        if not isinstance(listed, list):
            return None
        found: dict[int, int | None] = {}
        for one in listed:
            # Before ROCm 6.2 these were handles, which need further calls.
            if not isinstance(one, dict) or not isinstance(one.get("pid"), int):
                return None
            usage = one.get("memory_usage")
            used = _number(usage.get("vram_mem")) if isinstance(usage, dict) else None
            found[one["pid"]] = used if used is not None else _number(one.get("mem"))
        return largest_processes(found)

    def _read_slowly(self, index: int, handle: Any) -> Gpu:
        kinds = self._smi.AmdSmiClkType
        cap = _number(self._fields("power_cap_info", handle)("power_cap"))
        errors = self._fields("gpu_total_ecc_count", handle)
        bus = self._ask("pcie_info", handle)
        static, metric = _parts(bus, "pcie_static"), _parts(bus, "pcie_metric")
        links, links_total = self._links(handle)
        pages = self._ask("gpu_bad_page_info", handle)
        states = [page.get("status") for page in pages] if isinstance(pages, list) else None
        return Gpu(
            index,
            self._uuid(index, handle),
            name=str(self._fields("gpu_asic_info", handle)("market_name") or ""),
            pci=_address(self._ask("gpu_device_bdf", handle)),
            sm_max_mhz=_number(self._fields("clock_info", handle, kinds.GFX)("max_clk")),
            power_cap_watts=_cap_watts(cap),
            ecc_uncorrected=_number(errors("uncorrectable_count")),
            remap_pending=_PENDING in states if states is not None else None,
            remap_failed=_UNRESERVABLE in states if states is not None else None,
            pcie_generation=_generation(metric.get("pcie_speed")),
            pcie_width=_number(metric.get("pcie_width")),
            pcie_width_max=_number(static.get("max_pcie_width")),
            nvlinks=links,
            nvlinks_total=links_total,
            vendor=AMD,
        )

    def _uuid(self, index: int, handle: Any) -> str:
        """The name that HIP knows it by (`GPU-` and 16 digits, ROCm 6.4), else that of amdsmi."""
        hip = self._fields("gpu_enumeration_info", handle)("hip_uuid")
        return str(hip or self._ask("gpu_device_uuid", handle) or f"unknown-{index}")

    def _links(self, handle: Any) -> tuple[int | None, int | None]:
        """(how many links between GPUs are up, of how many). Disabled ones do not count."""
        found = self._fields("gpu_xgmi_link_status", handle)("status")
        states = (
            [state for state in found if state in ("U", "D")] if isinstance(found, list) else []
        )
        return (states.count("U"), len(states)) if states else (None, None)


def _number(value: Any) -> int | None:
    """A count; None for "N/A", and for the largest numbers, which mean "not known"."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < (1 << 63)
    return int(value) if known and value not in (0xFFFF, 0xFFFFFFFF) else None


def _cap_watts(cap: int | None) -> float | None:
    if not cap:
        return None
    return float(cap) if cap < _LARGEST_WATTS else cap / 1e6


def _generation(speed: Any) -> int | None:
    """The generation of PCIe at that speed, in GT/s or MT/s."""
    if not isinstance(speed, (int, float)) or isinstance(speed, bool):
        return None
    return _GENERATIONS.get(int(speed if speed > 100 else speed * 1000))


def _parts(found: Any, key: str) -> dict[str, Any]:
    part = found.get(key) if isinstance(found, dict) else None
    return part if isinstance(part, dict) else {}


def _address(bdf: Any) -> str | None:
    """`0000:1b:00.0` as the address of a GPU is written elsewhere: `00000000:1b:00`."""
    if not isinstance(bdf, str) or bdf.count(":") != 2:
        return None
    domain, bus, rest = bdf.lower().split(":")
    return f"{domain:0>8}:{bus}:{rest.partition('.')[0]}"


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
