"""Ranks that use most of their groups more often than the others."""

from __future__ import annotations

import msgspec


def mostly(state, prefix):
    groups = tuple(
        (
            msgspec.structs.replace(one, enqueued=3 * one.enqueued, completed=3 * one.enqueued)
            if one.group.startswith(prefix)
            else one
        )
        for one in state.groups
    )
    return msgspec.structs.replace(state, groups=groups)
