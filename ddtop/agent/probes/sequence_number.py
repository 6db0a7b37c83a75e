"""The sequence number of a process group, for every kind of group."""

from __future__ import annotations

from typing import Any

from ddtop.wire.rank_runs import BESIDE


def numbers_of(name: str, group: Any) -> dict[str, int | None]:
    """The sequence number of the group by its name, and that of gloo if the group also has gloo
    (`cpu:gloo,cuda:nccl`).

    Each backend of a group counts for itself: object collectives go through gloo while gradients go
    through NCCL.
    """
    found = {name: number_of(group)}
    if not _is_nccl(group):
        return found
    for device in getattr(group, "_device_types", ()):
        beside = _of_device(group, device, "gloo")
        if beside is not None:
            found[name + BESIDE] = beside
    return found


def number_of(group: Any) -> int | None:
    """The group's own sequence number; None if it has none.

    A group asks its default backend, and has none where the devices were named (`cpu:gloo`) and
    some module has registered a backend of its own, as torch's FSDP does when it is imported: then
    the backends of its devices are asked.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        found = [_of_device(group, device) for device in getattr(group, "_device_types", ())]
        return max((number for number in found if number is not None), default=None)


def _is_nccl(group: Any) -> bool:
    try:
        # "nccl2" is one of torch 2.14 and later.
        return str(group.name()).startswith("nccl")
    except (RuntimeError, AttributeError, TypeError):
        return False


def _of_device(group: Any, device: Any, backend: str | None = None) -> int | None:
    try:
        asked = group._get_backend(device)
        if backend is not None and asked.name() != backend:
            return None
        return int(asked._get_sequence_number_for_group())
    except (RuntimeError, AttributeError, TypeError):
        return None
