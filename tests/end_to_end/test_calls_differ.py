"""Ranks that decide differently, in real jobs."""

import pytest

pytestmark = pytest.mark.torch


def test_a_step_that_one_rank_tried_again_is_told_while_the_job_runs(world):
    world.torchrun("parts", "again", ranks=3)

    found = world.finding("calls-differ", 60)

    assert (found["severity"], found["ranks"]) == ("warning", [1])
    assert "since step 61 (#62) of default_pg" in found["summary"]
    assert "it made 2 calls before the optimizer's step in train (parts.py:" in found["summary"]


def test_a_size_on_which_gloo_aborts_is_a_mismatch_with_both_lines(world):
    world.gloo_aborts = True
    world.torchrun("parts", "sizes", ranks=3)

    found = world.finding("collective-mismatch", 60)

    assert found["ranks"] == [1]
    assert "rank 1: all_reduce of 5 float32 in train (parts.py:" in found["summary"]


def test_another_line_for_the_same_call_is_no_difference(world):
    world.torchrun("parts", "even", ranks=3)

    assert world.moving(200, ranks=3)["findings"] == []
