"""Before and after `mpi4py.MPI` is imported: that import alone runs MPI_Init, with the GIL held."""

from __future__ import annotations

import functools
import sys
import time
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.tracebacks import without_ours
from ddtop.agent.wrapper import replace
from ddtop.wire import mpi as layout
from ddtop.wire import page
from ddtop.wire.calls import MPI_CODES

FIRST_HELLO_S = 3.0
"""MPI_Init may block for ever with the GIL held. A rank that has not sent a Hello before is then
not seen at all. A Hello takes 0.1 s on an idle machine, and some seconds while many ranks start."""
HELLO_S = 0.2
_WRAPPED = "__ddtop_wrapped__"
_INIT = page.CALLS.index("MPI_Init")
_BACKENDS = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "intelmpi", "MVAPICH": "mvapich"}

_slot = -1


def before() -> None:
    """Called before the module runs, and with it MPI_Init, unless the program has switched that
    off."""
    global _slot
    from ddtop.agent import claim

    rc = getattr(sys.modules.get("mpi4py"), "rc", None)
    if current.get() is None:
        claim.entering_mpi()
    if getattr(rc, "initialize", True):
        _slot = current.enter_call(_INIT)
        _say_hello(FIRST_HELLO_S)


def _say_hello(within_s: float = HELLO_S) -> None:
    running = current.get()
    if running is not None:
        running.send_hello_now(within_s)


def failed() -> None:
    """Called if the import raised."""
    global _slot
    current.leave_call(_slot)
    _slot = -1


def wrap(module: ModuleType) -> None:
    """Called after the import: MPI is initialized, or the program will call Init itself."""
    global _slot
    current.leave_call(_slot)
    _slot = -1
    mpi: Any = module
    if mpi.Is_initialized():
        _begin(mpi)
        return
    for name in ("Init", "Init_thread"):
        replace(mpi, name, _entering, lambda slot, *_: _entered(slot, mpi))


def _entering(*_given: object) -> int:
    slot = current.enter_call(_INIT)
    guard.run("greeting", _say_hello, FIRST_HELLO_S)
    return slot


def _entered(slot: int, mpi: Any) -> None:
    current.leave_call(slot)
    guard.run("mpi", _begin, mpi)


def _begin(mpi: Any) -> None:
    """MPI is initialized: name the communicators, wrap the methods, add the probe."""
    world = mpi.COMM_WORLD
    size, rank = world.Get_size(), world.Get_rank()
    if size < 2 or hasattr(mpi, _WRAPPED):
        return
    from ddtop.agent import claim
    from ddtop.agent.mpi.lines import Lines
    from ddtop.agent.mpi.patch import install
    from ddtop.agent.mpi.probe import MpiProbe

    running = current.get()
    backend = _BACKENDS.get(mpi.get_vendor()[0], str(mpi.get_vendor()[0]).lower().replace(" ", ""))
    if running is None:
        claim.is_mpi_rank(rank, size, backend)
        running = current.get()
    if running is None or running.who.rank != rank:
        guard.off["mpi"] = (
            f"MPI says rank {rank}, the launcher said {running.who.rank if running else None}"
        )
        return
    part = running.page.mpi_part()
    lines = Lines(mpi, part, backend)
    lines.words[layout.WORLD_RANK_AT], lines.words[layout.WORLD_SIZE_AT] = rank, size
    lines.communicators.add_world()
    less = install(mpi, lines)
    if less is not None:
        guard.off["mpi patch"] = less
    setattr(mpi, _WRAPPED, True)
    _wrap_finalize(mpi, lines)
    running.backend = running.backend or backend
    running.who.world_size = size
    running.joined = True
    running.enters_group(rank, size)
    running.late_probes["mpi"] = MpiProbe(lines, part, running.limits)
    running.send_hello_now(HELLO_S)
    lines.communicators.tell = lambda: running.send_hello_now(HELLO_S / 4)


def _wrap_finalize(mpi: Any, lines: Any) -> None:
    original = mpi.Finalize
    code = MPI_CODES["Finalize"]

    @functools.wraps(original)
    def finalize(*args: Any, **kwargs: Any) -> Any:
        from ddtop.agent.mpi.wrappers import named

        lines.words[layout.FINALIZE_AT] = time.monotonic_ns()
        guard.run("greeting", _say_hello, HELLO_S / 4)
        with without_ours:
            call = named(lines, "Finalize", lambda _, *a, **k: original(*a, **k))
            return call(None, *args, **kwargs)

    if code:
        mpi.Finalize = finalize
