"""A double of amdsmi: GPUs whose numbers a test sets, which answer as the documents of AMD say
(github.com/ROCm/amdsmi, `docs/reference/amdsmi-py-api.md`, `py-interface/amdsmi_interface.py`).

smi = FakeAmdSmi(FakeAmdGpu(used_mib=60_000, processes={4711: 60 << 30}))
smi.gpus[0].raises["amdsmi_get_violation_status"] = NOT_SUPPORTED
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

NOT_SUPPORTED, IO, DRIVER_NOT_LOADED, NO_PERMISSION = 2, 12, 34, 10


class AmdSmiException(Exception):  # noqa: N818 - AMD's name
    """The base of amdsmi's errors."""


class AmdSmiLibraryException(AmdSmiException):
    """An error with the library's code, whose text has several lines."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.err_code = code

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | AMDSMI_STATUS"


class _Init(IntEnum):
    INIT_AMD_GPUS = 2


class _Clock(IntEnum):
    GFX = 1
    MEM = 5


class _Sensor(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class _Temperature(IntEnum):
    CURRENT = 0


@dataclass
class FakeAmdGpu:
    """One GPU; the defaults are those of an MI300X at work. `processes`: bytes of VRAM by pid."""

    name: str = "AMD Instinct MI300X"
    hip_uuid: str = "GPU-5f3a1c2e4b6d8f00"
    bdf: str = "0000:1b:00.0"
    gfx: int | str = 98
    umc: int | str = 40
    used_mib: int = 41 << 10
    total_mib: int = 196_288
    socket_watts: int | str = 650
    average_watts: int | str = "N/A"
    cap: int = 750_000_000
    temperatures: dict[int, int] = field(default_factory=lambda: {_Sensor.HOTSPOT: 61})
    mhz: tuple[int, int] = (2100, 1300)
    max_mhz: tuple[int, int] = (2100, 1300)
    active: tuple[str, ...] = ()
    uncorrectable: int = 0
    pages: tuple[int, ...] = ()
    links: tuple[str, ...] = ("X", "U", "U", "U", "U", "U", "U", "U")
    processes: dict[int, int] = field(default_factory=dict)
    raises: dict[str, int] = field(default_factory=dict)


class FakeAmdSmi:
    """The module. `calls` counts its calls by name."""

    AmdSmiException = AmdSmiException
    AmdSmiInitFlags, AmdSmiClkType = _Init, _Clock
    AmdSmiTemperatureType, AmdSmiTemperatureMetric = _Sensor, _Temperature

    def __init__(self, *gpus: FakeAmdGpu, driver: bool = True) -> None:
        self.gpus, self.driver = list(gpus), driver
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_") or f"_{name}" not in dir(type(self)):
            raise AttributeError(name)
        function = getattr(self, f"_{name}")

        def call(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            first = arguments[0] if arguments else None
            if isinstance(first, FakeAmdGpu):
                for key in (name, "*"):
                    if key in first.raises:
                        raise AmdSmiLibraryException(first.raises[key])
            return function(*arguments)

        return call

    def _amdsmi_init(self, flag: _Init) -> None:
        assert flag is _Init.INIT_AMD_GPUS
        if not self.driver:
            raise AmdSmiLibraryException(DRIVER_NOT_LOADED)

    def _amdsmi_shut_down(self) -> None:
        """Counted only."""

    def _amdsmi_get_processor_handles(self) -> list[FakeAmdGpu]:
        return self.gpus

    def _amdsmi_get_gpu_driver_info(self, gpu: FakeAmdGpu) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}

    def _amdsmi_get_gpu_asic_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {"market_name": gpu.name, "vendor_id": "0x1002", "num_compute_units": 304}

    def _amdsmi_get_gpu_enumeration_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {"drm_render": 128, "drm_card": 0, "hip_id": 0, "hip_uuid": gpu.hip_uuid}

    def _amdsmi_get_gpu_device_uuid(self, gpu: FakeAmdGpu) -> str:
        return "d6ff74a1-0000-1000-805f-3a1c2e4b6d8f"

    def _amdsmi_get_gpu_device_bdf(self, gpu: FakeAmdGpu) -> str:
        return gpu.bdf

    def _amdsmi_get_gpu_activity(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {"gfx_activity": gpu.gfx, "umc_activity": gpu.umc, "mm_activity": "N/A"}

    def _amdsmi_get_gpu_vram_usage(self, gpu: FakeAmdGpu) -> dict[str, int]:
        return {"vram_total": gpu.total_mib, "vram_used": gpu.used_mib}

    def _amdsmi_get_power_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {
            "current_socket_power": gpu.socket_watts,
            "average_socket_power": gpu.average_watts,
            "gfx_voltage": "N/A",
            "power_limit": 750,
        }

    def _amdsmi_get_power_cap_info(self, gpu: FakeAmdGpu) -> dict[str, int]:
        return {"power_cap": gpu.cap, "dpm_cap": 0, "max_power_cap": gpu.cap}

    def _amdsmi_get_clock_info(self, gpu: FakeAmdGpu, kind: _Clock) -> dict[str, Any]:
        which = 0 if kind is _Clock.GFX else 1
        return {"clk": gpu.mhz[which], "min_clk": 132, "max_clk": gpu.max_mhz[which]}

    def _amdsmi_get_temp_metric(self, gpu: FakeAmdGpu, sensor: _Sensor, metric: int) -> int:
        if sensor not in gpu.temperatures:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        return gpu.temperatures[sensor]

    def _amdsmi_get_violation_status(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        names = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm")
        return {f"active_{name}": name in gpu.active for name in names}

    def _amdsmi_get_gpu_total_ecc_count(self, gpu: FakeAmdGpu) -> dict[str, int]:
        return {"correctable_count": 3, "uncorrectable_count": gpu.uncorrectable}

    def _amdsmi_get_gpu_bad_page_info(self, gpu: FakeAmdGpu) -> list[dict[str, int]]:
        return [{"value": at, "page_size": 4096, "status": one} for at, one in enumerate(gpu.pages)]

    def _amdsmi_get_pcie_info(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {
            "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000, "slot_type": "OAM"},
            "pcie_metric": {"pcie_width": 16, "pcie_speed": 32000},
        }

    def _amdsmi_get_gpu_xgmi_link_status(self, gpu: FakeAmdGpu) -> dict[str, Any]:
        return {"status": list(gpu.links), "total_links": len(gpu.links)}

    def _amdsmi_get_gpu_process_list(self, gpu: FakeAmdGpu) -> list[dict[str, Any]]:
        return [
            {
                "name": "N/A",
                "pid": pid,
                "mem": used,
                "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": used},
            }
            for pid, used in gpu.processes.items()
        ]
