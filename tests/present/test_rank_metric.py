"""The map coloured by a number: levels that distinguish the ranks and do not flicker."""

from __future__ import annotations

from ddtop.model.facts import State
from ddtop.present.map import AT_FAULT, LEVELS, Levelled, codes_of, map_metric, metrics_of
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


def test_the_lowest_value_is_the_first_level_and_the_highest_the_last():
    levels = levels_of(stepping(100.0, 150.0, 200.0, None))
    assert [levels.level(code) for code in levels.codes] == [0, 2, LEVELS - 1, None]
    assert (levels.low, levels.high, levels.worst) == (100.0, 200.0, 2)


def test_noise_among_equal_ranks_is_one_level():
    levels = levels_of(stepping(196.0, 197.0, 198.0, 196.5))
    assert len(set(levels.codes)) == 1


def test_a_value_that_moves_a_little_keeps_its_level():
    levelled = Levelled()
    first = levels_of(stepping(100.0, 139.0, 200.0), levelled=levelled)
    second = levels_of(stepping(100.0, 141.0, 200.0), levelled=levelled)
    third = levels_of(stepping(100.0, 150.0, 200.0), levelled=levelled)
    assert first.codes[1] == second.codes[1] != third.codes[1]


def test_the_range_stays_while_the_values_use_it():
    levelled = Levelled()
    levels_of(stepping(100.0, 200.0), levelled=levelled)
    assert levels_of(stepping(110.0, 190.0), levelled=levelled).high == 200.0
    assert levels_of(stepping(110.0, 260.0), levelled=levelled).high == 260.0


def test_of_gpus_the_idle_one_is_the_worst():
    snapshot = gpus.on_gpus(8, {3: {"util_ratio": 0.02}})
    levels = levels_of(snapshot, "gpu")
    assert levels.worst == 3
    assert levels.codes.index(max(levels.codes)) == 3
    assert levels.level(levels.codes[3]) == 0


def test_a_rank_at_fault_stands_above_all_levels():
    snapshot, _ = builders.hang()
    metric = map_metric("comm")
    assert metric is not None
    levels = Levelled().take(metric, snapshot, codes_of(snapshot, (5,)))
    assert levels.codes[5] >= AT_FAULT
    assert max(levels.codes) == levels.codes[5]


def test_a_job_without_gpus_offers_no_numbers_of_gpus():
    assert [one.key for one in metrics_of(builders.healthy())] == ["step", "comm", "rss"]
    assert {"gpu", "vram", "heat"} <= {one.key for one in metrics_of(gpus.on_gpus())}


def test_a_rank_that_is_gone_has_no_level():
    snapshot = stepping(100.0, 200.0)
    missing = type(snapshot.ranks[0])(1, State.MISSING)
    levels = levels_of(replace(snapshot, ranks=(snapshot.ranks[0], missing)), "rss")
    assert levels.level(levels.codes[1]) is None
