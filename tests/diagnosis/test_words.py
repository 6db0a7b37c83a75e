"""Numbers and places as a sentence has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.diagnosis.words import collective_text, duration, names_of_groups, rank_range, ranks_text, tensor_text
from ddtop.wire.records import Collective, Group


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([2], "2"), ([0, 1], "0,1"), ([0, 1, 2], "0-2"), ([7, 0, 2, 3, 4, 4], "0,2-4,7"), ([], ""), (range(512), "0-511")],
)
def test_rank_range(ranks, text):
    assert rank_range(ranks) == text


@given(st.sets(st.integers(0, 200)))
def test_a_rank_range_names_each_rank_once(ranks):
    named = set()
    for part in filter(None, rank_range(ranks).split(",")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))

    assert named == ranks


def test_very_many_ranks_are_counted():
    assert ranks_text(range(0, 400, 2)) == "200 ranks"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (0.44, "0.4 s"), (31.9, "31 s"), (119, "119 s"), (125, "2 min 5 s"), (1800, "30 min"),
     (3780, "1 h 3 min")],
)  # fmt: skip
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_collective_is_named_as_far_as_it_is_known():
    assert collective_text("all_reduce", 1203, "default_pg") == "all_reduce #1203 of default_pg"
    assert collective_text(None, None, None) == "collective"


def test_several_tensors_of_one_collective_are_added_up():
    call = Collective("0", "all_gather", 1, 1, ((2, 3), (4,)), ("Float", "Long"))

    assert tensor_text(call) == "all_gather of 10 float,long"
    assert tensor_text(Collective("0", "barrier", 1, 1)) == "barrier"


def test_groups_with_one_description_are_told_apart_by_their_names():
    groups = [Group("0", "default_pg", (0, 1), "gloo"), Group("1", "tp", (0,), "gloo"), Group("2", "tp", (1,), "gloo")]

    assert names_of_groups(groups) == {"0": "default_pg", "1": "tp 1", "2": "tp 2"}
