"""Whether the program is capturing a CUDA graph now, and how many graphs it has replayed.

If another thread queries a CUDA event, a capture in the default mode fails, so NCCL's entries are
not read during a capture. No function tells other threads about a capture, so the two methods that
begin and end one are wrapped once the first NCCL group exists. A replay runs collectives that
change no sequence number and have no entry, so it is counted as progress of the rank.

Source: `torch.cuda.graphs.CUDAGraph`; https://github.com/pytorch/pytorch/pull/104555. Captures that
C++ code begins by itself are not seen.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


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
        begin, end = getattr(graph, "capture_begin", None), getattr(graph, "capture_end", None)
        if begin is None or end is None:
            return
        graph.capture_begin, graph.capture_end = self._begins(begin), self._ends(end)
        self._watched = True
        replay = getattr(graph, "replay", None)
        if replay is not None:
            graph.replay = self._counts(replay)

    def _counts(self, original: Any) -> Any:
        @functools.wraps(original)
        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            # Several threads may lose a count: it only matters that the number changes.
            self.replays += 1
            return original(graph, *args, **kwargs)

        return replay

    def _begins(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._open.add(id(graph))
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._open.discard(id(graph))
                raise

        return capture_begin

    def _ends(self, original: Any) -> Any:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._open.discard(id(graph))

        return capture_end
