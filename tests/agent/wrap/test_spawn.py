"""Exceptions that multiprocessing catches before any hook sees them."""

import os
import pickle
import sys
import traceback
import types

import msgspec
import pytest

from ddtop import registry
from ddtop.agent import current
from ddtop.agent.probes import exceptions
from ddtop.agent.wrap import spawn as wrap_spawn
from ddtop.wire.records import LastException


@pytest.fixture
def noted(monkeypatch):
    """The exceptions that a rank notes."""
    found = []
    monkeypatch.setattr(current, "_rank", object())
    monkeypatch.setattr(exceptions, "note", lambda _rank, *what: found.append(what))
    return found


def fails(number):
    raise ValueError(f"sample {number}")


def spawn_module():
    """A module like torch.multiprocessing.spawn. Its `_wrap` catches what the function raises."""
    module = types.ModuleType("spawn_like")
    module.caught = []

    def _wrap(function, number):
        try:
            function(number)
        except ValueError as error:
            module.caught.append(str(error))

    module._wrap = _wrap
    return module


def test_what_a_spawned_function_raises_is_noted_and_still_reaches_mp_spawn(noted):
    module = spawn_module()
    wrap_spawn.wrap_spawn(module)
    module._wrap(fails, 7)

    assert module.caught == ["sample 7"]
    assert len(noted) == 1


def test_what_a_program_raises_under_hydra_main_is_noted_and_hydra_still_exits(noted):
    """Without the wrapper the rank "ended itself, without an uncaught exception"."""
    module = types.ModuleType("hydra_like")
    lines = []

    def run_and_report(function):
        try:
            return function()
        except ValueError as error:
            lines.extend(traceback.format_exception(error))
            sys.exit(1)

    module.run_and_report = run_and_report
    wrap_spawn.wrap_hydra(module)
    with pytest.raises(SystemExit):
        module.run_and_report(lambda: fails(7))

    assert [kind for kind, *_ in noted] == [ValueError]
    # Python 3.10 keeps the wrapper's frame: it raises with the traceback that it has saved.
    assert ("ddtop/agent" in "".join(lines[1:])) == (sys.version_info < (3, 11))
    assert module.run_and_report(lambda: 7) == 7


def bootstrap(util, target):
    """Runs the target as BaseProcess._bootstrap does."""
    try:
        target()
    finally:
        util._exit_function()


def ending():
    """A module like multiprocessing.util."""
    module = types.ModuleType("util_like")
    module.ended = []
    module._exit_function = lambda: module.ended.append(1)
    wrap_spawn.wrap_ends(module)
    return module


def test_what_a_process_target_raises_is_noted_and_its_traceback_is_its_own(noted):
    """The child prints the traceback. A wrapper of `run` added one of our lines to it."""
    util = ending()
    with pytest.raises(ValueError, match="sample 3") as raised:
        bootstrap(util, lambda: fails(3))

    assert (util.ended, len(noted)) == ([1], 1)
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:3] == [
        "bootstrap",
        "<lambda>",
    ]


def test_a_target_that_ends_well_while_its_parent_handles_an_exception_raised_nothing(noted):
    """The process was forked inside an `except`, so the current exception is the parent's."""
    try:
        fails(4)
    except ValueError:
        bootstrap(ending(), int)

    assert noted == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps the traceback as it was")
def test_the_traceback_that_mp_spawn_sends_has_no_line_of_ours(noted):
    module = types.ModuleType("spawn_like")
    module.told = []

    def _wrap(function):
        try:
            function(7)
        except ValueError:
            module.told.append(traceback.format_exc())

    module._wrap = _wrap
    wrap_spawn.wrap_spawn(module)
    module._wrap(fails)

    assert "agent/wrap_spawn" not in module.told[0]
    assert "fails" in module.told[0]


def test_wrapping_twice_wraps_once():
    module = spawn_module()
    wrap_spawn.wrap_spawn(module)
    once = module._wrap
    wrap_spawn.wrap_spawn(module)

    assert module._wrap is once


def test_mp_spawn_can_still_send_its_function_to_the_child_by_name():
    """multiprocessing pickles `_wrap` by module and name, and looks it up again in the child."""
    spawn = pytest.importorskip("torch.multiprocessing.spawn")
    wrap_spawn.wrap_spawn(spawn)

    assert pickle.loads(pickle.dumps(spawn._wrap)) is spawn._wrap


def test_what_a_child_without_a_rank_raises_is_left_for_the_relay(home, monkeypatch):
    """A parameter server under mp.spawn has no agent, and its failure ends the ranks."""
    monkeypatch.setattr(current, "_rank", None)
    module = spawn_module()
    wrap_spawn.wrap_spawn(module)
    module._wrap(fails, 7)

    (path,) = home.runtime.glob(registry.helper_file(os.getppid(), os.getpid(), "*"))
    said = msgspec.json.decode(path.read_bytes(), type=LastException)
    assert (said.type, said.text, said.place.function) == ("ValueError", "sample 7", "fails")
    assert path.stat().st_mode & 0o777 == 0o600
    assert module.caught == ["sample 7"]


def test_a_runtime_folder_that_cannot_be_used_changes_nothing(home, monkeypatch):
    monkeypatch.setattr(current, "_rank", None)
    monkeypatch.setenv("DDTOP_RUNTIME", "/proc/nowhere")
    module = spawn_module()
    wrap_spawn.wrap_spawn(module)
    module._wrap(fails, 7)

    assert module.caught == ["sample 7"]
    wrap_spawn.guard.off.pop("helper end")
