"""Waits for some modules of torch, and for mpi4py's, to be imported and hands each to its wrapper right after it ran.

Done at import time, before user code can bind the names; the same object then stands in `torch.distributed` and in
`torch.distributed.distributed_c10d`, which torch's own pipelines compare.
"""

from __future__ import annotations

import sys

from ddtop.agent import own_imports
from ddtop.agent.guard import guard

# Not from typing: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def _wrap_distributed(module: ModuleType) -> None:
    from ddtop.agent.wrap import distributed, p2p

    distributed.wrap(module)
    guard.run("wrap p2p", lambda: p2p.wrap(module))


def _wrap_dataloader(module: ModuleType) -> None:
    from ddtop.agent.wrap import dataloader

    dataloader.wrap(module)


def _wrap_optimizer(module: ModuleType) -> None:
    from ddtop.agent.wrap import optimizer

    optimizer.wrap(module)


def _wrap_ddp(module: ModuleType) -> None:
    from ddtop.agent.wrap import ddp

    ddp.wrap(module)


def _wrap_ends(module: ModuleType) -> None:
    from ddtop.agent.wrap import spawn

    spawn.wrap_ends(module)


def _wrap_spawn(module: ModuleType) -> None:
    from ddtop.agent.wrap import spawn

    spawn.wrap_spawn(module)


def _before_mpi() -> None:
    from ddtop.agent.mpi import entry

    entry.before()


def _wrap_mpi(module: ModuleType) -> None:
    from ddtop.agent.mpi import entry

    entry.after(module)


def _without_mpi() -> None:
    from ddtop.agent.mpi import entry

    entry.failed()


WRAPPERS: dict[str, Callable[[ModuleType], None]] = {
    "torch.distributed.distributed_c10d": _wrap_distributed,
    "torch.utils.data.dataloader": _wrap_dataloader,
    "torch.optim.optimizer": _wrap_optimizer,
    "torch.nn.parallel.distributed": _wrap_ddp,
    "multiprocessing.util": _wrap_ends,
    "torch.multiprocessing.spawn": _wrap_spawn,
    "mpi4py.MPI": _wrap_mpi,
}
AROUND: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {"mpi4py.MPI": (_before_mpi, _without_mpi)}
"""What is done right before a module runs, and where it raises."""


class Finder:
    """A finder that finds nothing by itself: it lets the others find, and adds a step after the module ran."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with the wrapper behind its loader."""
        wrapper = WRAPPERS.get(name)
        if wrapper is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _add_step(spec, name, wrapper)
                return spec
        return None


def _add_step(spec: ModuleSpec, name: str, wrapper: Callable[[ModuleType], None]) -> None:
    loader: Any = spec.loader
    if loader is None or not hasattr(loader, "exec_module"):
        return
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        # Gone before the module runs: the loader is left as it was, also when the import fails.
        vars(loader).pop("exec_module", None)
        before, without = AROUND.get(name, (None, None))
        if before is not None:
            guard.run(f"before {name}", _checked(before))
        try:
            execute(module)
        except BaseException:
            if without is not None:
                guard.run(f"before {name}", without)
            raise
        guard.run(f"wrap {name}", _call(wrapper, module))

    loader.exec_module = exec_module


def _call(wrapper: Callable[[ModuleType], None], module: ModuleType) -> Callable[[], None]:
    def call() -> None:
        own_imports.check(sys.orig_argv)
        wrapper(module)

    return call


def _checked(part: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        own_imports.check(sys.orig_argv)
        part()

    return call


def install() -> None:
    """Put the finder first; a module that is already there is wrapped at once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    for name, wrapper in WRAPPERS.items():
        module = sys.modules.get(name)
        if module is not None:
            guard.run(f"wrap {name}", _call(wrapper, module))
