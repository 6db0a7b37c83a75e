"""Logging libraries that the program's own loop calls. They know what the program logs."""

from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.frameworks import accelerate, fabric, ray_train
from ddtop.agent.guard import guard
from ddtop.agent.notes import progress_notes
from ddtop.agent.probes import exceptions
from tests.agent.frameworks.reading import OnDevice, phase_now


@pytest.fixture(autouse=True)
def notes(clean_notes, monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    monkeypatch.setattr(guard, "_failed", {})


class Logged:
    """What both `Fabric` (fabric.py:820, 1076, 1089) and `Accelerator` (3398, 3480, 3625) have."""

    def log_dict(self, metrics, step=None):
        return metrics

    def log(self, values, step=None, log_kwargs=None):
        return values

    def save(self):
        return phase_now()

    save_state = save_model = save


def test_what_is_logged_with_fabric_is_the_progress():
    own = type("Fabric", (Logged,), {})
    fabric.wrap(SimpleNamespace(Fabric=own))
    logged = {"loss": 0.5, "lr": 0.01}

    assert own().log_dict(logged, step=40) is logged
    found = progress_notes.sources["fabric"].read()
    assert (found.step, found.loss, found.lr) == (40, 0.5, 0.01)
    assert own().save() == ["checkpoint"]


def test_a_loss_that_is_still_a_tensor_leaves_the_last_number():
    own = type("Fabric", (Logged,), {})
    fabric.wrap(SimpleNamespace(Fabric=own))
    own().log_dict({"loss": 0.5}, 1)
    own().log_dict({"loss": OnDevice()}, 2)
    found = progress_notes.sources["fabric"].read()

    assert (found.step, found.loss) == (2, 0.5)


def test_what_is_logged_with_accelerate_is_the_progress():
    own = type("Accelerator", (Logged,), {})
    accelerate.wrap(SimpleNamespace(Accelerator=own))
    own().log({"train_loss": 1.5}, step=3, log_kwargs={"wandb": {}})
    found = progress_notes.sources["accelerate"].read()

    assert (found.step, found.loss) == (3, 1.5)
    assert own().save_state() == own().save_model() == ["checkpoint"]


def test_what_a_ray_worker_reports_is_the_progress():
    """ray 2.60: train/v2/api/train_fn_utils.py, `report(metrics, checkpoint=None, ...)`."""
    module = ModuleType("train_fn_utils")
    module.report = lambda metrics, checkpoint=None, **more: "reported"
    ray_train.wrap(module)

    assert module.report({"step": 12, "epoch": 1, "loss": 0.25, "text": "x"}) == "reported"
    found = progress_notes.sources["ray-train"].read()
    assert (found.step, found.epoch, found.loss) == (12, 1.0, 0.25)


def test_the_exception_that_ray_catches_is_the_ranks(monkeypatch):
    """ray 2.60: thread_runner.py catches it in the thread of the function; both workers then leave
    with one exit code."""
    found = []
    monkeypatch.setattr(current, "_rank", "this rank")
    monkeypatch.setattr(exceptions, "note", lambda *what, leads: found.append((*what, leads)))
    module = ModuleType("thread_runner")
    module.construct_user_exception_with_traceback = lambda e, exclude_frames=0: ("for Ray", e)
    ray_train.wrap_errors(module)

    error = RuntimeError("planted")
    made = module.construct_user_exception_with_traceback(error, exclude_frames=3)
    module.construct_user_exception_with_traceback(SystemExit(1))

    assert made == ("for Ray", error)
    assert found == [("this rank", RuntimeError, error, None, "MainThread", True)]


def test_a_logger_that_is_called_in_a_new_way_is_off_and_the_program_goes_on():
    own = type("Fabric", (Logged,), {})
    own.log_dict = lambda self, *, values, where: "logged"
    fabric.wrap(SimpleNamespace(Fabric=own))

    assert own().log_dict(values={}, where="x") == "logged"
    assert list(guard.off) == ["progress of fabric"]


def test_a_framework_without_the_function_is_said_to_be_so():
    with pytest.raises(AttributeError, match="log_dict"):
        fabric.wrap(SimpleNamespace(Fabric=type("Fabric", (), {})))
