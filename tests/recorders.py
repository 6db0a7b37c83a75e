"""What the installed torch records."""

from __future__ import annotations


def records_gloo() -> bool:
    """Whether its flight recorder has gloo's collectives, which it has from torch 2.7 on."""
    try:
        from torch._C import _distributed_c10d as native
    except ImportError:
        return False
    return hasattr(native, "_dump_fr_trace_json")
