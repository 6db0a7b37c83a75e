"""A real program of Lightning and one of Hugging Face's Trainer, healthy and then with a hook that
sleeps.

They need `pip install -c constraints.txt -e '.[trainers]'`. `python -m zoo.frameworks` runs the
programs of all frameworks, with more faults.
"""

import time
from importlib import util

import pytest

from zoo.frameworks.cases import CASES
from zoo.frameworks.running import START_S, running

pytestmark = [pytest.mark.job, pytest.mark.torch]
NAMED_S = 60.0


@pytest.mark.parametrize(
    ("name", "caller"),
    [("Lightning, torchrun", "Lightning"), ("HF Trainer", "Transformers")],
)
def test_a_real_trainer_tells_its_progress_and_a_hook_that_sleeps_is_named(name, caller):
    (case,) = [one for one in CASES if one.name == name]
    if util.find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed: pip install -e '.[trainers]'")

    with running(case, FAULT="sleep", FAULT_AFTER_S="go") as run:
        until(run.trains, START_S, run)
        found = until(lambda: counted(run.ask("status")), NAMED_S, run)
        assert run.ask("diagnose")["findings"] == []
        (run.folder / "go").touch()
        finding = until(lambda: critical(run.ask("diagnose")), NAMED_S, run)

    assert (found["source"], found["total_steps"]) == (case.source, 100_000)
    assert finding["kind"] == "not-in-collective"
    assert finding["ranks"] == [1]
    assert finding["victims"] == [0]
    assert "asleep in at (fault.py:" in finding["summary"]
    assert f"called by {caller})" in finding["summary"]


def until(answer, seconds, run):
    """The first true answer."""
    began = time.monotonic()
    while not (found := answer()):
        assert run.process.poll() is None, run.last_lines()
        assert time.monotonic() - began < seconds, run.last_lines()
        time.sleep(0.3)
    return found


def counted(status):
    """The progress, as soon as the time left and a loss are known."""
    progress = status.get("progress") or {}
    return progress if progress.get("eta_s") and progress.get("loss") else None


def critical(diagnosis):
    """The critical finding, if there is one."""
    return next((one for one in diagnosis["findings"] if one["severity"] == "critical"), None)
