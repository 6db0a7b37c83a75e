"""The import hook: other finders find the module, ours adds a step after it has run."""

import importlib.util
import pickle
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import SimpleNamespace

import pytest

from ddtop.agent import import_hooks
from ddtop.agent.guard import guard

NAME = "ddtop_tests_torch_like"


def waits_for(monkeypatch, wrapper):
    """The table of sources has one row, for that module."""
    row = SimpleNamespace(after=NAME, wrap="wrap", around=False, load=lambda _function: wrapper)
    monkeypatch.setattr(import_hooks, "WAITING", {NAME: (row,)})


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    """A module with an import hook, and the list of modules that the hook's wrapper got."""
    handed = []
    waits_for(monkeypatch, handed.append)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(guard, "off", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop(NAME, None)
    import_hooks.install()
    yield tmp_path / f"{NAME}.py", handed
    sys.modules.pop(NAME, None)


def test_the_module_is_handed_over_after_it_ran(hooked):
    path, handed = hooked
    path.write_text("value = 7")

    module = importlib.import_module(NAME)

    assert handed == [module]
    assert handed[0].value == 7


def test_the_loader_is_left_as_it_was(hooked):
    """pickle, inspect and reload look at `__loader__`; ours must not be found there."""
    path, _ = hooked
    path.write_text("")

    module = importlib.import_module(NAME)

    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__loader__)
    assert module.__spec__.loader is module.__loader__


def test_a_module_that_fails_raises_its_own_error_and_may_be_imported_again(hooked):
    path, handed = hooked
    path.write_text("raise ImportError('libcudart.so.12 is missing')")

    with pytest.raises(ImportError, match="libcudart"):
        importlib.import_module(NAME)
    assert NAME not in sys.modules
    path.write_text("fixed = 'a longer file than before'")
    importlib.invalidate_caches()
    module = importlib.import_module(NAME)

    assert handed == [module]


def test_a_wrapper_that_raises_is_switched_off_and_the_import_succeeds(hooked, monkeypatch):
    path, _ = hooked
    path.write_text("")

    def wrapper(_module):
        raise AttributeError("no init_process_group")

    waits_for(monkeypatch, wrapper)

    assert importlib.import_module(NAME).__name__ == NAME
    assert guard.off == {f"wrap {NAME}": "AttributeError: no init_process_group"}


class Slotted:
    """A loader that takes no attributes, as one in C. It makes the module of its name."""

    __slots__ = ()

    def create_module(self, _spec):
        return None

    def exec_module(self, module):
        module.value = 7


class Frozen:
    """A loader that is used as a class, as that of frozen modules."""

    @staticmethod
    def create_module(_spec):
        return None

    @staticmethod
    def exec_module(module):
        module.value = 7


@pytest.mark.parametrize("loader", [Slotted(), Frozen])
def test_a_loader_that_cannot_be_changed_loads_its_module_all_the_same(hooked, monkeypatch, loader):
    """The program has its own importer: a module in one file, a frozen application."""
    finder = SimpleNamespace(
        find_spec=lambda name, *_: ModuleSpec(name, loader) if name == NAME else None
    )
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path[:1], finder, *sys.meta_path[1:]])

    module = importlib.import_module(NAME)

    assert module.value == 7
    assert hooked[1] == [module]
    assert module.__spec__.loader is module.__loader__ is loader


def test_a_program_that_asks_for_a_spec_gets_what_it_would_get_without_us(hooked):
    """Loaders are compared, and pickled into the processes of a pool."""
    path, handed = hooked
    path.write_text("")
    spec = importlib.util.find_spec(NAME)
    expected = PathFinder.find_spec(NAME)

    assert spec.loader == expected.loader
    assert pickle.loads(pickle.dumps(spec.loader)) == expected.loader
    assert handed == []


class LazyFinder:
    """A finder of the program, with which a module is loaded at its first use."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == NAME else None
        if spec is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def test_a_module_that_is_loaded_lazily_is_not_loaded_earlier(hooked, monkeypatch):
    path, handed = hooked
    path.write_text("import sys\nsys.ddtop_test_ran = True\nvalue = 7\n")
    monkeypatch.setattr(sys, "meta_path", [sys.meta_path[0], LazyFinder, *sys.meta_path[1:]])
    monkeypatch.setattr(sys, "ddtop_test_ran", False, raising=False)

    module = importlib.import_module(NAME)
    ran = sys.ddtop_test_ran
    value = module.value

    assert (ran, value, sys.ddtop_test_ran) == (False, 7, True)
    assert handed == [module]
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"


def test_a_missing_module_is_missing(hooked):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)


def test_other_modules_are_not_touched(hooked):
    (finder,) = [one for one in sys.meta_path if isinstance(one, import_hooks.Finder)]

    assert finder.find_spec("json") is None
    assert sys.meta_path[0] is finder


def test_installing_twice_adds_one_finder(hooked):
    import_hooks.install()

    assert sum(isinstance(one, import_hooks.Finder) for one in sys.meta_path) == 1


def test_a_module_that_is_there_already_is_wrapped_at_once(hooked, monkeypatch):
    """A notebook imported torch before DDTOP was set."""
    _, handed = hooked
    monkeypatch.setitem(sys.modules, NAME, pytest)

    import_hooks.install()

    assert handed == [pytest]
