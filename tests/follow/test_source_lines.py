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


# -- which files: the job, or a recording, may name any

OTHER = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def written(path, text="password = hunter2\nroot:x:0:0\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def files_of():
    before = module._owner
    yield module.show_files_of
    module.show_files_of(before)


@pytest.mark.parametrize(
    "name",
    [
        ".ssh/id_rsa",
        ".ssh/config.py",
        ".env",
        ".netrc.py",
        "settings.json",
        "notes.txt",
        "program",
        ".aws/lib.py",
        "site-packages/.secret/x.py",
        "site-packages/torch/data.txt",
    ],
)
def test_what_is_no_source_of_python_or_is_hidden_is_not_read(tmp_path, name):
    assert read_excerpt(str(written(tmp_path / name)), 1) is None


@pytest.mark.parametrize(
    "name",
    [
        "train.py",
        "kernel.pyx",
        ".venv/lib/python3.11/site-packages/torch/x.py",
        ".local/lib/python3.12/site-packages/mine/x.py",
        ".conda/envs/a/lib/python3.10/json/decoder.py",
        ".cache/huggingface/modules/m/modeling.py",
        "my.project/train.py",
    ],
)
def test_sources_of_the_program_and_of_its_environment_are_read(tmp_path, name):
    assert read_excerpt(str(written(tmp_path / name, "one\ntwo\n")), 1).lines == ("one", "two")


def test_a_link_is_judged_by_what_it_leads_to(tmp_path):
    key = written(tmp_path / ".ssh" / "id_rsa")
    (tmp_path / "train.py").symlink_to(key)
    (tmp_path / "folder").symlink_to(tmp_path / ".ssh")
    code = written(tmp_path / "real.py", "one\n")
    (tmp_path / "linked").symlink_to(code)
    written(tmp_path / ".ssh" / "x.py")

    assert read_excerpt(str(tmp_path / "train.py"), 1) is None
    assert read_excerpt(str(tmp_path / "folder" / "x.py"), 1) is None
    assert read_excerpt(str(tmp_path / "linked"), 1).lines == ("one", "")


@ROOT
def test_the_file_of_another_user_is_not_read(tmp_path, files_of):
    theirs, ours = written(tmp_path / "theirs.py"), written(tmp_path / "ours.py")
    environment = written(tmp_path / "lib" / "python3.11" / "x.py", "one\n")
    os.chown(theirs, OTHER, OTHER)

    assert read_excerpt(str(theirs), 1) is None
    assert read_excerpt(str(ours), 1) is not None

    # `ddtop stacks --pid` of root: what the other user's process names is read as that user.
    files_of(OTHER)
    assert read_excerpt(str(theirs), 1) is not None
    assert read_excerpt(str(ours), 1) is None
    assert read_excerpt(str(environment), 1).lines == ("one", "")


@pytest.mark.parametrize("name", ["secrets.py", "api_key.py", "credentials.py", "db_password.py"])
def test_no_line_of_a_file_with_the_name_of_a_secret_is_shown(tmp_path, name):
    text = "VALUE = (\n\n    'correct horse battery staple')\n"

    assert read_excerpt(str(written(tmp_path / name, text)), 2).lines == (
        "(redacted)",
        "",
        "(redacted)",
    )


@pytest.mark.parametrize("name", ["tokenizer.py", "sort_key.py", "lib/python3.11/secrets.py"])
def test_a_name_that_only_sounds_like_a_secret_hides_nothing(tmp_path, name):
    assert read_excerpt(str(written(tmp_path / name, "one\n")), 1).lines == ("one", "")
