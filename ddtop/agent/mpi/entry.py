"""Before and after `mpi4py.MPI` is imported: that import alone runs MPI_Init, with the GIL held."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.mpi import wrappers
from ddtop.agent.mpi.communicators import OPENINGS
from ddtop.agent.mpi.wrappers import Lines, PeerAt, by_name, waiting
from ddtop.agent.tracebacks import without_ours
from ddtop.agent.wrapper import replace
from ddtop.wire import mpi as layout
from ddtop.wire import page

FIRST_HELLO_S = 3.0
"""MPI_Init may block for ever with the GIL held. A rank that has not sent a Hello before is then
not seen at all. A Hello takes 0.1 s on an idle machine, and some seconds while many ranks start."""
HELLO_S, _WRAPPED = 0.2, "__ddtop_wrapped__"
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
        _say_hello(FIRST_HELLO_S, delivered=True)


def _say_hello(within_s: float, delivered: bool = False) -> None:
    running = current.get()
    if running is not None:
        running.send_hello_now(within_s, delivered)


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
        replace(mpi, name, _before_init, lambda slot, *_: _after_init(slot, mpi))


def _before_init(*_given: object) -> int:
    slot = current.enter_call(_INIT)
    guard.run("greeting", _say_hello, FIRST_HELLO_S, True)
    return slot


def _after_init(slot: int, mpi: Any) -> None:
    current.leave_call(slot)
    guard.run("mpi", _begin, mpi)


def _begin(mpi: Any) -> None:
    """MPI is initialized: name the communicators, wrap the methods, add the probe."""
    world = mpi.COMM_WORLD
    size, rank = world.Get_size(), world.Get_rank()
    if size < 2 or hasattr(mpi, _WRAPPED):
        return
    from ddtop.agent import claim
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
    running.who.world_size, running.joined = size, True
    running.enters_group(rank, size)
    running.late_probes["mpi"] = MpiProbe(lines, part, running.limits)
    running.send_hello_now(HELLO_S)
    lines.communicators.tell = lambda: running.send_hello_now(HELLO_S / 4)


def _wrap_finalize(mpi: Any, lines: Any) -> None:
    original = mpi.Finalize

    @functools.wraps(original)
    def finalize(*args: Any, **kwargs: Any) -> Any:
        lines.words[layout.FINALIZE_AT] = time.monotonic_ns()
        guard.run("greeting", _say_hello, HELLO_S / 4)
        with without_ours:
            call = waiting(lines, by_name(lines), "Finalize", lambda _, *a, **k: original(*a, **k))
            return call(None, *args, **kwargs)

    mpi.Finalize = finalize


# -- Installs the wrappers for all communicators and requests
#
# mpi4py's types are immutable to `setattr`, but their method tables are ordinary dicts, reachable
# through the proxy `type.__dict__`. Every object sees a method that is replaced there. Types,
# isinstance and pickles stay as they are. This is a detail of CPython, so it is tried on one
# harmless method first. If it does not work, COMM_WORLD becomes an instance of a subclass. Its Dups
# have that class too, its Splits do not.


_CLASSES = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
_PROBED = "Is_inter"


class TableError(RuntimeError):
    """The method table of a type cannot be reached, or a method in it is not the one that runs."""


def table_of(kind: type) -> dict[str, Any]:
    """The dict in which the type keeps its methods.

    Raises:
        TableError: the dict cannot be reached.
    """
    found = [
        get_referent
        for get_referent in gc.get_referents(kind.__dict__)
        if type(get_referent) is dict
    ]
    if len(found) != 1:
        raise TableError(f"no method table behind {kind.__name__}.__dict__")
    return found[0]


def replace_methods(kind: type, name: str, new: Any) -> None:
    """Put another method into the type's table."""
    table_of(kind)[name] = new
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def self_test(mpi: Any) -> None:
    """Replace one method that does nothing, call it on two objects, and put it back.

    Raises:
        TableError: the replacement was not called, or the original could not be restored.
    """
    original = table_of(mpi.Comm)[_PROBED]
    seen: list[object] = []

    def probe(self: Any) -> Any:
        seen.append(self)
        return original(self)

    replace_methods(mpi.Comm, _PROBED, probe)
    try:
        answers = [mpi.COMM_SELF.Is_inter(), mpi.COMM_WORLD.Is_inter()]
    finally:
        replace_methods(mpi.Comm, _PROBED, original)
    mpi.COMM_SELF.Is_inter()
    if len(seen) != 2 or any(answers):
        raise TableError(f"a replaced method was called {len(seen)} times of 2")


def install(mpi: Any, lines: Lines) -> str | None:
    """Wrap all methods. Returns a sentence about what could not be wrapped; None if all is
    wrapped."""
    try:
        self_test(mpi)
    except Exception as error:  # noqa: BLE001 - another Python, another mpi4py: use the subclass
        _by_subclass(mpi, lines)
        return f"method tables cannot be replaced ({error}): only COMM_WORLD and its Dups are seen"
    makers = _wrappers(mpi, lines)
    for kind_name in (*_CLASSES, "Request", "Prequest", "Win", "File"):
        kind = getattr(mpi, kind_name, None)
        if kind is not None:
            _wrap_class(kind, kind_name, makers)
    return None


