from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire import frames
from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from ddtop.wire.truncation import fit_threads


def threads(count: int, depth: int, length: int, letter: str = "f") -> tuple[ThreadStack, ...]:
    frame = StackFrame(letter * length, letter * length, 12)
    return tuple(
        ThreadStack((frame,) * depth, f"thread {number}", number) for number in range(count)
    )


def sealed(found: tuple[ThreadStack, ...]) -> bytes:
    return frames.seal(
        Stacks("request", 3, 4711, 1, "signal", found), sender="0" * 12, unix_ns=1, mono_ns=1
    )


def test_stacks_that_fit_are_as_they_were() -> None:
    found = threads(100, 30, 40)

    assert fit_threads(found) == found


def test_of_too_deep_stacks_the_outer_frames_go_and_are_counted() -> None:
    """A hundred threads in a recursion of a hundred: the innermost frames show where they are."""
    found = fit_threads(threads(256, 128, 100))

    assert len(found) == 256
    assert {len(thread.frames) + thread.omitted for thread in found} == {128}
    assert all(thread.frames for thread in found)


def test_a_pool_of_threads_with_long_names_keeps_a_frame_of_each() -> None:
    """The names took what was left for the last four."""
    found = fit_threads(
        tuple(
            msgspec.structs.replace(thread, name=thread.name + "\u00e9" * 1000)
            for thread in threads(256, 4, 1000)
        )
    )

    assert all(thread.frames for thread in found)
    assert len({thread.name for thread in found}) == 256
    assert frames.open_record(frames.open_envelope(sealed(found)))


@given(
    st.integers(0, 256),
    st.integers(0, 128),
    st.integers(0, 1000),
    st.sampled_from("f\u00e9\U0001f600"),
)
def test_what_comes_out_can_always_be_sent(
    count: int, depth: int, length: int, letter: str
) -> None:
    """A frame over the limit is refused unread, and the missing answer of a rank would have no
    explanation.
    """
    found = fit_threads(threads(count, depth, length, letter))

    assert len(found) == count
    assert frames.open_record(frames.open_envelope(sealed(found)))
