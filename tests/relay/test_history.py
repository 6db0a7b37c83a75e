"""What a relay remembers: it is bounded, whatever is received."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.relay import history
from ddtop.relay.history import FrameHistory
from ddtop.wire import frames
from ddtop.wire.records import Exit, Hello, RankState, Reply


def frame(record, rank=0, pid=1, at=0):
    data = frames.seal(record, sender="a", unix_ns=at, mono_ns=at, rank=rank, pid=pid)
    return frames.open_envelope(data), data


def state(number, rank=0):
    return frame(RankState("running", iteration=number), rank, at=number)


def iterations(found):
    records = [frames.open_record(frames.open_envelope(data)) for data in found]
    return [record.iteration for record in records if isinstance(record, RankState)]


def kinds(found):
    return [frames.open_envelope(data).kind for data in found]


def test_a_viewer_that_joins_gets_the_history_it_asked_for():
    kept = FrameHistory()
    for number in range(10):
        kept.keep(*state(number))

    assert iterations(kept.frames_since(6)) == [6, 7, 8, 9]


def test_it_gets_the_latest_of_every_rank_however_old():
    """A rank that froze an hour ago sent its last report then, and has a row."""
    kept = FrameHistory()
    kept.keep(*state(1, rank=3))
    for number in range(10, 20):
        kept.keep(*state(number))

    assert iterations(kept.frames_since(15)) == [1, 15, 16, 17, 18, 19]


def test_hellos_and_exits_outlive_the_history():
    """These records are sent once and hold for the whole run."""
    kept = FrameHistory(history_bytes=2000)
    kept.keep(*frame(Hello("j", "r", 0, 0, 0, 1, "h", 1, 1), at=1))
    kept.keep(*frame(Exit(0, 1, 1, None, False, 0, "pidfd"), at=2))
    for number in range(10, 500):
        kept.keep(*state(number))

    assert kinds(kept.frames_since(0))[:2] == ["Hello", "Exit"]


def test_no_frame_comes_twice():
    kept = FrameHistory()
    for number in range(5):
        kept.keep(*state(number))

    assert iterations(kept.frames_since(0)) == [0, 1, 2, 3, 4]


def test_frames_come_in_the_order_of_their_arrival():
    kept = FrameHistory()
    for number in (5, 3, 4):
        kept.keep(*state(number, rank=number))

    assert iterations(kept.frames_since(0)) == [5, 3, 4]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4000), max_size=60), st.integers(200, 20_000))
def test_the_history_fits_its_budget(sizes, budget):
    kept = FrameHistory(history_bytes=budget)
    for number, size in enumerate(sizes):
        kept.keep(*frame(Reply("x", text="y" * size), at=number))

    assert sum(len(data) for _, _, data, _ in kept._history) <= budget
    assert kept._bytes == sum(len(data) for _, _, data, _ in kept._history)


def test_invented_ranks_do_not_grow_it_and_are_counted(monkeypatch):
    monkeypatch.setattr(history, "LATEST_MAX", 50)
    kept = FrameHistory(history_bytes=1000)
    for number in range(500):
        kept.keep(*frame(RankState("running"), rank=number, pid=number))

    assert len(kept._latest) == 50
    assert kept.forgotten == 450


def test_of_other_hosts_nothing_is_in_what_a_successor_gets():
    """A relay that takes over receives records of their ranks from their own relays."""
    kept = FrameHistory()
    kept.keep(*state(1, rank=0))
    kept.keep(*state(2, rank=1), own=False)

    assert iterations(kept.frames_since(10, own=True)) == [1]
    assert iterations(kept.frames_since(10)) == [1, 2]


def test_another_frame_of_the_same_rank_is_not_known():
    kept = FrameHistory()
    kept.keep(*state(1))

    assert kept.has(*state(1))
    assert not kept.has(*state(2))


def test_large_frames_of_invented_ranks_do_not_grow_it(monkeypatch):
    monkeypatch.setattr(history, "LATEST_BYTES", 10_000)
    kept = FrameHistory(history_bytes=0)
    for rank in range(100):
        kept.keep(*frame(Hello("j" * 5000, "r", 0, rank, 0, 4, "h", rank, 1), rank))

    assert len(kept._latest) < 5
    assert kept.forgotten > 95
