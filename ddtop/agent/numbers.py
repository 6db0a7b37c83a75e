"""How many calls a process group has counted, asked in the one way that every kind of group answers."""

from __future__ import annotations

from typing import Any


def number_of(group: Any) -> int | None:
    """The group's own sequence number, None where nothing of it counts.

    A group asks its default backend, and has none where the devices were named (`cpu:gloo`) and some module has registered a
    backend of its own, as torch's FSDP does when it is imported: then the backends of its devices are asked.
    """
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        found = [_of_device(group, device) for device in getattr(group, "_device_types", ())]
        return max((number for number in found if number is not None), default=None)


def _of_device(group: Any, device: Any) -> int | None:
    try:
        return int(group._get_backend(device)._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        return None
