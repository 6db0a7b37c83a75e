"""A wrapper around the constructor of torch's pipeline stages: it remembers each stage once.

Nothing is wrapped that runs in a step. The probe reads what the stages keep for themselves.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard

_WRAPPED = "__ddtop_wrapped__"


def wrap(module: ModuleType) -> None:
    """Wrap the constructor in `torch.distributed.pipelining.stage`."""
    kind = getattr(module, "_PipelineStageBase", None)
    original = getattr(kind, "__init__", None)
    if kind is None or original is None or hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        guard.run("pipeline stages", _note, self)

    setattr(construct, _WRAPPED, True)
    kind.__init__ = construct


def _note(stage: Any) -> None:
    from ddtop.agent.probes.pipeline import PipelineProbe

    rank = current.get()
    if rank is None:
        return
    probe = rank.late_probes.get("pipeline")
    if not isinstance(probe, PipelineProbe):
        probe = rank.late_probes["pipeline"] = PipelineProbe(rank)
    probe.add(stage)
