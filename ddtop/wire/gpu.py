"""Facts about GPUs: what the driver, torch inside a rank, and NCCL report."""

from __future__ import annotations

import msgspec

THROTTLES = (
    "hw_slowdown",
    "hw_thermal",
    "hw_power_brake",
    "sw_thermal",
    "sw_power_cap",
    "sync_boost",
    "app_clocks",
)
"""Why a GPU's clocks are lowered; `Gpu.throttle` has some of these. Idle is not a reason."""


NVIDIA, AMD = "nvidia", "amd"
"""Makers of GPUs, `Gpu.vendor`."""


class GpuProcess(msgspec.Struct, frozen=True, array_like=True):
    """A process that has memory or a context on a GPU.

    `rank`: it is that rank of the job, or a child of it. `local`: a process with this pid is there
    for the relay; False: NVML reports pids of another namespace (a container), so the owner is not
    known. `orphan`: its parent has ended. `ours`: it does not belong to a rank, but the launcher of
    the job has started it.
    """

    pid: int
    used_bytes: int | None = None
    rank: int | None = None
    local: bool = True
    user: str | None = None
    command: str | None = None
    orphan: bool = False
    ours: bool = False


class Xid(msgspec.Struct, frozen=True, array_like=True):
    """An error that the driver reported while the relay listened. Check: `dmesg | grep -i xid`."""

    code: int
    unix_ns: int


class Gpu(msgspec.Struct, frozen=True, array_like=True):
    """One GPU, or one MIG instance (`parent` is the GPU's uuid then), as its driver has it: through
    NVML, or amdsmi where `vendor` is AMD.

    None: the driver does not report it.

    `index` is NVML's, in the order of PCI addresses, or amdsmi's. `util_ratio`: share of the last
    sample period in which some kernel ran, a kernel of NCCL that waits included. `throttle`: of
    THROTTLES. `ecc_uncorrected`: since the driver was loaded. `remapped_rows`: of memory, for
    uncorrectable errors (retired pages on AMD); `remap_failed`, `remap_pending` (a reset is
    wanted). `nvlinks`: active ones (XGMI on AMD), of `nvlinks_total`. `exclusive`: only one process
    may have a context, `prohibited`: none may. `lost`: it no longer answers.
    """

    index: int
    uuid: str
    util_ratio: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    name: str = ""
    pci: str | None = None
    processes: tuple[GpuProcess, ...] | None = None
    memory_util_ratio: float | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    memory_mhz: int | None = None
    memory_max_mhz: int | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    celsius: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int | None = None
    nvlinks_total: int | None = None
    xids: tuple[Xid, ...] = ()
    mig: bool | None = None
    parent: str | None = None
    exclusive: bool | None = None
    lost: bool = False
    prohibited: bool = False
    vendor: str = NVIDIA


class GpuWatch(msgspec.Struct, frozen=True, array_like=True):
    """The state of the relay's connection to the driver.

    `age_ms`: of the numbers in `HostState.gpus`; it grows while the driver does not answer. `why`:
    there is a driver, but it does not answer.
    """

    age_ms: int | None = None
    driver: str | None = None
    why: str | None = None
    cost_ns: int | None = None


class CudaState(msgspec.Struct, frozen=True, array_like=True):
    """What torch reports about its device in a rank, once the program has initialised CUDA.

    `uuid` as NVML has it but without the "GPU-" or "MIG-" before it, `pci` as `Gpu.pci`; `index` is
    torch's, among the visible ones. `retries`: how often memory had to be given back and asked for
    again (fragmentation), `ooms`: how often that failed. `gloo_bytes`: of parameters on a GPU whose
    gradients DistributedDataParallel averages through gloo, though torch has NCCL.
    """

    index: int
    uuid: str | None = None
    pci: str | None = None
    total_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    retries: int | None = None
    ooms: int | None = None
    nccl: str | None = None
    gloo_bytes: int | None = None


class RasRank(msgspec.Struct, frozen=True, array_like=True):
    """One rank of a communicator as NCCL's status service has it.

    `number` is its number in the communicator (-1: not reported), `host` the IP address of its
    bootstrap interface, never a name.

    `state`: ok, init, error, abort, finalize, behind, unresponsive, dead, or left (its process
    answers and is not in this communicator). `counts`: launches of each kind of collective; what a
    CUDA graph replays is not counted.
    """

    number: int
    host: str
    pid: int
    state: str = "ok"
    gpu: int | None = None
    counts: dict[str, int] = {}


class Communicator(msgspec.Struct, frozen=True, array_like=True):
    """One communicator of NCCL.

    `ranks`: all of its ranks where the answer was JSON; of the older text only those that differ.

    `usual`: how many launches of each kind most ranks have. `problems`: what the text says about
    ranks that it does not name.
    """

    name: str
    size: int
    ranks: tuple[RasRank, ...] = ()
    missing: int | None = None
    state: str = "ok"
    problems: tuple[str, ...] = ()
    usual: dict[str, int] = {}


class RasAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of NCCL's status service, or why there is none (`why`).

    `took_ms`: how long it took; `same_ms`: for how long the answer about all communicators has been
    the same.
    """

    communicators: tuple[Communicator, ...] = ()
    nccl: str | None = None
    why: str | None = None
    took_ms: int | None = None
    text: bool = False
    same_ms: int | None = None
