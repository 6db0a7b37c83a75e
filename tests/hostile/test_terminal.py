"""Names and reasons from elsewhere are escaped: they could move the terminal's cursor."""

import os
import subprocess
import sys

import msgspec
import pytest

from ddtop import registry
from ddtop.cli.job_list import table
from ddtop.cli.output import without_controls
from tests.hostile.names import BAD, calm, entry


@pytest.fixture
def listed(home):
    """A job of another host, all of whose texts are hostile."""
    found = entry(host=BAD, script=BAD, ended_reason=BAD, ended_unix_ns=1)
    registry.write_entry(found)
    return found


@pytest.mark.parametrize(
    "arguments",
    [("jobs",), ("status", "nosuch"), ("status",), ("diagnose", "train"), ("stacks", "train")],
    ids=" ".join,
)
def test_the_text_of_a_job_file_moves_no_cursor(listed, arguments):
    done = subprocess.run(
        [sys.executable, "-m", "ddtop", *arguments],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
        timeout=60,
    )

    assert done.stdout or done.stderr
    assert calm(done.stdout), done.stdout
    assert calm(done.stderr), done.stderr


def test_a_job_file_whose_name_could_lead_out_of_the_folder_is_not_ours(home):
    for job in ("../../etc/x", "a/b", ".hidden", "", "a" * 65, BAD):
        (registry.state_dir() / "x.json").write_bytes(msgspec.json.encode(entry(job)))
        assert registry.read_entries() == []


def test_columns_stay_aligned_beside_wide_names(home):
    lines = table([entry(host="ノード漢", script=BAD), entry("other", host="h", script="x")])

    assert calm("\n".join(lines))
    assert any("ノード漢  a?]0;owned" in line for line in lines)
    assert any("h         x" in line for line in lines)


def test_several_lines_stay_several_lines():
    assert without_controls(f"ddtop: {BAD}\n  next") == "ddtop: a?]0;owned??[2J ?31mb?\n  next"
