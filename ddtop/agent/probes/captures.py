"""Whether the program is capturing a CUDA graph now, and how many graphs it has replayed.

If another thread queries a CUDA event, a capture in the default mode fails, so NCCL's entries are
not read during a capture. No function tells other threads about a capture, so the two methods that
begin and end one are wrapped once the first NCCL group exists. A replay runs collectives that
change no sequence number and have no entry, so it is counted as progress of the rank.

Source: `torch.cuda.graphs.CUDAGraph`; https://github.com/pytorch/pytorch/pull/104555. Captures that
C++ code begins by itself are not seen.
"""

from __future__ import annotations

import sys
from typing import Any

from ddtop.agent.wrapper import replace


class Captures:
    """Counts the captures that are open in this process.

    `replays`: how many graphs were replayed since `watch`.
    """

    def __init__(self) -> None:
        self.replays = 0
        self._open: set[int] = set()
        self._watched = False

    @property
    def may_be_open(self) -> bool:
        """A capture is open, or this cannot be known."""
        return bool(self._open) or not self._watched

    def watch(self) -> None:
        """Wrap the methods. It may be called several times."""
        graph = getattr(sys.modules.get("torch.cuda.graphs"), "CUDAGraph", None)
        if self._watched or graph is None:
            return
        if not hasattr(graph, "capture_begin") or not hasattr(graph, "capture_end"):
            return
        replace(graph, "capture_begin", self._begins, lambda one, _, error: self._ends(one, error))
        replace(graph, "capture_end", lambda args, _: id(args[0]), lambda one, *_: self._ends(one))
        self._watched = True
        if hasattr(graph, "replay"):
            replace(graph, "replay", self._counts)

    def _counts(self, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # Several threads may lose a count: it only matters that the number changes.
        self.replays += 1

    def _begins(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> int:
        self._open.add(id(args[0]))
        return id(args[0])

    def _ends(self, graph_id: int, over: object = True) -> None:
        if over:
            self._open.discard(graph_id)
