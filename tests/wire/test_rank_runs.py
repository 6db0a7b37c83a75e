"""Members of large groups in few bytes."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire.records import MEMBERS_MAX, Group, pack, unpack

ranks = st.one_of(
    st.lists(st.integers(0, 200), max_size=60),
    st.builds(
        lambda first, count, step: list(range(first, first + count * step, step)),
        *[st.integers(1, 90)] * 3,
    ),
)


@given(st.lists(ranks, max_size=4))
def test_what_was_packed_has_the_same_members_in_the_same_order(parts):
    group = Group("7", "dp_7", tuple(rank for part in parts for rank in part), "nccl")

    assert unpack(pack(group)) == group


def test_ten_thousand_members_are_a_few_bytes_and_are_shared_by_all_who_tell_them():
    data = msgspec.msgpack.encode(pack(Group("1", "dp_1", tuple(range(1, 80_000, 8)), "nccl")))
    one, other = (unpack(msgspec.msgpack.decode(data, type=Group)) for _ in range(2))

    assert len(data) < 64
    assert one.ranks == tuple(range(1, 80_000, 8))
    assert one.ranks is other.ranks


@given(
    st.lists(
        st.tuples(st.integers(-5, 5), st.integers(-5, 1 << 62), st.integers(-3, 3)),
        min_size=1,
        max_size=5,
    )
)
def test_runs_that_nobody_may_have_are_no_members(runs):
    found = unpack(Group("1", "", (), "nccl", tuple(runs)))

    counts = [count for _, count, _ in runs]
    fits = min(counts) >= 0 and sum(counts) <= MEMBERS_MAX
    assert len(found.ranks) == (sum(counts) if fits else 0)
