"""Installs the wrappers for all communicators and requests.

mpi4py's types are immutable to `setattr`, but their method tables are ordinary dicts, reachable
through the proxy `type.__dict__`. Every object sees a method that is replaced there. Types,
isinstance and pickles stay as they are. This is a detail of CPython, so it is tried on one harmless
method first. If it does not work, COMM_WORLD becomes an instance of a subclass. Its Dups have that
class too, its Splits do not.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from ddtop.agent.mpi import methods, wrappers
from ddtop.agent.mpi.lines import Lines

_CLASSES = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
_PROBED = "Is_inter"


class TableError(RuntimeError):
    """The method table of a type cannot be reached, or a method in it is not the one that runs."""


def table_of(kind: type) -> dict[str, Any]:
    """The dict in which the type keeps its methods.

    Raises:
        TableError: the dict cannot be reached.
    """
    found = [one for one in gc.get_referents(kind.__dict__) if type(one) is dict]
    if len(found) != 1:
        raise TableError(f"no method table behind {kind.__name__}.__dict__")
    return found[0]


def replace(kind: type, name: str, new: Any) -> None:
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

    replace(mpi.Comm, _PROBED, probe)
    try:
        answers = [mpi.COMM_SELF.Is_inter(), mpi.COMM_WORLD.Is_inter()]
    finally:
        replace(mpi.Comm, _PROBED, original)
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
    made = _wrappers(mpi, lines)
    for kind_name in (*_CLASSES, "Request", "Prequest", "Win", "File"):
        kind = getattr(mpi, kind_name, None)
        if kind is not None:
            _wrap_class(kind, kind_name, made)
    return None


Make = Callable[[Any], Any]


def _wrap_class(kind: type, kind_name: str, made: dict[tuple[str, str], Make]) -> None:
    table, changed = table_of(kind), False
    for (where, name), make in made.items():
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
    made: dict[tuple[str, str], Make] = {}

    def put(where: str, names: Any, maker: Callable[[str, Any], Any]) -> None:
        for name in names:
            made[where, name] = partial(maker, name)

    roots, buffers = methods.ROOTS, methods.BUFFERS
    put(
        "*comm",
        methods.BLOCKING,
        lambda n, o: wrappers.collective(lines, n, o, roots.get(n), buffers.get(n)),
    )
    put("*comm", methods.CREATIONS, lambda n, o: wrappers.creation(lines, n, o))
    put(
        "*comm",
        methods.NONBLOCKING,
        lambda n, o: wrappers.started_collective(lines, n, o, roots.get(n), buffers.get(n)),
    )
    out = wrappers.Point(mpi, 1, 2, False, ("dest", "tag"))
    back = wrappers.Point(mpi, 1, 2, True, ("source", "tag"))
    probe = wrappers.Point(mpi, 0, 1, True, ("source", "tag"))
    put("*comm", methods.SENDS, lambda n, o: wrappers.single(lines, n, o, out))
    put("*comm", methods.RECEIVES, lambda n, o: wrappers.single(lines, n, o, back))
    put("*comm", methods.PROBES, lambda n, o: wrappers.single(lines, n, o, probe, counts=False))
    put("*comm", methods.STARTED_SENDS, lambda n, o: wrappers.started_single(lines, n, o, out))
    put("*comm", methods.STARTED_RECEIVES, lambda n, o: wrappers.started_single(lines, n, o, back))
    put(
        "*comm",
        methods.PREPARED_SENDS,
        lambda n, o: wrappers.started_single(lines, n, o, out, persistent=True),
    )
    put(
        "*comm",
        methods.PREPARED_RECEIVES,
        lambda n, o: wrappers.started_single(lines, n, o, back, persistent=True),
    )
    for name, (dest, sendtag, source, recvtag) in methods.EXCHANGES.items():
        one = wrappers.Point(mpi, dest, sendtag, False, ("dest", "sendtag"))
        two = wrappers.Point(mpi, source, recvtag, True, ("source", "recvtag"))
        made["*comm", name] = partial(_exchange, lines, name, one, two)
    put("*comm", ("Free", "free"), lambda _, o: wrappers.ending(lines, o))
    put("Request", methods.WAITS, lambda n, o: wrappers.wait_one(lines, n, o))
    put("Request", methods.MANY_WAITS, lambda n, o: wrappers.wait_many(lines, n, o))
    for where, name in methods.NAMED:
        call = name if where not in ("Win", "File") else f"{where}.{name}"
        made[where, name] = partial(wrappers.named, lines, call)
    return made


def _exchange(
    lines: Lines, name: str, out: wrappers.Point, back: wrappers.Point, original: Any
) -> Any:
    return wrappers.exchange(lines, name, original, out, back)


def _by_subclass(mpi: Any, lines: Lines) -> None:
    """Make COMM_WORLD an instance of our own class. It has the same handle and compares equal."""
    made = _wrappers(mpi, lines)
    body = {
        name: make(getattr(mpi.Intracomm, name))
        for (where, name), make in made.items()
        if where == "*comm" and hasattr(mpi.Intracomm, name)
    }
    mpi.COMM_WORLD = type("Intracomm", (mpi.Intracomm,), body)(mpi.COMM_WORLD)
