"""Lists of ranks: from ranks to text, and from text to ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.words.sentences import rank_list, rank_ranges


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("3", [3]),
        ("0-2, 7", [0, 1, 2, 7]),
        ("7,0-1", [7, 0, 1]),
        ("5-3", []),
        ("3-", None),
        ("1,,2", None),
        ("", None),
        ("x", None),
        ("-1", None),
        ("12345678", None),
    ],
)
def test_a_list_of_ranks_is_read_as_people_write_it(text, ranks):
    found = rank_ranges(text)

    assert ranks == (None if found is None else [rank for one in found for rank in one])


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("3-", [3]), ("3-,", [3]), ("1,,2", [1, 2]), ("", []), ("-", None), ("3-x", None)],
)
def test_half_a_range_that_is_being_typed_is_its_first_rank(text, ranks):
    found = rank_ranges(text, unfinished=True)

    assert ranks == (None if found is None else [rank for one in found for rank in one])


@given(st.sets(st.integers(0, 9_999_999), min_size=1, max_size=30))
def test_a_list_that_is_written_is_read_back(ranks):
    found = rank_ranges(rank_list(ranks))

    assert {rank for one in found for rank in one} == ranks
