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
    """Finds no modules itself: it asks the other finders and adds a step after the import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the other finders, with the wrappers added to its loader."""
        sources = WAITING.get(name)
        if sources is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            with without_ours:
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                guard.run(f"wrap {name}", _add_step, spec, name, sources)
                return spec
        return None


def _add_step(spec: ModuleSpec, name: str, sources: Sequence[ProbeRow]) -> None:
    loader: Any = spec.loader
    # A loader of frozen modules is a class, which other modules share.
    if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
        return
    execute = loader.exec_module
    around = [source for source in sources if source.around]

    def exec_module(module: ModuleType) -> None:
        # Removed before the module runs, so that the loader is unchanged even if the import fails.
        vars(loader).pop("exec_module", None)
        for source in around:
            guard.run(f"before {name}", _run, source, "before")
        try:
            execute(module)
        except BaseException as error:
            for source in around:
                guard.run(f"before {name}", _run, source, "failed")
            leave_out(error)
            raise
        _wrap(name, sources, module)

    loader.exec_module = exec_module


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
