"""Ray Train: a worker's function has the loop, and reports its numbers.

Source: `ray.train.report(metrics, checkpoint)` in a worker (Ray 2.60, train/v2/api/
train_fn_utils.py), and what Ray makes of an exception of that function (train/v2/_internal/
execution/worker_group/thread_runner.py). Caveat: values that are not numbers are left out. Ray does
not pass DDTOP on to its workers: set it in `runtime_env={"env_vars": {"DDTOP": "1"}}`. Check: Ray's
dashboard.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.frameworks.fabric import LogSource
from ddtop.agent.frameworks.wrapping import call_note_before, first_number
from ddtop.agent.plain import is_a, peek, text, traceback_of
from ddtop.agent.probes import exceptions

STEPS = ("step", "global_step", "training_iteration", "iteration")


def wrap(module: ModuleType) -> None:
    """Note what is reported."""
    call_note_before(module, "report", ReportSource().note_report, "progress of ray-train")


def wrap_errors(module: ModuleType) -> None:
    """Note the exception that ends a worker's function.

    Ray catches it in the thread of the function and ends all workers at once, with the same exit
    code: nothing else says which of them failed.
    """
    call_note_before(
        module, "construct_user_exception_with_traceback", _note_error, "exceptions of ray-train"
    )


def _note_error(error: BaseException, *_more: Any, **_named: Any) -> None:
    rank = current.get()
    if rank is None or is_a(error, SystemExit):
        return
    name = text(peek(threading.current_thread(), "_name")) or "thread"
    exceptions.note(rank, type(error), error, traceback_of(error), name, leads=True)


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
