"""What is queued for the hub: in order, bounded, and only the newest state of each rank."""

from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.hub.uplink import BATCH_BYTES, BATCH_FRAMES, Outbox
from ddtop.wire import frames
from ddtop.wire.records import Groups, RankState


def frame(record, rank=0):
    data = frames.seal(record, sender="a", unix_ns=1, mono_ns=1, rank=rank, pid=rank + 100)
    return frames.open_envelope(data), data


def state(iteration, rank=0):
    return frame(RankState("running", iteration=iteration), rank)


def sent(outbox, messages=100):
    """The messages of frames that a hub gets which accepts everything."""
    found = []
    outbox.send(lambda batch: (found.append(batch), True)[1], messages)
    return found


def test_facts_go_before_what_is_new():
    outbox = Outbox(list)
    outbox.begin([b"one", b"two"])
    outbox.put(*state(7))

    assert sent(outbox) == [[b"one", b"two", state(7)[1]]]
    assert not outbox


def test_the_newest_state_of_a_rank_replaces_the_one_that_waits():
    outbox = Outbox(list)
    for iteration in range(5):
        outbox.put(*state(iteration))
        outbox.put(*state(iteration, rank=1))

    assert sent(outbox) == [[state(4)[1], state(4, rank=1)[1]]]
    assert outbox.dropped == 0


def test_behind_a_hub_that_takes_nothing_states_that_were_replaced_are_counted():
    outbox = Outbox(list)
    outbox.put(*state(1))
    outbox.send(lambda batch: False, 5)
    outbox.put(*state(2))

    assert outbox.dropped == 1
    assert sent(outbox) == [[state(2)[1]]]


def test_other_records_are_all_kept_in_order():
    outbox = Outbox(list)
    told = [frame(Groups(()), rank) for rank in (0, 0, 1)]
    for one in told:
        outbox.put(*one)

    assert sent(outbox) == [[data for _, data in told]]


def test_what_does_not_fit_is_dropped_oldest_first_counted_and_told_again_when_it_was_a_fact():
    outbox = Outbox(lambda: [b"all facts"], bytes_max=300)
    for rank in range(20):
        outbox.put(*frame(Groups(()), rank))
    found = sent(outbox)

    assert outbox.dropped > 0
    assert found[0][-1] == frame(Groups(()), 19)[1]
    assert found[-1] == [b"all facts"]


def test_nothing_is_lost_when_a_message_is_refused():
    outbox = Outbox(list)
    outbox.begin([b"fact"])
    outbox.put(*state(1))
    outbox.send(lambda batch: False, 5)

    assert sent(outbox) == [[b"fact", state(1)[1]]]


def test_a_hub_that_is_gone_leaves_nothing_waiting():
    outbox = Outbox(list)
    outbox.put(*state(1))
    outbox.clear()

    assert not outbox
    assert outbox.dropped == 1


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200_000)), max_size=40),
    st.integers(1, 500),
)
def test_no_message_is_larger_than_it_may_be_and_all_frames_arrive(sizes, singles):
    outbox = Outbox(list, bytes_max=1 << 30)
    outbox.begin([b"x" * size for _, size in sizes])
    for rank in range(singles):
        outbox.put(*state(1, rank))
    found = sent(outbox, 10_000)

    assert sum(len(batch) for batch in found) == len(sizes) + singles
    assert all(
        len(batch) <= BATCH_FRAMES and (len(batch) == 1 or sum(map(len, batch)) <= BATCH_BYTES)
        for batch in found
    )
