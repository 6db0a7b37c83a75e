"""The end of a rank's log: read only if the rank can have written it, and without secrets."""

from __future__ import annotations

import os
import time

import pytest

from ddtop.follow import source_lines
from ddtop.follow.log_tail import TAIL_BYTES, Tail, read_tail, tails

HOUR_NS = 3600 * 10**9
STARTED = time.time_ns() - HOUR_NS
NOBODY = (1 << 22) - 1
"""A pid that no process has."""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "stdout.log"
    path.write_text("step 1\nstep 2\napi_key=sk-live-abcdefgh12345678AB\n")
    return path


def test_the_last_lines_are_read_without_secrets(log):
    assert read_tail(str(log), 1, NOBODY, STARTED).lines == (
        "step 1",
        "step 2",
        "api_key=(redacted)",
    )


def test_of_a_large_file_only_whole_lines_of_its_end_are_read(log):
    log.write_text("x" * 99 + "\n" + f"{'y' * 99}\n" * (TAIL_BYTES // 100))

    lines = read_tail(str(log), 1, NOBODY, STARTED).lines

    assert set(lines) == {"y" * 99}
    assert len(lines) < TAIL_BYTES // 100 + 1


def test_of_a_progress_bar_the_last_state_is_shown(log):
    log.write_text(" 10% |#   |\r 20% |##  |\r\ndone\n")

    assert read_tail(str(log), 1, NOBODY, STARTED).lines == (" 20% |##  |", "done")


def test_what_a_recording_names_is_not_read_if_no_rank_can_have_written_it(
    log, tmp_path, monkeypatch
):
    hidden = tmp_path / ".ssh" / "id"
    hidden.parent.mkdir()
    hidden.write_text("key")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link, folder = tmp_path / "link.log", tmp_path / "logs"
    link.symlink_to(log)
    folder.symlink_to(hidden.parent)

    problems = [
        read_tail(str(path), 1, NOBODY, STARTED).problem
        for path in (hidden, pipe, link, folder / "id", tmp_path / "nothing", "a\0b")
    ]
    problems.append(read_tail(str(log), 1, NOBODY, time.time_ns() + HOUR_NS).problem)
    monkeypatch.setattr(source_lines, "_owner", os.getuid() + 1)
    problems.append(read_tail(str(log), 1, NOBODY, STARTED).problem)

    assert problems == [
        "it is in a hidden folder",
        "it is not a regular file",
        "a link leads elsewhere",
        "a link leads elsewhere",
        "it is not on this host",
        "embedded null byte",
        "nothing was written into it since the rank started",
        "it belongs to another user",
    ]


def test_a_file_is_read_again_so_that_a_page_can_follow_it(log, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(source_lines.time, "monotonic", lambda: clock[0])
    reading, wanted = tails(), (str(log), 1, NOBODY, STARTED)
    assert reading.find(wanted) is None
    reading.wait(10.0)
    assert reading.find(wanted).lines[0] == "step 1"
    log.write_text("step 3\n")
    clock[0] = 2.0
    reading.find(wanted)
    reading.wait(10.0)

    assert reading.find(wanted) == Tail(("step 3",))
