"""A job, or its recording, that names files of the user as its source: none of them is printed."""

import os

import pytest

from ddtop import journal, registry
from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.cli.commands import ddtop, write_ended
from tests.jobs import trained, unix_ns

OTHER = 65534
SECRET = "correct horse battery staple"
NAMES = [
    ".ssh/id_rsa",
    ".netrc",
    ".config/tool/settings.py",
    "thesis.txt",
    "credentials.py",
    "linked.py",
    "of-another-user.py",
    "pipe.py",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_file_that_a_job_names_is_printed_unless_it_is_source(name, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "home" / name
    path.parent.mkdir(parents=True)
    if name == "pipe.py":
        os.mkfifo(path)
    elif name == "linked.py":
        (path.parent / "thesis.txt").write_text(SECRET)
        path.symlink_to(path.parent / "thesis.txt")
    else:
        path.write_text(SECRET)
    if name == "of-another-user.py":
        if os.geteuid() != 0:
            pytest.skip("only root can give files to another user")
        os.chown(path, OTHER, OTHER)
    source = tmp_path / "train.py"
    source.write_text("the_program()")

    printed = report_of(str(path))

    assert SECRET not in printed
    assert "the_program()" in report_of(str(source))


def report_of(file):
    """The report about a job whose ranks were stuck in the first line of that file."""
    os.utime(file, (0, 0))
    job = trained(2)
    thread = ThreadStack((StackFrame("save", file, 1, True),), main=True)
    for rank in job.ranks:
        stacks = Stacks(
            "r", rank.number, rank.pid, unix_ns(job.now), "agent", (thread,), automatic=True
        )
        job.say(stacks, rank)
    for rank in job.ranks:
        rank.ends(0)
    entry = write_ended(job.passes(1))
    journal.write(registry.journal_path(entry.job, "r1", "0" * 12), job.frames)
    return ddtop("report", "train-47", "-o", "-", exits=0).stdout
