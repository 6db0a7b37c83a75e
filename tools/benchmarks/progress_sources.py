"""What it costs to read the progress of each framework: on the agent's thread, twice a second.

The objects have the attributes that the frameworks' own have (tests/agent/frameworks), so nothing
has to be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from ddtop.agent.frameworks import (
    composer,
    deepspeed,
    fabric,
    hf_trainer,
    ignite,
    lightning,
    megatron,
    torchtitan,
    tqdm,
)
from ddtop.agent.notes import ObjectSource, ProgressSource


def sources() -> Iterator[tuple[str, ProgressSource]]:
    """(name, a source that has something to read)."""
    objects: tuple[tuple[ObjectSource, Any], ...] = (
        (hf_trainer.TrainerSource(), _hf()),
        (lightning.LightningSource(), _lightning()),
        (ignite.IgniteSource(), _of(state=_counts(iteration=25, epoch_length=10, output=0.5))),
        (deepspeed.DeepSpeedSource(), _deepspeed()),
        (composer.ComposerSource(), _composer()),
        (torchtitan.TitanSource(), _of(step=100, config=_of(training=_of(steps=10_000)))),
    )
    for source, read in objects:
        # The source keeps only a weak reference.
        _kept.append(read)
        source.note(read, True)
        yield source.name, source
    logged = fabric.LogSource("fabric, accelerate, ray-train")
    logged.note(None, {"loss": 2.31, "lr": 1e-4}, 1200)
    yield logged.name, logged
    args = _of(curr_iteration=1200, consumed_train_samples=1, seq_length=4096, train_iters=9000)
    sys.modules[megatron.VARIABLES] = _of(_GLOBAL_ARGS=args)  # type: ignore[assignment]
    yield "megatron", megatron.MegatronSource()
    bars = {_bar("Epochs", 0), _bar("train", -1, postfix="loss=2.31, lr=1e-4")}
    yield "tqdm, two bars", tqdm.TqdmSource(_of(_instances=bars))


_kept: list[Any] = []


class _Object(SimpleNamespace):
    """An object that may be an entry of a set, and be referred to weakly."""

    __hash__ = object.__hash__


_of = _Object


def _counts(**more: Any) -> Any:
    return _of(epoch=3, max_epochs=5, **more)


def _hf() -> Any:
    logs = [{"eval_loss": 2.5}] * 3 + [{"loss": 2.31, "learning_rate": 1e-4}] + [{"eval_loss": 2.5}]
    state = _of(
        global_step=1200,
        max_steps=10_000,
        epoch=3.2,
        num_train_epochs=10,
        num_input_tokens_seen=614_400,
        log_history=logs,
    )
    return _of(state=state, args=None, get_total_train_batch_size=lambda args: 64)


def _lightning() -> Any:
    progress = _of(current=_of(completed=50), total=_of(completed=650))
    loader = _of(batch_size=16, sampler=_of(num_replicas=2))
    return _of(
        state=_of(stage=_of(value="train")),
        fit_loop=_of(
            max_batches=200,
            epoch_loop=_of(batch_progress=progress),
            _combined_loader=_of(flattened=[loader]),
        ),
        global_step=650,
        current_epoch=3,
        max_epochs=10,
        max_steps=-1,
        accumulate_grad_batches=1,
        strategy=_of(_optimizers=[_of(param_groups=[{"lr": 0.01}])]),
        _logger_connector=_of(_progress_bar_metrics={"train_loss": 0.75}, _logged_metrics={}),
    )


def _deepspeed() -> Any:
    optimizer = _of(param_groups=[{"lr": 0.001}])
    return _of(global_steps=8, global_samples=512, optimizer=optimizer)


def _composer() -> Any:
    at = {name: _of(value=40) for name in ("batch", "epoch", "sample", "token")}
    return _of(state=_of(timestamp=_of(**at), max_duration=_of(value=10, unit=_of(value="ep"))))


def _bar(desc: str, pos: int, postfix: str = "") -> Any:
    counts = {"n": 5, "total": 10, "disable": False, "unit": "it"}
    return _of(**counts, desc=desc, pos=pos, postfix=postfix)
