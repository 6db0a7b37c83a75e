"""Whether a disk or a memory is full, and sizes as text."""

from __future__ import annotations

from ddtop.policy import Policy


def is_full(free_bytes: int | None, total_bytes: int | None, policy: Policy) -> bool:
    """Whether the rest of a disk is small."""
    return at_most(free_bytes, total_bytes, policy.disk_full_ratio, policy.disk_full_bytes)


def at_most(left: int | None, total: int | None, ratio: float, most_bytes: float) -> bool:
    """Whether the rest is small, both as a share and as an amount."""
    return left is not None and bool(total) and left <= min(ratio * (total or 0), most_bytes)


def size_text(value: int | None) -> str:
    """`3.8 MiB`."""
    if value is None:
        return "?"
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if value >= 1 << power:
            return f"{value / (1 << power):.1f} {unit}"
    return f"{value / 1024:.0f} KiB"
