"""Text that all ranks report is kept once, and each rank's report stays what it was."""

from ddtop.model.memory import share_text
from ddtop.wire import frames
from ddtop.wire.records import Hello


def hello(rank):
    """A Hello as it arrives: all its text is its own copy."""
    made = Hello(
        "train", "run 7", 0, rank, 0, 2, "node 0", 40 + rank, 5, script="train it.py",
        argv=("train it.py", "--lr"), environment={"RANK": str(rank), "MASTER_ADDR": "node 0"},
    )  # fmt: skip
    data = frames.seal(made, sender="a", unix_ns=0, mono_ns=0, rank=rank, pid=40 + rank)
    return frames.open_record(frames.open_envelope(data))


def test_the_same_text_of_two_ranks_is_one_object():
    first, second = hello(0), hello(1)
    assert first.script is not second.script

    share_text(first, None)
    share_text(second, first)

    assert first.script is second.script
    assert first.run is second.run
    assert first.argv is second.argv
    assert first.environment["MASTER_ADDR"] is second.environment["MASTER_ADDR"]


def test_a_hello_says_the_same_before_and_after():
    first, second = hello(0), hello(1)

    share_text(first, None)
    share_text(second, first)

    assert (first, second) == (hello(0), hello(1))
