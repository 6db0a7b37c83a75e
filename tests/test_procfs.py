"""The fields that one read of /proc/PID/stat gives."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from ddtop import procfs


def test_fields_begin_with_the_state_and_the_parent():
    state, parent = procfs.read_stat(os.getpid())[:2]

    assert state == "R"
    assert int(parent) == os.getppid()


def test_a_program_may_have_blanks_and_parentheses_in_its_name(tmp_path):
    """A name like `a) R 1 (b` must not be parsed as fields."""
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("cat"), program)
    process = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        fields = procfs.read_stat(process.pid)
        assert int(fields[1]) == os.getpid()
    finally:
        process.stdin.close()
        process.wait(10)


def test_a_process_that_is_gone_is_reported_from_one_that_cannot_be_read(monkeypatch):
    with pytest.raises(FileNotFoundError):
        procfs.read_stat(1 << 22)
    assert procfs.stat_fields(1 << 22) is None


def test_a_line_that_is_cut_is_no_line(monkeypatch):
    monkeypatch.setattr(procfs, "STAT_BYTES_MAX", 40)

    with pytest.raises(ValueError):  # noqa: PT011
        procfs.read_stat("self")
    assert procfs.stat_fields("self") is None


def test_a_thread_has_a_line_of_its_own():
    assert procfs.stat_fields(f"{os.getpid()}/task/{os.getpid()}")[1] == str(os.getppid())
