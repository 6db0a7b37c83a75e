"""Waits for the imports of torch and mpi4py and runs the wrappers of each module right after its
import.

This is done at import time, before user code can bind the names. So `torch.distributed` and
`torch.distributed.distributed_c10d` have the same object, which torch's own pipelines compare.
"""

from __future__ import annotations

import sys

from ddtop.agent import own_imports
from ddtop.agent.guard import guard
from ddtop.agent.sources import SOURCES, ProbeRow
from ddtop.agent.tracebacks import leave_out, without_ours

# Not from typing: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

WAITING: dict[str, tuple[ProbeRow, ...]] = {}
for _source in SOURCES:
    if _source.after:
        WAITING[_source.after] = (*WAITING.get(_source.after, ()), _source)
"""The rows that wait for each module."""


class Finder:
    """Finds no modules itself: it asks the other finders and adds a step after the import.

    Only for an import: a program that asks `importlib.util.find_spec` gets what it would get
    without this finder, and `LazyLoader` imports nothing earlier.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the other finders, with a step around its loader."""
        sources = WAITING.get(name)
        # The caller is `importlib._bootstrap._find_spec`.
        if sources is None or sys._getframe(2).f_code.co_name not in _IMPORTS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            with without_ours:
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and not isinstance(spec.loader, _Step):
                    spec.loader = _Step(spec, sources)  # type: ignore[assignment]
                return spec
        return None


_IMPORTS = ("_find_and_load_unlocked", "_find_and_load", "reload")


class _Step:
    """Stands in the place of the loader until the module runs. The loader itself is not changed: it
    may be shared, compared, pickled, or of a class of the program."""

    def __init__(self, spec: ModuleSpec, sources: Sequence[ProbeRow]) -> None:
        self._spec, self._sources = spec, sources
        self._loader: Any = spec.loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, with what is to be done before and after."""
        name = self._spec.name
        vars(module)["__loader__"] = self._spec.loader = self._loader
        if _is_lazy(self._loader):
            self._loader.exec_module(module)
            # It has put its own loader there, for the first use of the module.
            self._spec.loader = _Step(self._spec, self._sources)  # type: ignore[assignment]
            return
        around = [source for source in self._sources if source.around]
        for source in around:
            guard.run(f"before {name}", _run, source, "before")
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            for source in around:
                guard.run(f"before {name}", _run, source, "failed")
            leave_out(error)
            raise
        _wrap(name, self._sources, module)


def _is_lazy(loader: object) -> bool:
    return type(loader) is getattr(sys.modules.get("importlib.util"), "LazyLoader", None)


def _wrap(name: str, sources: Sequence[ProbeRow], module: ModuleType) -> None:
    for source in sources:
        guard.run(f"wrap {name}", _run, source, source.wrap, module)


def _run(source: ProbeRow, function: str, *arguments: ModuleType) -> None:
    own_imports.check(sys.orig_argv)
    call: Callable[..., object] = source.load(function)
    call(*arguments)


def install() -> None:
    """Put the finder first. A module that is already imported is wrapped at once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    for name, sources in WAITING.items():
        module = sys.modules.get(name)
        if module is not None:
            _wrap(name, sources, module)
