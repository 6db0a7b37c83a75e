"""The map coloured by a number: levels that distinguish the ranks and do not flicker."""

import pytest

from ddtop.model.facts import State
from ddtop.present.map import (
    AT_FAULT,
    BLOCKED,
    CULPRIT,
    LEVELS,
    MISSING,
    STRAGGLER,
    UNKNOWN,
    Levelled,
    codes_of,
    map_metric,
    metrics_of,
    state_of,
)
from ddtop.present.numbers import NUMBERS
from tests.ui import builders, gpus
from tests.ui.changed import replace


def stepping(*steps):
    snapshot = builders.healthy(len(steps))
    ranks = tuple(
        replace(rank, progress={"step_ms": step})
        for rank, step in zip(snapshot.ranks, steps, strict=True)
    )
    return replace(snapshot, ranks=ranks)


def levels_of(snapshot, key="step", levelled=None):
    metric = map_metric(key)
    assert metric is not None
    return (levelled or Levelled()).take(metric, snapshot, codes_of(snapshot))


def level(levels, rank):
    return levels.codes[rank] - 1


def test_the_best_value_is_the_first_level_and_the_worst_the_last():
    levels = levels_of(stepping(100.0, 150.0, 200.0, None))
    assert [level(levels, rank) for rank in range(3)] == [0, 2, LEVELS - 1]
    assert levels.codes[3] == UNKNOWN
    assert levels.ends() == ("100.0 ms", "200.0 ms")


def test_noise_among_equal_ranks_is_one_level_and_names_nobody():
    levels = levels_of(stepping(196.0, 197.0, 198.0, 196.5))
    assert set(levels.codes) == {1}
    assert levels.worst is None


def test_one_rank_that_is_better_does_not_make_all_others_bad():
    levels = levels_of(waiting(*[0.4] * 7, 0.9))
    assert set(levels.codes) == {1}
    assert levels.worst is None


def test_a_value_that_moves_a_little_keeps_its_level():
    levelled = Levelled()
    first = levels_of(stepping(100.0, 139.0, 200.0), levelled=levelled)
    second = levels_of(stepping(100.0, 141.0, 200.0), levelled=levelled)
    third = levels_of(stepping(100.0, 155.0, 200.0), levelled=levelled)
    assert first.codes[1] == second.codes[1] != third.codes[1]


def test_a_healthy_job_whose_waits_go_up_and_down_a_little_does_not_flicker():
    levelled = Levelled()
    looks = [
        waiting(*[0.2 + 0.025 * ((rank * 7 + look) % 3) for rank in range(64)]) for look in range(8)
    ]
    shown = {levels_of(look, "comm", levelled).codes for look in looks}
    assert len(shown) == 1


def test_the_range_stays_while_the_values_use_it():
    levelled = Levelled()
    levels_of(stepping(100.0, 200.0), levelled=levelled)
    assert levels_of(stepping(110.0, 190.0), levelled=levelled).bad == 200.0
    assert levels_of(stepping(110.0, 260.0), levelled=levelled).bad == 260.0


def waiting(*ratios):
    snapshot = builders.healthy(len(ratios))
    ranks = tuple(
        replace(rank, comm={"wait_ratio": ratio})
        for rank, ratio in zip(snapshot.ranks, ratios, strict=True)
    )
    return replace(snapshot, ranks=ranks)


def test_the_rank_that_waits_least_is_the_one_that_the_others_wait_for():
    levels = levels_of(waiting(0.48, 0.45, 0.02, 0.42, 0.45, 0.48), "comm")
    assert levels.worst == 2
    assert [code for code in levels.codes if code == LEVELS] == [levels.codes[2]]
    assert levels.ends() == ("48%", "2%")


def test_of_gpus_the_idle_one_is_the_worst():
    levels = levels_of(gpus.on_gpus(8, {3: {"util_ratio": 0.02}}), "gpu")
    assert levels.worst == 3
    assert levels.codes.index(max(levels.codes)) == 3


@pytest.mark.parametrize("watts", [90.0, 990.0])
def test_of_powers_the_one_farthest_from_the_others_is_the_worst(watts):
    levels = levels_of(gpus.on_gpus(8, {5: {"power_watts": watts}}), "power")
    assert levels.worst == 5
    assert levels.codes[5] == LEVELS
    assert levels.ends()[1].endswith(" W away")


def test_two_halves_of_a_job_that_differ_name_nobody():
    levels = levels_of(stepping(*[100.0] * 8, *[200.0] * 8))
    assert levels.worst is None
    assert (level(levels, 0), level(levels, 15)) == (0, LEVELS - 1)


def test_every_number_of_the_map_has_its_bad_end():
    ends = {number.key: number.scale.bad for number in NUMBERS if number.scale.label}
    assert ends == {
        "step": "high",
        "comm": "low",
        "cpu": "far",
        "rss": "high",
        "gpu": "low",
        "vram": "high",
        "power": "far",
        "heat": "high",
    }


def test_a_straggler_keeps_its_mark_on_a_map_of_numbers_and_blocked_ranks_their_values():
    snapshot = waiting(*[0.45] * 8)
    states = bytearray([BLOCKED]) * 8
    states[3], states[4] = STRAGGLER, CULPRIT + AT_FAULT
    metric = map_metric("comm")
    assert metric is not None
    levels = Levelled().take(metric, snapshot, bytes(states))

    assert [state_of(code) for code in levels.codes[2:5]] == [None, STRAGGLER, CULPRIT + AT_FAULT]
    assert LEVELS < levels.codes[3] < AT_FAULT <= levels.codes[4]


def test_a_rank_at_fault_stands_above_all_levels():
    snapshot, _ = builders.hang()
    metric = map_metric("comm")
    assert metric is not None
    levels = Levelled().take(metric, snapshot, codes_of(snapshot, (5,)))
    assert levels.codes[5] >= AT_FAULT
    assert max(levels.codes) == levels.codes[5]


def test_a_job_without_gpus_offers_no_numbers_of_gpus():
    assert [one.key for one in metrics_of(builders.healthy())] == ["step", "comm", "cpu", "rss"]
    assert {"gpu", "vram", "power", "heat"} <= {one.key for one in metrics_of(gpus.on_gpus())}


def test_a_rank_that_is_gone_has_no_level():
    snapshot = stepping(100.0, 200.0)
    missing = type(snapshot.ranks[0])(1, State.MISSING)
    levels = levels_of(replace(snapshot, ranks=(snapshot.ranks[0], missing)), "rss")
    assert levels.values[1] is None
    assert state_of(levels.codes[1]) == MISSING
