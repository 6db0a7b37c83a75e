"""Parts of the agent that are off: as facts, and as notes for the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts

NOTES_MAX = 3
"""Most often the same part is off for the same reason on many ranks. `--json` has all of them."""
RANKS_NAMED = 4


@dataclass(frozen=True, slots=True)
class ProbeOff:
    """A part of a rank's agent that is off now, and why.

    Source: `RankState.probes_off` (`NAME: REASON`).
    """

    rank: int
    probe: str
    why: str


def probes_off(ranks: Iterable[RankFacts]) -> Iterator[ProbeOff]:
    """All parts that are off, by rank."""
    for facts in ranks:
        for text in facts.agent.probes_off:
            probe, _, why = text.partition(": ")
            yield ProbeOff(facts.rank, probe, why)


def notes(ranks: Iterable[RankFacts]) -> tuple[str, ...]:
    """One sentence for each part and reason, those of most ranks first."""
    found: dict[tuple[str, str], list[int]] = {}
    for one in probes_off(ranks):
        found.setdefault((one.probe, one.why), []).append(one.rank)
    first = sorted(found.items(), key=lambda item: -len(item[1]))[:NOTES_MAX]
    return tuple(
        f"the agent's part {probe!r} is off on {_ranks(numbers)}: {why}"
        for (probe, why), numbers in first
    )


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    named = ", ".join(str(number) for number in numbers[:RANKS_NAMED])
    return f"{len(numbers)} ranks ({named}{', ...' if len(numbers) > RANKS_NAMED else ''})"