Make = Callable[[Any], Any]


def _wrap_class(kind: type, kind_name: str, makers: dict[tuple[str, str], Make]) -> None:
    table, changed = table_of(kind), False
    for (where, name), make in makers.items():
        original = table.get(name)
        if original is None or where not in (kind_name, "*comm" if kind_name in _CLASSES else ""):
            continue
        if isinstance(original, classmethod):
            table[name] = classmethod(make(original.__func__))
        else:
            table[name] = make(original)
        changed = True
    if changed:
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _wrappers(mpi: Any, lines: Lines) -> dict[tuple[str, str], Make]:
    """(class, or any of communicators, and method) -> what makes the wrapper of the original."""
    makers: dict[tuple[str, str], Make] = {}

    def put(where: str, names: Any, maker: Callable[[str, Any], Any]) -> None:
        for name in names:
            makers[where, name] = partial(maker, name)

    known = lines.communicators
    put("*comm", wrappers.BLOCKING, partial(wrappers.collective, lines))
    put("*comm", wrappers.NONBLOCKING, partial(wrappers.started_collective, lines))
    put("*comm", wrappers.CREATIONS, partial(wrappers.creation, lines))
    out = PeerAt(mpi, 1, 2, False, ("dest", "tag"))
    back = PeerAt(mpi, 1, 2, True, ("source", "tag"))
    probe = PeerAt(mpi, 0, 1, True, ("source", "tag"))
    put("*comm", wrappers.SENDS, partial(waiting, lines, wrappers.with_peer(lines, out)))
    put("*comm", wrappers.RECEIVES, partial(waiting, lines, wrappers.with_peer(lines, back)))
    put(
        "*comm",
        wrappers.PROBES,
        partial(waiting, lines, wrappers.with_peer(lines, probe, counts=False)),
    )
    put("*comm", wrappers.STARTED_SENDS, partial(wrappers.started_single, lines, out, False))
    put("*comm", wrappers.STARTED_RECEIVES, partial(wrappers.started_single, lines, back, False))
    put("*comm", wrappers.PREPARED_SENDS, partial(wrappers.started_single, lines, out, True))
    put("*comm", wrappers.PREPARED_RECEIVES, partial(wrappers.started_single, lines, back, True))
    for name, (dest, sendtag, source, recvtag) in wrappers.EXCHANGES.items():
        point = PeerAt(mpi, dest, sendtag, False, ("dest", "sendtag"))
        two = PeerAt(mpi, source, recvtag, True, ("source", "recvtag"))
        read = wrappers.exchange(lines, point, two)
        put("*comm", (name,), partial(waiting, lines, read))

    def adopt(made: Any, how: str, _given: tuple[Any, ...]) -> None:
        known.adopt(made, how, lines.nowhere, 0)

    put("*comm", OPENINGS, lambda n, o: wrappers.opening(lines, n, o, adopt))
    put("*comm", ("Free", "free"), lambda _, o: wrappers.wrap_ending(lines, o, known.drop))
    put("*comm", ("Abort",), lambda _, o: wrappers.aborting(o))
    put("Request", wrappers.WAITS, partial(waiting, lines, wrappers.one_request(lines)))
    put("Request", wrappers.MANY_WAITS, partial(wrappers.wait_many, lines))
    put("Request", ("Free", "free"), lambda _, o: wrappers.wrap_ending(lines, o, lines.forget))
    put("Prequest", ("Start",), lambda _, o: wrappers.starting(lines, o, several=False))
    put("Prequest", ("Startall",), lambda _, o: wrappers.starting(lines, o, several=True))
    put("File", wrappers.ON_FILES, lambda n, o: _on_file(lines, n, o))
    for where, name in wrappers.NAMED:
        call = name if where not in ("Win", "File") else f"{where}.{name}"
        makers[where, name] = partial(waiting, lines, by_name(lines), call)
    put("File", ("Open",), lambda _, o: wrappers.opening(lines, "File.Open", o, known.adopt_file))
    return makers


def _on_file(lines: Lines, name: str, original: Any) -> Any:
    made = wrappers.collective(lines, f"File.{name}", original)
    return wrappers.wrap_ending(lines, made, lines.communicators.drop) if name == "Close" else made


def _by_subclass(mpi: Any, lines: Lines) -> None:
    """Make COMM_WORLD an instance of our own class. It has the same handle and compares equal."""
    makers = _wrappers(mpi, lines)
    body = {
        name: make(getattr(mpi.Intracomm, name))
        for (where, name), make in makers.items()
        if where == "*comm" and hasattr(mpi.Intracomm, name)
    }
    mpi.COMM_WORLD = type("Intracomm", (mpi.Intracomm,), body)(mpi.COMM_WORLD)
