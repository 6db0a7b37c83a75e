"""Files that are written: whole or not at all, and never through a link."""

import ast
import os

import pytest

from ddtop import private
from tests.parsed import called, package


def test_a_file_is_there_once_it_is_whole(tmp_path):
    with private.written(tmp_path / "file") as file:
        file.write(b"text")
        assert not (tmp_path / "file").exists()

    assert (tmp_path / "file").read_bytes() == b"text"
    assert os.listdir(tmp_path) == ["file"]


def write_half(path):
    with private.written(path) as file:
        file.write(b"half of it")
        raise KeyError


def test_after_an_error_nothing_is_left(tmp_path):
    with pytest.raises(KeyError):
        write_half(tmp_path / "file")

    assert os.listdir(tmp_path) == []


def test_what_is_there_stays_where_that_is_asked_for(tmp_path):
    (tmp_path / "file").write_text("first")

    with pytest.raises(FileExistsError), private.written(tmp_path / "file", 0o600, True) as file:
        file.write(b"second")

    assert (tmp_path / "file").read_text() == "first"
    assert os.listdir(tmp_path) == ["file"]


# -- who writes files at all

WRITERS = {
    "agent/own_thread.py": "/proc",
    "agent/run_name.py": "runtime folder, O_NOFOLLOW",
    "agent/stacks/dump.py": "runtime folder, private",
    "agent/start_relay.py": "runtime folder, private",
    "agent/state_page.py": "private, O_EXCL",
    "cli/__init__.py": "/dev/null",
    "cli/actions.py": "an anonymous file",
    "cli/commands/bridge.py": "standard output",
    "cli/commands/config.py": "private, O_EXCL",
    "cli/commands/doctor.py": "tempfile",
    "cli/written_report.py": "private; a pipe or device that the user named",
    "cli/demo_job.py": "a folder of tempfile",
    "cli/gpu_query.py": "/dev/null and a pipe",
    "cli/output.py": "tempfile",
    "demo/building.py": "a folder of tempfile",
    "feeds/bridge.py": "a folder of tempfile",
    "journal.py": "tempfile",
    "private.py": "O_EXCL and a random name",
    "pytest.py": "a folder of tempfile",
    "relay/__main__.py": "runtime folder, O_NOFOLLOW",
    "relay/dumps/signal.py": "runtime folder, private",
    "ui/terminal/files.py": "O_EXCL",
    "ui/terminal/terminal.py": "the terminal",
}
FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT"}


def writes(node):
    if isinstance(node, ast.Attribute):
        return node.attr in FLAGS
    if not isinstance(node, ast.Call):
        return False
    name = called(node)
    last = name.rpartition(".")[2]
    modes = [word.value for word in node.args if isinstance(word, ast.Constant)]
    opens = last in ("open", "fdopen") and any(
        isinstance(mode, str) and len(mode) < 4 and set(mode) & set("wax+") for mode in modes
    )
    makes = last in ("write_text", "write_bytes", "touch") and name != "formatter.write_text"
    return opens or makes or name.startswith("tempfile.") or last == "TemporaryDirectory"


def test_files_are_written_in_few_places():
    """Whoever writes one more says here why no link of somebody else can be followed."""
    assert {path for path, nodes in package().items() if any(map(writes, nodes))} == set(WRITERS)
