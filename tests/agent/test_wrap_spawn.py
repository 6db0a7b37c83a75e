"""Exceptions that multiprocessing catches before any hook sees them."""

from __future__ import annotations

import multiprocessing.process
import pickle
import types

import pytest

from ddtop.agent import runtime, wrap_spawn


class Noting:
    """A runtime that only remembers what it was told to note."""

    def __init__(self):
        self.noted = []

    def guarded(self, _name, part):
        self.noted.append(part)


@pytest.fixture
def running(monkeypatch):
    found = Noting()
    monkeypatch.setattr(runtime, "_current", found)
    return found


def fails(number):
    raise ValueError(f"sample {number}")


def spawn_module():
    """A module like torch.multiprocessing.spawn: its `_wrap` swallows what the function raises."""
    module = types.ModuleType("spawn_like")
    module.caught = []

    def _wrap(function, number):
        try:
            function(number)
        except ValueError as error:
            module.caught.append(str(error))

    module._wrap = _wrap
    return module


def test_what_a_spawned_function_raises_is_noted_and_still_reaches_mp_spawn(running):
    module = spawn_module()
    wrap_spawn.wrap_spawn(module)
    module._wrap(fails, 7)

    assert module.caught == ["sample 7"]
    assert len(running.noted) == 1


def test_what_a_process_target_raises_is_noted_and_raised_again(running, monkeypatch):
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "run", lambda self: fails(3))
    wrap_spawn.wrap_process(multiprocessing.process)

    with pytest.raises(ValueError, match="sample 3"):
        multiprocessing.process.BaseProcess.run(object())

    assert len(running.noted) == 1


def test_wrapping_twice_wraps_once():
    module = spawn_module()
    wrap_spawn.wrap_spawn(module)
    once = module._wrap
    wrap_spawn.wrap_spawn(module)

    assert module._wrap is once


def test_mp_spawn_can_still_send_its_function_to_the_child_by_name():
    """It pickles `_wrap` by module and name, and looks it up again on the other side."""
    spawn = pytest.importorskip("torch.multiprocessing.spawn")
    wrap_spawn.wrap_spawn(spawn)

    assert pickle.loads(pickle.dumps(spawn._wrap)) is spawn._wrap
