"""Frames in a file and back: whatever happened to the file, every whole frame before the damage is there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop import journal

FRAMES = (b"first", b"", b"third frame, a longer one", bytes(range(256)))


def bytes_of(tmp_path, frames=FRAMES):
    path = tmp_path / "job.last"
    journal.write(path, frames)
    return path.read_bytes()


def bounds(frames):
    """End of each frame behind the head."""
    ends, at = [], 0
    for frame in frames:
        at += 8 + len(frame)
        ends.append(at)
    return ends


def test_what_was_written_is_read(tmp_path):
    journal.write(tmp_path / "job.last", FRAMES)

    assert journal.read(tmp_path / "job.last") == journal.Reading(FRAMES, None)
    assert (tmp_path / "job.last").stat().st_mode & 0o777 == 0o600


def test_an_empty_journal_is_whole(tmp_path):
    journal.write(tmp_path / "job.last", ())

    assert journal.read(tmp_path / "job.last") == journal.Reading((), None)


def test_a_second_write_replaces_the_first_whole(tmp_path):
    journal.write(tmp_path / "job.last", FRAMES)
    journal.write(tmp_path / "job.last", FRAMES[:1])

    assert journal.read(tmp_path / "job.last").frames == FRAMES[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["job.last"]


def test_a_write_that_fails_leaves_the_old_journal_and_nothing_else(tmp_path):
    """The disk was full at the very end: the last state of an hour ago is better than half of one."""
    journal.write(tmp_path / "job.last", FRAMES)

    def failing():
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        journal.write(tmp_path / "job.last", failing())

    assert journal.read(tmp_path / "job.last").frames == FRAMES
    assert [path.name for path in tmp_path.iterdir()] == ["job.last"]


def test_cut_at_every_byte_all_whole_frames_before_are_read(tmp_path):
    """The scheduler killed the relay with the step, in the middle of a write."""
    data = bytes_of(tmp_path)[len(journal.HEAD) :]
    ends = bounds(FRAMES)

    for size in range(len(data)):
        reading = journal.parse(data[:size])
        whole = sum(1 for end in ends if end <= size)
        assert reading.frames == FRAMES[:whole]
        assert (reading.damage is None) == (size in (0, *ends))


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
def test_flipped_bits_cost_only_what_comes_after_them(tmp_path_factory, frames, data):
    content = bytearray(bytes_of(tmp_path_factory.getbasetemp(), frames)[len(journal.HEAD) :])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))

    reading = journal.parse(bytes(content))

    before = sum(1 for end in bounds(frames) if end <= at)
    assert list(reading.frames[:before]) == frames[:before]
    assert len(reading.frames) == before
    assert reading.damage is not None


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing(data):
    journal.parse(data)


def test_a_length_of_four_gigabytes_is_damage_and_not_memory(tmp_path):
    reading = journal.parse(b"\xff\xff\xff\xff" + b"\x00" * 100)

    assert reading == journal.Reading((), "damaged frame length at byte 0")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a ddtop journal"),
        (b"PK\x03\x04 a zip", "is not a ddtop journal"),
        (b"ddtop journal 2\n....", "is 'ddtop journal 2', this ddtop reads 1"),
        (journal.HEAD[:-1], "this ddtop reads 1"),
    ],
)
def test_a_foreign_or_newer_file_is_refused_with_the_reason(tmp_path, content, why):
    (tmp_path / "x.last").write_bytes(content)

    with pytest.raises(journal.JournalError, match=why):
        journal.read(tmp_path / "x.last")


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(journal.JournalError, match=r"cannot read .*x\.last: No such file"):
        journal.read(tmp_path / "x.last")
