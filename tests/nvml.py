"""GPUs that tests make up, and codes of NVML's errors. The driver that tells of them is
`tests.nvml_library`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 1 << 30
NOT_SUPPORTED, FUNCTION_NOT_FOUND, TIMEOUT, IS_LOST, NO_DRIVER = 3, 13, 10, 15, 9
UNINITIALIZED, INVALID, NO_PERMISSION, NOT_FOUND, TOO_SMALL = 1, 2, 4, 6, 7
WRONG_VERSION, UNKNOWN = 25, 999


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
