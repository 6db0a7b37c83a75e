"""Folders for copies of other hosts' journals: none of them is left behind, and no foreign folder
is touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ddtop.feeds import bridge


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A /tmp of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def viewer():
    """Another process with a folder, running until it is ended. Returns the process and the
    folder.
    """
    program = (
        "import sys\nfrom ddtop.feeds import bridge\n"
        "with bridge.folder() as folder:\n"
        "    (folder / 'fetched.journal').write_bytes(b'x')\n"
        "    print(folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process, Path(process.stdout.readline().decode().strip())
        process.kill()


def aged(path):
    """As if it had been made some minutes ago."""
    os.utime(path, (path.stat().st_mtime - 300,) * 2)


def test_a_folder_is_closed_to_others_and_gone_at_the_end():
    with bridge.folder() as folder:
        (folder / "fetched.journal").write_bytes(b"x")
        mode = folder.stat().st_mode & 0o777

    assert mode == 0o700
    assert not folder.exists()


def test_what_a_killed_viewer_left_is_gone_with_the_next_one(viewer):
    process, left = viewer
    process.kill()
    process.wait()
    aged(left)
    with bridge.folder():
        assert not left.exists()


def test_what_another_one_looks_at_stays(viewer):
    _, used = viewer
    aged(used)
    with bridge.folder():
        assert (used / "fetched.journal").exists()


def test_what_is_not_a_left_folder_of_ours_stays(temporary):
    kept = temporary / "ddtop-1000"
    young = temporary / "ddtop-copy-abcdefgh"
    shared = temporary / "ddtop-copy-shared00"
    named = temporary / "ddtop-copy-of-my-thesis"
    for path in (kept, young, shared, named):
        path.mkdir(mode=0o700)
    shared.chmod(0o755)
    link = temporary / "ddtop-copy-linklink"
    link.symlink_to(kept)
    for path in (kept, shared, named):
        aged(path)
    with bridge.folder():
        assert all(path.exists() for path in (kept, young, shared, named, link))


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_stays(temporary):
    other = temporary / "ddtop-copy-somebody"
    other.mkdir(mode=0o700)
    os.chown(other, 12345, 12345)
    aged(other)
    with bridge.folder():
        assert other.exists()
