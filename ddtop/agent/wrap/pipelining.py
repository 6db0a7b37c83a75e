"""A wrapper around the constructor of torch's pipeline stages: it remembers each stage once.

Nothing is wrapped that runs in a step. The probe reads what the stages keep for themselves.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.wrapper import replace


def wrap(module: ModuleType) -> None:
    """Wrap the constructor in `torch.distributed.pipelining.stage`."""
    kind = getattr(module, "_PipelineStageBase", None)
    if kind is not None:
        replace(
            kind,
            "__init__",
            lambda args, _kwargs: args[0],
            lambda stage, _made, error: error or guard.run("pipeline stages", _note, stage),
        )


def _note(stage: Any) -> None:
    from ddtop.agent.probes.pipeline import PipelineProbe

    rank = current.get()
    if rank is None:
        return
    probe = rank.late_probes.get("pipeline")
    if not isinstance(probe, PipelineProbe):
        probe = rank.late_probes["pipeline"] = PipelineProbe(rank)
    probe.add(stage)
