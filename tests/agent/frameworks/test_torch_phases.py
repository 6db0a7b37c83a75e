"""Phases that torch itself shows: saving a checkpoint, and compiling."""

import io
from threading import Thread
from types import ModuleType

import pytest

from ddtop.agent.frameworks import torch_phases
from ddtop.agent.notes import progress_notes
from tests.agent.frameworks.reading import phase_now


@pytest.fixture(autouse=True)
def notes(clean_notes):
    return clean_notes


def test_a_save_is_a_phase_while_it_runs_also_if_it_fails():
    module = ModuleType("serialization")

    def save(what, fails=False):
        if fails:
            raise OSError("disk full")
        return phase_now()

    module.save = save
    torch_phases.wrap_save(module)
    with pytest.raises(OSError, match="disk full"):
        module.save("model", fails=True)

    assert module.save("model") == ["checkpoint"]
    assert (phase_now(), progress_notes.counts["checkpoint"]) == ([], 2)


def test_an_async_save_is_the_phase_of_the_thread_that_writes():
    module = ModuleType("state_dict_saver")
    threads = []
    module.save = lambda: threads.append(progress_notes.open[-1].thread)

    def async_save():
        writer = Thread(target=module.save)
        writer.start()
        writer.join()
        return progress_notes.open[-1].thread

    module.async_save = async_save
    torch_phases.wrap_distributed_save(module)

    assert module.async_save() != threads[0]


@pytest.mark.torch
def test_the_functions_of_this_torch_are_there():
    """Real torch, wrapped in a copy of its modules' attributes."""
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint import state_dict_saver

    for source, wrap in (
        (torch.serialization, torch_phases.wrap_save),
        (state_dict_saver, torch_phases.wrap_distributed_save),
    ):
        module = ModuleType("copy")
        vars(module).update({name: vars(source).get(name) for name in ("save", "async_save")})
        wrap(module)
    copied = ModuleType("copy")
    copied.save = torch.serialization.save
    torch_phases.wrap_save(copied)
    copied.save({"a": 1}, io.BytesIO())

    assert progress_notes.counts == {"checkpoint": 1}


@pytest.mark.torch
def test_a_compilation_of_this_torch_is_a_phase():
    callback = pytest.importorskip("torch._dynamo.callback")
    cls = type("CompilationCallbackHandler", (callback.CompilationCallbackHandler,), {})
    copied = ModuleType("callback")
    copied.CompilationCallbackHandler = cls
    torch_phases.wrap_compile(copied)
    handler, trigger = cls(), callback.CallbackTrigger.DYNAMO
    with handler.install_callbacks(trigger, "0/0"):
        with handler.install_callbacks(trigger, "0/1"):
            inside = phase_now()
        still = phase_now()

    assert (inside, still, phase_now()) == (["compile"], ["compile"], [])
