"""What the progress of a training costs: `ddtop.step()` and its like, and the wrapped calls.

No source runs in every step by itself. A program that calls `ddtop.step()` or logs in every step
pays these numbers once a step. The agent's thread pays the reading, twice a second.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable, Iterator
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import ddtop
from ddtop.agent import current, user_calls
from ddtop.agent.frameworks import accelerate, fabric, hf_trainer, ray_train, torch_phases
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import Notes, progress_notes
from ddtop.agent.probe import Tick
from ddtop.agent.probes.progress import ProgressProbe
from ddtop.agent.wrap import collectives
from ddtop.wire import page as layout
from tools.benchmarks import progress_sources
from tools.benchmarks.table import Row, limited

UNSET_BAR_NS, STEP_BAR_US = 100.0, 5.0


def measure(repeats: int) -> Iterator[Row]:
    """Rows: the calls in an unwatched process, the calls in a rank, the wrappers, the reading."""
    loss = 2.5
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("ddtop.step()", lambda: ddtop.step()),  # noqa: PLW0108 - as a program calls it
        ('ddtop.phase("eval")', lambda: ddtop.phase("eval")),
        ("ddtop.progress(loss=...)", lambda: ddtop.progress(loss=loss)),
        ('with ddtop.phase("eval")', _with_phase),
        ('ddtop.expected("export", up_to_s=600)', lambda: ddtop.expected("export", up_to_s=600)),
    )
    empty = _ns(lambda: None, repeats)
    for name, call in calls:
        yield limited(
            f"{name}, nobody watches", _ns(call, repeats) - empty, UNSET_BAR_NS, "ns", digits=0
        )
    words = [0] * (layout.EXCEPTION_AT_BYTES // 8)
    page = SimpleNamespace(words=words, write_call=lambda at, text: None)
    rank: Any = SimpleNamespace(
        page=page, stepper=0, lead_id=get_ident(), limits=LIMITS, notes=Notes()
    )
    before = current.get()
    current.become(rank)
    ddtop._agent = user_calls
    try:
        for name, call in (*calls, *_wrapped()):
            cost_us = (_ns(call, repeats) - empty) / 1000
            yield limited(f"{name}, in a rank", cost_us, STEP_BAR_US, "us", digits=2)
        probe, tick = ProgressProbe(rank), Tick()

        def report() -> None:
            tick.now += 500_000_000
            probe.fields(tick)

        yield Row("progress, one report on the agent's thread", f"{_ns(report, repeats):.0f} ns")
        for name, source in progress_sources.sources():
            cost_us = _ns(source.read, repeats) / 1000
            yield limited(
                f"reading {name}, on the agent's thread", cost_us, STEP_BAR_US, "us", digits=2
            )
    finally:
        ddtop._agent = None
        current.become(before)
        progress_notes.sources.clear()


def _with_phase() -> None:
    with ddtop.phase("eval"):
        pass


def _wrapped() -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls of frameworks that a program may make in every step."""

    class Library:
        def log(self, values: Any, step: Any = None, log_kwargs: Any = None) -> None: ...

        log_dict = log
        save = save_state = save_model = evaluate = predict = _save_checkpoint = train = log

    logged = {"loss": 2.5, "lr": 1e-4}
    trainer = type("Trainer", (Library,), {})
    logger = type("Fabric", (Library,), {})
    tracker = type("Accelerator", (Library,), {})
    module: Any = SimpleNamespace(save=lambda what: None, report=lambda metrics: None)
    hf_trainer.wrap(SimpleNamespace(Trainer=trainer))  # type: ignore[arg-type]
    fabric.wrap(SimpleNamespace(Fabric=logger))  # type: ignore[arg-type]
    accelerate.wrap(SimpleNamespace(Accelerator=tracker))  # type: ignore[arg-type]
    torch_phases.wrap_save(module)
    ray_train.wrap(module)
    one, two, three = trainer(), logger(), tracker()
    yield "Trainer.evaluate (a phase)", lambda: one.evaluate(None)
    yield "torch.save (a phase)", lambda: module.save(None)
    yield "Fabric.log_dict", lambda: two.log_dict(logged, 3)
    yield "Accelerator.log", lambda: three.log(logged, 3)
    yield "ray.train.report", lambda: module.report(logged)
    group = SimpleNamespace(_get_sequence_number_for_group=int)
    c10d: Any = SimpleNamespace(_world=_World(group), all_reduce=lambda tensor: None)
    sys.modules["torch.distributed.distributed_c10d"] = c10d
    collectives.wrap(c10d)
    tensor = SimpleNamespace(dtype=None, numel=lambda: 1000)
    yield "dist.all_reduce", lambda: c10d.all_reduce(tensor)


class _World:
    """Torch's dictionary of process groups, as far as the wrapper reads it."""

    def __init__(self, group: Any) -> None:
        self.default_pg, self.pg_names = group, _Names({id(group): "0"})


class _Names(dict[int, str]):
    def get(self, group: object, default: Any = None) -> Any:
        return super().get(id(group), default)


def _ns(call: Callable[[], object], repeats: int) -> float:
    """CPU time of one call: the least of many short measurements, because other processes cost time
    and cache.
    """
    number = 1000
    found = timeit.repeat(call, number=number, repeat=20 * repeats, timer=time.thread_time)
    return min(found) / number * 1e9
