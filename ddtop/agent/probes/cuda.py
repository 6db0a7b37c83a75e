"""What torch reports of the rank's own GPU, once the program has initialised CUDA.

Source: `torch._C._cuda_memoryStats`, the numbers of torch's allocator. Caveat: torch holds the lock
of these numbers while it asks the driver for memory, and reads them with the GIL held (2.13,
`THCPModule_memoryStats`). If an allocation blocks, such a read would freeze the interpreter. So the
numbers are read only while the main thread makes progress: it is at another line or in another step
than at the last sample, and no collective is stuck. Nothing here may initialise CUDA for the
program. Check: `torch.cuda.memory_stats()` in the program.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import msgspec

from ddtop.agent.notes import GradientNotes
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.rank import Rank
from ddtop.agent.wrapper import replace, replace_if_there
from ddtop.wire import page as layout
from ddtop.wire.records import CudaState, RankState

EVERY_NS = 2_000_000_000


class Cuda(Probe):
    """`state`: what was read last."""

    name = "cuda"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.state: CudaState | None = None
        self._read_at = -EVERY_NS
        self._mark: tuple[object, ...] = ()

    def fields(self, tick: Tick) -> Fields:
        """Sample here: once a second is enough, because the numbers are read every two seconds."""
        rank, seen = self._rank, tick.seen
        iteration = rank.page.words[layout.ITERATION_AT]
        mark = (seen.frame_id, seen.line, iteration) if seen is not None else ()
        gloo_bytes = rank.notes[GradientNotes].gloo_bytes
        self.look(time.monotonic_ns(), mark, tick.stuck, rank.who.local_rank, gloo_bytes)
        tick.gpu = self.state.index if self.state is not None else None
        return partial(RankState, cuda=self.state)

    def look(
        self,
        now: int,
        mark: tuple[object, ...],
        stuck: bool,
        local_rank: int | None,
        gloo_bytes: int | None = None,
    ) -> None:
        """Read the GPU and its memory, if that is safe now.

        `mark`: where the main thread is. `stuck`: a collective is stuck. `gloo_bytes`: size of the
        gradients that use gloo, reported with it.
        """
        moves, self._mark = bool(mark) and mark != self._mark, mark
        if not moves or stuck or now - self._read_at < EVERY_NS:
            return
        torch, cuda = sys.modules.get("torch"), sys.modules.get("torch.cuda")
        if torch is None or not getattr(cuda, "_initialized", False) or not cuda.is_initialized():  # type: ignore[union-attr]
            return
        self._read_at = now
        stats = {
            index: _stats(torch, index) for index in range(int(torch._C._cuda_getDeviceCount()))
        }
        index = _own_device(stats, local_rank)
        if index is None:
            return
        if self.state is None or self.state.index != index:
            self.state = _describe(torch, index)
        found = stats[index]
        self.state = msgspec.structs.replace(
            self.state,
            allocated_bytes=_number(found, "allocated_bytes", "all", "current"),
            reserved_bytes=_number(found, "reserved_bytes", "all", "current"),
            allocated_peak_bytes=_number(found, "allocated_bytes", "all", "peak"),
            retries=_number(found, "num_alloc_retries"),
            ooms=_number(found, "num_ooms"),
            gloo_bytes=gloo_bytes,
        )


def _stats(torch: Any, index: int) -> dict[str, Any]:
    # Not through torch.cuda: a call without an index would initialise CUDA, and the agent's thread
    # has device 0.
    found = torch._C._cuda_memoryStats(index)
    return found if isinstance(found, dict) else {}


def _own_device(stats: dict[int, dict[str, Any]], local_rank: int | None) -> int | None:
    """The device on which this process has most memory; without any memory, the device of its local
    rank."""
    held = {
        index: _number(found, "reserved_bytes", "all", "current") or 0
        for index, found in stats.items()
    }
    if any(held.values()):
        return max(held, key=lambda index: held[index])
    return local_rank if local_rank in stats else None


def _number(found: dict[str, Any], *keys: str) -> int | None:
    value: Any = found
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


def _describe(torch: Any, index: int) -> CudaState:
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    bus, device = (
        getattr(properties, "pci_bus_id", None),
        getattr(properties, "pci_device_id", None),
    )
    pci = None
    if isinstance(bus, int) and isinstance(device, int):
        pci = f"{getattr(properties, 'pci_domain_id', 0):08x}:{bus:02x}:{device:02x}"
    return CudaState(
        index,
        str(uuid).lower() if uuid is not None else None,
        pci,
        nccl=_nccl(torch),
    )


def _nccl(torch: Any) -> str | None:
    """NCCL's version as torch was built with or has loaded it, `2.27.5`."""
    ask = getattr(torch._C, "_nccl_version", None)
    number = ask() if ask is not None else None
    if isinstance(number, int) and number > 0:
        # Packed as torch.cuda.nccl.version() unpacks it.
        return f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}"
    return None


# -- Whether the program is capturing a CUDA graph now, and how many graphs it has replayed
#
# If another thread queries a CUDA event, a capture in the default mode fails, so NCCL's entries are
# not read during a capture. No function tells other threads about a capture, so the two methods
# that begin and end one are wrapped once the first NCCL group exists. A replay runs collectives
# that change no sequence number and have no entry, so it is counted as progress of the rank.
#
# Source: `torch.cuda.graphs.CUDAGraph`; https://github.com/pytorch/pytorch/pull/104555. Captures
# that C++ code begins by itself are not seen.


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
        replace_if_there(graph, "replay", self._counts)

    def _counts(self, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # Several threads may lose a count: it only matters that the number changes.
        self.replays += 1

    def _begins(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> int:
        self._open.add(id(args[0]))
        return id(args[0])

    def _ends(self, graph_id: int, over: object = True) -> None:
        if over:
            self._open.discard(graph_id)
