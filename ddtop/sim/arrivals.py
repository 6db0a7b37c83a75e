"""The answers of agents to their relay's request for exact arrivals: the slow rank arrives last."""

from __future__ import annotations

from collections.abc import Callable

from ddtop.sim.fleet import DIGITS, FOLDER, LAYERS, SCRIPT, WORLD, SimulatedFleet
from ddtop.sim.incidents import HASTY, SLOW, Era
from ddtop.wire.records import Arrivals
from ddtop.wire.samples import SYMMETRIC, Spot, arrivals_of

ASKED_S = (8.0, 11.0, 16.0, 26.0, 46.0)
"""The times after ranks have begun to wait unevenly at which their relay asks; later it asks once a
minute."""
ASKED_AGAIN_S = 60.0
STEPS_TOLD = 64
EARLY_RATIO = 0.42
"""The share of a step by which the others arrive earlier than a slow rank. In a healthy job
arrivals differ by CHANCE_S at most.
"""
CHANCE_S, BETWEEN_S = 0.012, 0.01

SPOTS_SAMPLES = 240
_SPOTS = {
    SLOW: (
        Spot("rotary_cache", f"{FOLDER}/model.py", 41, 96),
        Spot("train_step", f"{FOLDER}/{SCRIPT}", 126, 88),
        Spot("forward", f"{FOLDER}/model.py", 74, 47),
    ),
    HASTY: (
        Spot("train_step", f"{FOLDER}/{SCRIPT}", 129, 101, "collective"),
        Spot("train_step", f"{FOLDER}/{SCRIPT}", 126, 76),
        Spot("forward", f"{FOLDER}/model.py", 74, 46),
    ),
}
_USUAL = (
    Spot("train_step", f"{FOLDER}/{SCRIPT}", 126, 112),
    Spot("forward", f"{FOLDER}/model.py", 74, 65),
    Spot("train_step", f"{FOLDER}/{SCRIPT}", 129, 38, "collective"),
)


def spots_of(role: str) -> tuple[Spot, ...]:
    """Where its agent found a rank most often in the last minute."""
    return _SPOTS.get(role, _USUAL)


def is_asked(era: Era, from_s: float, until_s: float) -> bool:
    """Whether the relay of a slow rank asks in this stretch of the attempt."""
    later = (from_s - era.begin_s, until_s - era.begin_s)
    if any(later[0] <= asked < later[1] for asked in ASKED_S):
        return True
    beyond = (later[1] - ASKED_S[-1]) % ASKED_AGAIN_S
    return later[0] > ASKED_S[-1] and beyond < until_s - from_s


def arrivals(
    fleet: SimulatedFleet,
    era: Era,
    rank: int,
    at_s: float,
    unix_ns: Callable[[float], int],
    base_step: int,
    request: str,
) -> Arrivals:
    """When the rank enqueued its last collectives in the group of its host."""
    last = int(era.steps_at(at_s))
    group, per_step = (fleet.groups_of(rank)[-1], LAYERS) if fleet.grouped else (WORLD, 1)
    entered = {}
    for step in range(last - STEPS_TOLD + 1, last + 1):
        since = step - era.steps
        ended_s = era.begin_s + since * (era.step_s if since > 0 else fleet.step_s)
        noise = fleet.noise[(rank * 173 + step * 59) % DIGITS]
        early_s = CHANCE_S * noise
        if since > 0:
            early_s = (
                0.0 if era.role(rank) == SLOW else era.step_s * EARLY_RATIO * (0.9 + 0.2 * noise)
            )
        number = per_step * (base_step + step)
        for before in range(1, per_step):
            # These have no late rank: only the last collective of a step shows the slow rank.
            entered[number - before] = (
                unix_ns(ended_s - 0.5 * era.step_s - BETWEEN_S * before),
                SYMMETRIC,
            )
        entered[number] = (unix_ns(ended_s - early_s), SYMMETRIC)
    reported = arrivals_of(group, entered)
    return Arrivals(request, (reported,) if reported is not None else (), base_step + last)
