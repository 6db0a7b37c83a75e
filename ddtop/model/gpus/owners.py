"""Which rank uses which GPU, from the ranks of a host and the GPUs that its relay reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddtop.model.state.gpu_facts import ENVIRONMENT, PROCESS, TORCH, Own
from ddtop.policy import Policy
from ddtop.wire.gpu import AMD, CudaState, Gpu, GpuProcess
from ddtop.wire.records import Hello


def own_gpu(hello: Hello, cuda: CudaState | None, gpus: Sequence[Gpu]) -> Own | None:
    """The rank's GPU among those of its host; None where it is not known."""
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


def without_numbers(gpu: Gpu) -> Gpu:
    """The GPU without its numbers: the driver has not answered for long, so they are old."""
    return Gpu(
        gpu.index,
        gpu.uuid,
        name=gpu.name,
        pci=gpu.pci,
        total_bytes=gpu.total_bytes,
        parent=gpu.parent,
        xids=gpu.xids,
    )


def refreshed(own: Own | None, gpus: Sequence[Gpu]) -> Own | None:
    """The GPU that was known before, with the newest numbers where there are any.

    A rank that once fails to report its GPU keeps it.
    """
    if own is None:
        return None
    now = next((gpu for gpu in gpus if gpu.uuid == own.gpu.uuid), None)
    return Own(now, own.by) if now is not None else own


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that select GPUs. HIP reads the first like the second; ROCr, below HIP, the third."""


def by_environment(hello: Hello, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU that CUDA_VISIBLE_DEVICES (or AMD's variables) and the local rank select, read as
    CUDA and HIP read them.
    """
    found = visible(hello.environment, gpus)
    if found is None:
        return None
    if len(found) == 1:
        return found[0]
    local = hello.local_rank
    return found[local] if local is not None and 0 <= local < len(found) else None


def visible(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Gpu] | None:
    """The GPUs that a program with this environment sees, in its order; None: not known.

    CUDA numbers the fastest GPU first and NVML numbers by PCI address. The two numberings agree
    only if all GPUs are of one model, or if CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    whole = [gpu for gpu in gpus if gpu.parent is None and not gpu.lost]
    if whole and all(gpu.vendor == AMD for gpu in whole):
        return _visible_to_hip(environment, whole)
    by_pci = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    same_order = len({gpu.name for gpu in whole}) <= 1 or by_pci
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return whole if same_order and not any(gpu.mig for gpu in whole) else None
    words = [word.strip() for word in text.split(",")]
    if words[0].startswith(("GPU-", "MIG-")):
        return _by_prefix(words, gpus)
    found = _by_number(words, whole)
    return found if same_order and not any(gpu.mig for gpu in found) else None


def _visible_to_hip(environment: Mapping[str, str], gpus: list[Gpu]) -> list[Gpu] | None:
    """The same for AMD: HIP's list selects among the GPUs that ROCr's list leaves.

    Source: ROCm, "GPU isolation techniques". ROCr and amdsmi are certain to use the same numbers
    only if all GPUs are of one model.
    """
    if len({gpu.name for gpu in gpus}) > 1:
        return None
    hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    for text in (environment.get("ROCR_VISIBLE_DEVICES"), hip):
        if text is None:
            continue
        words = [word.strip() for word in text.split(",")]
        by_name = words[0].startswith("GPU-")
        gpus = _by_prefix(words, gpus) if by_name else _by_number(words, gpus)
    return gpus


def _by_number(words: Iterable[str], whole: Sequence[Gpu]) -> list[Gpu]:
    found: list[Gpu] = []
    for word in words:
        # CUDA stops at the first word that is not a number, or not the number of a GPU.
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 6 else -1
        if not 0 <= number < len(whole):
            break
        if whole[number] in found:
            return []
        found.append(whole[number])
    return found


def _by_prefix(words: Iterable[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    found: list[Gpu] = []
    for word in words:
        fitting = [gpu for gpu in gpus if gpu.uuid.lower().startswith(word.lower())]
        # CUDA refuses a prefix that fits two GPUs, and the list ends there.
        if len(fitting) != 1:
            break
        if fitting[0] in found:
            return []
        found.append(fitting[0])
    return found


def bare(uuid: str) -> str:
    """The uuid in lower case without `GPU-` or `MIG-`, which torch leaves out."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def large(processes: Iterable[GpuProcess], gpu: Gpu, policy: Policy) -> tuple[GpuProcess, ...]:
    """The processes that hold a significant part of the GPU's memory.

    The context of a display server or of an idle notebook does not count.
    """
    least = policy.gpu_foreign_ratio * (gpu.total_bytes or 0)
    return tuple(
        [one for one in processes if one.used_bytes is not None and one.used_bytes >= least > 0]
    )
