"""Counts iterations with torch's own global optimizer-step hook: one store to the state page a
step.

A program with several optimizers steps them all in one iteration. Only the first one counts, until
it has not stepped for a while (a GAN that alternates, an optimizer that was replaced).

Of a rank without a process group it also describes what is trained: ranks that all train the same
are meant to train together.
"""

from __future__ import annotations

import zlib
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import GradientNotes
from ddtop.agent.plain import held_by, name_of, shown
from ddtop.agent.probes.calls import PART, CallNotes
from ddtop.agent.probes.replicas import ReplicaNotes, may_be_asked
from ddtop.agent.wrap.collectives import note_step
from ddtop.wire.page import ITERATION_AT, ITERATION_SOURCE_AT, SOURCE_OPTIMIZER, STEP_AT

SAMPLES = "replica samples"
"""Name in `probes_off`."""
_SEEDS = 1 << 32
"""Seeds that people choose are below. A generator that nobody seeds draws one of 53 bits."""


def wrap(module: ModuleType) -> None:
    """Register the hook; torch keeps it in a list of its own, nothing is replaced."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        return
    # Torch is only half imported here: its attributes are looked up when the hook runs.
    torch = module.torch
    counted, others = 0, 0

    # What a rank's notes are, so that a step looks nothing up: after a long one nothing of it is in
    # the caches of the CPU.
    noted: tuple[Any, ...] = (None,)

    def count(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal counted, others, noted
        # In a trace of torch.compile this is the constant True: the rest vanishes and the graph
        # does not break.
        if torch.compiler.is_dynamo_compiling():
            return
        rank = current._rank
        if rank is None:
            return
        if noted[0] is not rank:
            noted = rank, rank.page.words, rank.notes[ReplicaNotes], rank.notes[CallNotes]
        _, words, replicas, calls = noted
        off = guard.off
        # As `guard.run` does, which costs 4 us here.
        if replicas.models and SAMPLES not in off:
            try:
                replicas.count(optimizer, torch)
            except BaseException as error:  # noqa: BLE001 - the job must not see it
                guard.raised(SAMPLES, error)
        if counted != id(optimizer):
            others += 1
            if counted and others < rank.limits.optimizer_forget_steps:
                return
            if not rank.joined and (rank.who.world_size or 0) > 1:
                guard.run("trains", _note, rank, optimizer, torch, not counted)
            counted = id(optimizer)
        others = 0
        source = words[ITERATION_SOURCE_AT]
        if source != SOURCE_OPTIMIZER:
            if source > SOURCE_OPTIMIZER:
                return
            words[ITERATION_AT], words[ITERATION_SOURCE_AT] = 0, SOURCE_OPTIMIZER
        rank.stepper = get_ident()
        step = words[ITERATION_AT] = words[ITERATION_AT] + 1
        words[STEP_AT] = monotonic_ns()
        if PART not in off:
            try:
                note_step(rank, calls, step)
            except BaseException as error:  # noqa: BLE001 - the job must not see it
                guard.raised(PART, error)

    register(count)


def _note(rank: Any, optimizer: Any, torch: Any, first: bool) -> None:
    # A program that replaces its optimizer again and again fits something anew for each sample.
    rank.notes[GradientNotes].trains = _digest(optimizer, torch) if first else None


def _digest(optimizer: Any, torch: Any) -> str:
    """Of the parameters' shapes, the optimizer's settings and the seed. Once, about 1 ms."""
    seed = torch.initial_seed()
    parts: list[object] = [name_of(type(optimizer)), seed if seed < _SEEDS else None]
    for group in held_by(optimizer).get("param_groups") or ():
        # The repr of a tensor might wait for its GPU.
        parts.append(sorted(f"{name}={shown(group[name])}" for name in group if name != "params"))
        parts.append(
            [
                (tuple(one.shape), str(one.dtype)) if may_be_asked(one, torch) else None
                for one in group["params"]
            ]
        )
    return f"{zlib.crc32(repr(parts).encode()):08x}"
