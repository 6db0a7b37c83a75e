"""Counts iterations with torch's own global optimizer-step hook: one store to the state page a
step.

A program with several optimizers steps them all in one iteration. Only the first one counts, until
it has not stepped for a while (a GAN that alternates, an optimizer that was replaced).
"""

from __future__ import annotations

from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.wire.page import ITERATION_AT, ITERATION_SOURCE_AT, SOURCE_OPTIMIZER, STEP_AT


def wrap(module: ModuleType) -> None:
    """Register the hook; torch keeps it in a list of its own, nothing is replaced."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        return
    # Torch is only half imported here: its attributes are looked up when the hook runs.
    torch = module.torch
    counted, others = 0, 0

    def count(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # In a trace of torch.compile this is the constant True: the rest vanishes and the graph
        # does not break.
        if torch.compiler.is_compiling():
            return
        nonlocal counted, others
        rank = current.get()
        if rank is None:
            return
        if counted != id(optimizer):
            others += 1
            if counted and others < rank.limits.optimizer_forget_steps:
                return
            counted = id(optimizer)
        others = 0
        words = rank.page.words
        source = words[ITERATION_SOURCE_AT]
        if source != SOURCE_OPTIMIZER:
            if source > SOURCE_OPTIMIZER:
                return
            words[ITERATION_AT], words[ITERATION_SOURCE_AT] = 0, SOURCE_OPTIMIZER
        rank.stepper = get_ident()
        words[ITERATION_AT] += 1
        words[STEP_AT] = monotonic_ns()

    register(count)
