"""Random programs judge the comparison of calls; here a few of them, always the same ones."""

from collections import Counter
from random import Random

from zoo.random_calls import Writer, faulty, healthy, partings, run


def test_ranks_that_draw_their_lines_for_themselves_are_left_in_peace():
    assert [seed for seed, _, found in healthy(range(5000, 5040)) if found] == []


def test_a_rank_with_calls_of_its_own_is_named_in_half_of_the_programs():
    got = Counter(what for _, _, what in faulty(range(5000, 5060)))

    assert got["wrong"] <= 1
    assert got["right"] > got["missed"]


def test_ranks_without_draws_and_without_a_fault_have_the_same_turns():
    program = Writer(Random(5), draws=False).program()
    ranks = [run(program, 5, rank) for rank in range(3)]

    assert ranks[0].calls == ranks[1].calls > 0
    assert partings(ranks) == []
