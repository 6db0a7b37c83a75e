"""Ray Train: a worker's function has the loop, and reports its numbers.

Source: `ray.train.report(metrics, checkpoint)` in a worker (Ray 2.60, train/v2/api/
train_fn_utils.py). Caveat: values that are no numbers are left out. Ray does not pass DDTOP on to
its workers: set it in `runtime_env={"env_vars": {"DDTOP": "1"}}`. Check: Ray's dashboard.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent.frameworks.fabric import LogSource
from ddtop.agent.frameworks.wrapping import first_number, noting

STEPS = ("step", "global_step", "training_iteration", "iteration")


def wrap(module: ModuleType) -> None:
    """Note what is reported."""
    noting(module, "report", ReportSource().note_report, "progress of ray-train")


class ReportSource(LogSource):
    """Numbers that the worker has reported."""

    def __init__(self) -> None:
        super().__init__("ray-train")

    def note_report(self, metrics: dict[str, Any], *_more: Any, **_named: Any) -> None:
        """The worker reports these numbers."""
        step = first_number(metrics, STEPS)
        self.note(None, metrics, int(step) if step is not None else None)
        epoch = first_number(metrics, ("epoch",))
        self.last.epoch = self.last.epoch if epoch is None else epoch
