"""The times of enqueued collectives as bytes: decoding returns the encoded values, to the
microsecond.
"""

from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire.records import ARRIVALS_MAX, ROOTED, SYMMETRIC, GroupArrivals, arrivals_of

BASE = 1_700_000_000_000_000_000
ENTERED = st.dictionaries(
    st.integers(1, 5000),
    st.tuples(st.integers(BASE, BASE + 10**12), st.sampled_from([SYMMETRIC, ROOTED])),
    min_size=1,
)


@given(ENTERED)
def test_times_come_back_to_the_microsecond(entered):
    last = max(entered)
    kept = {seq: one for seq, one in entered.items() if seq > last - ARRIVALS_MAX}
    base = min(at for at, _ in kept.values())
    found = arrivals_of("0", entered).times()

    assert set(found) == set(kept)
    assert {seq: kind for seq, (_, kind) in found.items()} == {
        seq: kind for seq, (_, kind) in kept.items()
    }
    assert all(us == base // 1000 + (kept[seq][0] - base) // 1000 for seq, (us, _) in found.items())


def test_gaps_in_the_sequence_stay_gaps():
    """monitored_barrier advances the count and leaves no entry."""
    found = arrivals_of("0", {3: (BASE, SYMMETRIC), 7: (BASE + 5_000_000, ROOTED)})

    assert found.times() == {3: (BASE // 1000, SYMMETRIC), 7: (BASE // 1000 + 5000, ROOTED)}


def test_of_nothing_there_is_no_record():
    assert arrivals_of("0", {}) is None


@given(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 2**40), st.integers(0, 2**62))
def test_bytes_that_do_not_fit_together_are_no_error(after, kinds, first, base):
    found = GroupArrivals("0", first, base, after, kinds).times()

    assert len(found) <= min(len(after) // 4, len(kinds))
