"""Source lines of the program: read on a separate thread, and only if they are the lines that
run.
"""

from __future__ import annotations

import os
import threading
import time

import pytest

from ddtop.follow import source_lines as module
from ddtop.follow.source_lines import FILE_BYTES_MAX, Excerpt, Excerpts, read_excerpt

HOUR_NS = 3600 * 10**9


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "data.py"
    path.write_text("one\ntwo\n\tthree\nfour\nfive\n")
    return str(path)


def test_two_lines_before_and_one_behind(source):
    assert read_excerpt(source, 3) == Excerpt(1, ("one", "two", "    three", "four"))
    assert read_excerpt(source, 1) == Excerpt(1, ("one", "two"))
    assert read_excerpt(source, 99) is None


def test_a_file_that_is_newer_than_the_process_has_other_lines(source):
    now = time.time_ns()

    assert read_excerpt(source, 3, now - HOUR_NS) == Excerpt(changed=True)
    assert read_excerpt(source, 3, now + HOUR_NS).lines


def test_what_is_no_source_file_is_not_read(tmp_path):
    """Opening a pipe would block, and a device never ends."""
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    with long.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)

    for path in (pipe, long, tmp_path, tmp_path / "nothing", "/dev/zero", "a\0b"):
        assert read_excerpt(str(path), 1) is None


def test_bytes_that_are_no_text_do_no_harm(tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"x = '\xe4'\n")

    assert read_excerpt(str(path), 1).lines == ("x = '�'", "")


def test_an_excerpt_is_there_at_a_later_question(source):
    excerpts = Excerpts()
    first = excerpts.get(source, 3)
    excerpts.wait(10.0)

    assert first is None
    assert excerpts.get(source, 3).lines[2] == "    three"
    assert not excerpts.pending


def test_a_file_server_that_hangs_holds_nobody_up(source, monkeypatch):
    hanging = threading.Event()
    monkeypatch.setattr(module, "read_excerpt", lambda *_: hanging.wait(10.0))
    excerpts = Excerpts()
    try:
        assert [excerpts.get(source, line) for line in (1, 2, 1)] == [None] * 3
        excerpts.wait(0.01)
        assert excerpts.pending
    finally:
        hanging.set()
        excerpts.wait(10.0)


def test_a_path_without_a_folder_is_not_looked_for_where_the_viewer_is():
    excerpts = Excerpts()

    assert excerpts.get("train.py", 1) is None
    assert not excerpts.pending
