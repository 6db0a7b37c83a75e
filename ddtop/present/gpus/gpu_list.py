"""The list of GPUs of a host, to choose one, and `gpus --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddtop.policy import Policy
from ddtop.present.table.layout import Field, table_for
from ddtop.present.text import Line, Span, clean
from ddtop.wire.gpu import AMD, Gpu, GpuProcess
from ddtop.words import units

GPUS_SCHEMA = "ddtop.gpus/1"
FIELDS = (
    Field("gpu", "GPU", 4),
    Field("name", "NAME", 10, grows=1, most=26, rank=2),
    Field("util", "UTIL", 4, right=True),
    Field("memory", "MEMORY", 11, right=True),
    Field("power", "POWER", 9, right=True, rank=3),
    Field("temp", "TEMP", 4, right=True, rank=4),
    Field("held", "HELD BY", 26, grows=4),
)


def is_free(gpu: Gpu, policy: Policy) -> bool:
    """No process computes on it and its memory is free. A divided GPU (MIG) counts by its parts."""
    if gpu.lost or gpu.mig or gpu.prohibited or gpu.used_bytes is None or not gpu.total_bytes:
        return False
    if gpu.exclusive and gpu.processes:
        return False
    most = policy.gpu_free_ratio
    return gpu.used_bytes <= most * gpu.total_bytes and (gpu.util_ratio or 0.0) <= most


def gpus_json(gpus: Sequence[Gpu], driver: str | None, policy: Policy) -> dict[str, Any]:
    """All GPUs with their processes; null for values that the driver does not report."""
    return {
        "schema": GPUS_SCHEMA,
        "driver": driver,
        "gpus": [_gpu_json(gpu, policy) for gpu in gpus],
    }


def _gpu_json(gpu: Gpu, policy: Policy) -> dict[str, Any]:
    known = gpu.used_bytes is not None and gpu.total_bytes is not None
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "free": is_free(gpu, policy),
        "free_bytes": max(0, (gpu.total_bytes or 0) - (gpu.used_bytes or 0)) if known else None,
        "total_bytes": gpu.total_bytes,
        "util_ratio": gpu.util_ratio,
        "power_watts": gpu.power_watts,
        "celsius": gpu.celsius,
        "exclusive": gpu.exclusive,
        "prohibited": gpu.prohibited,
        "mig_parent": gpu.parent,
        "lost": gpu.lost,
        "vendor": gpu.vendor,
        "processes": None
        if gpu.processes is None
        else [
            {
                "pid": one.pid,
                "local": one.local,
                "user": one.user,
                "used_bytes": one.used_bytes,
                "command": one.command,
            }
            for one in gpu.processes
        ],
    }


def gpus_lines(gpus: Sequence[Gpu], driver: str | None, width: int, policy: Policy) -> list[str]:
    """A sentence, one row per GPU and one for each further process, and how to start on the free
    ones."""
    table = table_for(FIELDS, width)
    lines = [headline(gpus, driver, policy), "", _text(table.titles())]
    for gpu in gpus:
        first, *more = _held(gpu, policy)
        lines.append(_text(table.line(_cells(gpu, first))))
        empty: dict[str, Span] = {field.key: ("", "") for field in FIELDS}
        lines += [_text(table.line({**empty, "held": (text, "")})) for text in more]
    free = [gpu for gpu in gpus if is_free(gpu, policy)]
    if free:
        names = [gpu.uuid if gpu.parent else str(gpu.index) for gpu in free]
        variables = "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES"
        if free[0].vendor == AMD:
            # UUIDs are the same in every numbering.
            named = all(gpu.uuid.startswith("GPU-") for gpu in free)
            names = [gpu.uuid for gpu in free] if named else names
            variables = "ROCR_VISIBLE_DEVICES"
        lines += ["", f"{variables}={','.join(names)}"]
    return [line.rstrip() for line in lines]


def headline(gpus: Sequence[Gpu], driver: str | None, policy: Policy) -> str:
    """`2 of 8 GPUs are free (driver 580.65.06)`; GPUs that are divided count by their parts."""
    parts = [gpu for gpu in gpus if not gpu.mig]
    free = sum(1 for gpu in parts if is_free(gpu, policy))
    text = (
        f"{free} of {units.plural(len(parts), 'GPU')} {'is' if free == 1 else 'are'} free"
        if parts
        else "no GPU"
    )
    return f"{text} (driver {clean(driver)})" if driver else text


def process_text(one: GpuProcess) -> str:
    """`ada 4711 python train.py 40.0G`; only the pid for a process that is not visible."""
    if not one.local:
        return f"pid {one.pid} outside of this container {units.size(one.used_bytes)}"
    command = clean(one.command or "")
    words = [
        clean(one.user or ""),
        str(one.pid),
        command,
        units.size(one.used_bytes) if one.used_bytes else "",
    ]
    return " ".join(word for word in words if word)


def _held(gpu: Gpu, policy: Policy) -> list[str]:
    if gpu.lost:
        return ["lost: it no longer answers"]
    if gpu.prohibited and not gpu.processes:
        return ["nobody may: compute mode prohibited"]
    if gpu.processes:
        return [process_text(one) for one in gpu.processes]
    if is_free(gpu, policy):
        return ["free"]
    if gpu.mig:
        return ["divided (MIG)"]
    return ["nobody that can be seen" if gpu.processes is not None else "the driver does not say"]


def _cells(gpu: Gpu, held: str) -> dict[str, Span]:
    memory = (
        f"{units.size(gpu.used_bytes)}/{units.size(gpu.total_bytes)}"
        if gpu.total_bytes
        else units.NOT_MEASURED
    )
    cap = f"/{gpu.power_cap_watts:.0f}W" if gpu.power_cap_watts is not None else "W"
    return {
        "gpu": (f"{gpu.index}.m" if gpu.parent else str(gpu.index), ""),
        "name": (clean(gpu.name), ""),
        "util": (units.percent(gpu.util_ratio), ""),
        "memory": (memory, ""),
        "power": (
            units.NOT_MEASURED if gpu.power_watts is None else f"{gpu.power_watts:.0f}{cap}",
            "",
        ),
        "temp": (units.NOT_MEASURED if gpu.celsius is None else f"{gpu.celsius}C", ""),
        "held": (held, ""),
    }


def _text(line: Line) -> str:
    return "".join(text for text, _ in line)
