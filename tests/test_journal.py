"""Frames in a file and back: however the file was damaged, every whole frame before the damage is
read.
"""

import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop import journal
from tests.journals import read_journal

FRAMES = (b"first", b"2", b"third frame, a longer one", bytes(range(256)))


def bounds(frames):
    """The offset of the end of each frame after the header."""
    ends, at = [], 0
    for frame in frames:
        at += 8 + len(frame)
        ends.append(at)
    return ends


def test_what_was_written_is_read(tmp_path):
    journal.write(tmp_path / "job.last", FRAMES)

    assert journal.read(tmp_path / "job.last") == journal.JournalFrames(FRAMES, None)
    assert (tmp_path / "job.last").stat().st_mode & 0o777 == 0o600


def test_an_empty_journal_is_whole(tmp_path):
    journal.write(tmp_path / "job.last", ())

    assert journal.read(tmp_path / "job.last") == journal.JournalFrames((), None)


def test_a_second_write_replaces_the_first_whole(tmp_path):
    journal.write(tmp_path / "job.last", FRAMES)
    journal.write(tmp_path / "job.last", FRAMES[:1])

    assert journal.read(tmp_path / "job.last").frames == FRAMES[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["job.last"]


def test_a_write_that_fails_leaves_the_old_journal_and_nothing_else(tmp_path):
    """The disk was full at the very end. The last state of an hour ago is better than half of a
    newer one.
    """
    journal.write(tmp_path / "job.last", FRAMES)

    def failing():
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        journal.write(tmp_path / "job.last", failing())

    assert journal.read(tmp_path / "job.last").frames == FRAMES
    assert [path.name for path in tmp_path.iterdir()] == ["job.last"]


def test_a_length_of_four_gigabytes_is_damage_and_not_memory(tmp_path):
    reading = journal.parse(b"\xff\xff\xff\xff" + b"\x00" * 100)

    assert reading == journal.JournalFrames((), "damaged frame length at byte 0")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
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


@pytest.mark.parametrize("what", ["folder", "pipe", "loop", "name"])
def test_what_is_no_file_is_refused_and_does_not_block(tmp_path, what):
    """A person types the folder instead of the file. Opening a pipe would wait for a writer for
    ever.
    """
    path = tmp_path / ("x" * (300 if what == "name" else 1))
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path)

    for reading in (journal.read, read_journal):
        with pytest.raises(journal.JournalError, match=r"is not a file|cannot read"):
            reading(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused_with_the_reason(tmp_path):
    (tmp_path / "x").touch(mode=0o000)

    with pytest.raises(journal.JournalError, match="Permission denied"):
        journal.read(tmp_path / "x")


def test_zeros_are_damage_and_not_a_million_empty_frames(tmp_path):
    """The content that ext4 leaves of a file that was being written when the power failed."""
    journal.write(tmp_path / "x", FRAMES)
    with (tmp_path / "x").open("ab") as file:
        size = file.tell()
        file.truncate(size + (1 << 20))

    assert journal.read(tmp_path / "x") == journal.JournalFrames(
        FRAMES, f"damaged frame length at byte {size}"
    )


# -- the journal of a relay


FACTS = (b"hello of rank 0", b"hello of rank 1")


def numbered(count, first=0):
    return [b"frame %06d " % number + b"x" * 80 for number in range(first, first + count)]


def write_in_batches(box, frames, of=16):
    for start in range(0, len(frames), of):
        box.append(frames[start : start + of])


def on_disk(path):
    return sum(one.stat().st_size for one in path.parent.iterdir())


def test_a_black_box_keeps_to_its_budget_and_loses_only_the_oldest(tmp_path):
    path, frames = tmp_path / "x.journal", numbered(4000)
    box = journal.Journal(path, 64 << 10, lambda: FACTS)
    for start in range(0, len(frames), 16):
        box.append(frames[start : start + 16])
        assert on_disk(path) <= 64 << 10
    box.close()

    reading = read_journal(path)

    kept = [frame for frame in reading.frames if frame not in FACTS]
    assert reading.damage is None
    assert kept == frames[-len(kept) :]
    assert sum(len(frame) for frame in kept) > 24 << 10
    assert reading.frames[:2] == FACTS
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


def test_what_was_carried_over_is_read_once(tmp_path):
    path = tmp_path / "x.journal"
    box = journal.Journal(path, 16 << 10, lambda: FACTS)
    write_in_batches(box, [*FACTS, *numbered(100)])
    box.close()

    assert journal.older_half(path).exists()
    assert list(journal.read(path).frames[:2]) == list(FACTS)
    assert sorted(read_journal(path).frames) == sorted([*FACTS, *numbered(100)])


@pytest.mark.parametrize("lost", ["newer", "older"])
def test_one_half_alone_is_read(tmp_path, lost):
    """If the relay is killed between the two renames there is no newer half."""
    path = tmp_path / "x.journal"
    box = journal.Journal(path, 16 << 10, lambda: FACTS)
    write_in_batches(box, numbered(150))
    box.close()
    (path if lost == "newer" else journal.older_half(path)).unlink()

    reading = read_journal(path)

    kept = [frame for frame in reading.frames if frame not in FACTS]
    assert reading.damage is None
    assert kept
    assert kept == [frame for frame in numbered(150) if frame in kept]


def test_a_world_whose_facts_are_larger_than_the_box_does_not_burst_it(tmp_path):
    path = tmp_path / "x.journal"
    box = journal.Journal(path, 64 << 10, lambda: numbered(10_000))
    write_in_batches(box, numbered(2000, first=50_000))
    box.close()

    assert on_disk(path) <= 64 << 10
    assert read_journal(path).frames[-1] == numbered(1, first=51_999)[0]


def test_a_box_that_is_opened_again_goes_on_behind_the_last_whole_frame(tmp_path):
    """A relay was killed in the middle of a write, and the next relay continues the file."""
    path = tmp_path / "x.journal"
    first = journal.Journal(path, 1 << 20, lambda: FACTS)
    first.append(numbered(3))
    first.close()
    os.truncate(path, path.stat().st_size - 7)

    second = journal.Journal(path, 1 << 20, lambda: FACTS)
    second.append(numbered(2, first=10))
    second.close()

    assert read_journal(path) == journal.JournalFrames(
        (*FACTS, *numbered(2), *numbered(2, first=10)), None
    )


@pytest.mark.parametrize(
    "content",
    [b"not a journal", b"", b"ddtop journal 2\n", journal.HEAD + b"\x01\x00\x00\x00badcx"],
)
def test_a_file_that_cannot_be_continued_is_put_aside(tmp_path, content):
    """The file is damaged in the middle, and nothing after the damage can be read."""
    path = tmp_path / "x.journal"
    path.write_bytes(content)
    box = journal.Journal(path, 1 << 20, lambda: FACTS)
    box.append(numbered(2))
    box.close()

    reading = read_journal(path)

    assert journal.older_half(path).read_bytes() == content
    assert reading.frames == (*FACTS, *numbered(2))
    assert "x.journal.1" in reading.damage


def test_a_link_in_the_journals_place_is_not_written_through(tmp_path):
    path, victim = tmp_path / "x.journal", tmp_path / "victim"
    journal.write(victim, FRAMES)
    path.symlink_to(victim)

    with pytest.raises(OSError, match="symbolic links"):
        journal.Journal(path, 1 << 20, lambda: FACTS).append(numbered(2))

    assert journal.read(victim).frames == FRAMES


def test_a_disk_that_is_full_costs_the_frames_that_did_not_fit_and_no_others(tmp_path, monkeypatch):
    path = tmp_path / "x.journal"
    box = journal.Journal(path, 1 << 20, lambda: FACTS)
    box.append(numbered(2))
    whole = os.pwrite

    def half(descriptor, data, at):
        if len(data) < 50:
            raise OSError(28, "No space left on device")
        return whole(descriptor, bytes(data)[: len(data) // 2], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        box.append(numbered(5, first=100))
    monkeypatch.setattr(os, "pwrite", whole)
    box.append(numbered(1, first=200))
    box.close()

    assert read_journal(path) == journal.JournalFrames(
        (*FACTS, *numbered(2), *numbered(1, first=200)), None
    )


def test_nothing_to_read_at_all_is_said_of_the_newer_half(tmp_path):
    with pytest.raises(journal.JournalError, match=r"cannot read .*x\.journal: No such file"):
        read_journal(tmp_path / "x.journal")
    journal.older_half(tmp_path / "x.journal").write_bytes(b"ddtop journal 7\n")
    with pytest.raises(
        journal.JournalError, match=r"x\.journal\.1 is 'ddtop journal 7', this ddtop reads 1"
    ):
        read_journal(tmp_path / "x.journal")


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Both halves of a small journal, whole."""
    path = tmp_path_factory.mktemp("box") / "x.journal"
    box = journal.Journal(path, 4 << 10, lambda: FACTS)
    write_in_batches(box, numbered(30), of=4)
    box.close()
    return path, journal.read(journal.older_half(path)).frames, journal.read(path).frames


def test_both_halves_cut_at_every_byte_all_whole_frames_before_are_read(halves, tmp_path):
    path, older, newer = halves
    for frames, name in ((older, "x.journal.1"), (newer, "x.journal")):
        shutil.copy(path, tmp_path / "x.journal")
        shutil.copy(journal.older_half(path), tmp_path / "x.journal.1")
        data = (tmp_path / name).read_bytes()
        ends = [len(journal.HEAD) + end for end in bounds(frames)]
        for size in range(len(data) - 1, -1, -1):
            os.truncate(tmp_path / name, size)
            reading = read_journal(tmp_path / "x.journal")
            whole = sum(1 for end in ends if end <= size)
            expected = (*older[:whole], *newer) if name.endswith(".1") else (*older, *newer[:whole])
            assert list(reading.frames) == list(dict.fromkeys(expected))
            assert (reading.damage is None) == (size in (len(journal.HEAD), *ends))
            assert reading.damage is None or name in reading.damage


@settings(max_examples=300)
@given(st.sampled_from([".journal", ".journal.1"]), st.data())
def test_a_flipped_bit_anywhere_costs_only_the_rest_of_its_half_and_is_named(
    halves, tmp_path_factory, suffix, data
):
    path, older, newer = halves
    folder = tmp_path_factory.mktemp("flipped")
    for one in (path, journal.older_half(path)):
        shutil.copy(one, folder / one.name)
    content = bytearray((folder / f"x{suffix}").read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    (folder / f"x{suffix}").write_bytes(content)

    reading = read_journal(folder / "x.journal")

    frames = older if suffix == ".journal.1" else newer
    before = (
        0
        if at < len(journal.HEAD)
        else sum(1 for end in bounds(frames) if end + len(journal.HEAD) <= at)
    )
    expected = (*older[:before], *newer) if suffix == ".journal.1" else (*older, *newer[:before])
    assert list(reading.frames) == list(dict.fromkeys(expected))
    assert f"x{suffix}" in reading.damage


@settings(max_examples=200)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_random_bytes_behind_the_head_raise_nothing(tmp_path_factory, newer, older):
    folder = tmp_path_factory.mktemp("random")
    (folder / "x.journal").write_bytes(journal.HEAD + newer)
    (folder / "x.journal.1").write_bytes(journal.HEAD + older)

    read_journal(folder / "x.journal")
