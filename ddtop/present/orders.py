"""Actions that people requested on ranks, as a sentence for the events, `watch` and the report."""

from __future__ import annotations

from ddtop.present.text import clean
from ddtop.wire.records import Order

BY_MOST = 4
"""Requesters that are named."""


def order_text(order: Order) -> str:
    """`ada@node0 pid 4711 (controller, from 127.0.0.1) had SIGTERM sent to rank 3: ...`."""
    by = ", ".join(clean(one) for one in order.by[:BY_MOST]) or "somebody"
    if len(order.by) > BY_MOST:
        by += f" and {len(order.by) - BY_MOST} more"
    ranks = clean(f"ranks {order.ranks}" if order.ranks else "all ranks")
    what = {
        "stacks": "asked for stacks of",
        "native": "asked for native stacks of",
        "stacks-by-signal": "asked for stacks by signal of",
        "signal": "ordered a signal to",
        "mute": "muted",
    }
    ending = f": {'' if order.ok else 'refused, '}{clean(order.text)}" if order.text else ""
    return f"{by} {what.get(order.what, 'gave an order to')} {ranks}{ending}"
