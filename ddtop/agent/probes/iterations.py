"""How many iterations the rank has finished, and how long one takes.

Source: the first of these that counts: `ddtop.step()`, torch's optimizer hook (`wrap.optimizer`),
batches of a DataLoader (`wrap.dataloader`), the pattern of MPI's collectives (`mpi.rhythm`). All
but the last are words of the state page. Caveat: with gradient accumulation an optimizer step
is several batches. Check: the program's own log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddtop.agent.notes import GradientNotes
from ddtop.agent.probe import Probe, Tick
from ddtop.wire import page as layout

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank


def probe(rank: Rank) -> IterationsProbe:
    """The probe of `ddtop.agent.sources`."""
    return IterationsProbe(rank)


class IterationsProbe(Probe):
    """Follows the counters on the state page."""

    name = "iterations"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._batches = 0
        # (iteration, when it ended in monotonic ns).
        self._steps: list[tuple[int, int]] = []

    def sample(self, tick: Tick) -> None:
        """Count batches or MPI's pattern if nothing better counts; remember when steps ended."""
        words, steps = self._rank.page.words, self._steps
        batches = words[layout.BATCHES_AT]
        if batches != self._batches:
            self._batches, self.moved_at = batches, tick.now
            if words[layout.ITERATION_SOURCE_AT] <= layout.SOURCE_BATCH:
                words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_BATCH
                words[layout.ITERATION_AT], words[layout.STEP_AT] = batches, tick.now
        # A counter of steps is better than a pattern.
        silent = words[layout.ITERATION_SOURCE_AT] in (
            layout.SOURCE_NONE,
            layout.SOURCE_COLLECTIVES,
        )
        if silent and tick.pattern is not None:
            words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_COLLECTIVES
            words[layout.ITERATION_AT], words[layout.STEP_AT] = tick.pattern
        iteration, at = words[layout.ITERATION_AT], words[layout.STEP_AT]
        if not at or (steps and steps[-1][0] == iteration):
            return
        if steps and iteration < steps[-1][0]:
            steps.clear()  # another source counts from its own beginning
        steps.append((iteration, at))
        self.moved_at = tick.now
        # Keep at least the last two, so that the length of very long steps is known.
        while len(steps) > 2 and at - steps[1][1] > self._rank.limits.step_window_ns:
            steps.pop(0)

    def fields(self, tick: Tick) -> Mapping[str, Any]:
        """The count, its source, the length of a step, and what is trained without a group."""
        words = self._rank.page.words
        source = words[layout.ITERATION_SOURCE_AT]
        known = 0 <= source < len(layout.SOURCES)
        return {
            "iteration": words[layout.ITERATION_AT] if source else None,
            "iteration_source": layout.SOURCES[source] if known else None,
            "step_ms": self._step_ms(),
            "trains": None if tick.groups else self._rank.notes[GradientNotes].trains,
        }

    def _step_ms(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (first, began), (last, ended) = self._steps[0], self._steps[-1]
        return (ended - began) / (last - first) / 1e6 if last > first else None
