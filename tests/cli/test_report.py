"""`ddtop report`: the file, its permissions, and its content."""

import stat

import pytest

from ddtop import journal, registry
from ddtop.wire import frames
from ddtop.wire.records import Hello, StackFrame, Stacks, ThreadStack
from tests.cli.commands import ddtop
from tests.entries import left
from tests.jobs import trained, unix_ns

NAME, SENDER = "train-47", "0" * 12


def killed():
    job = trained(2)
    thread = ThreadStack((StackFrame("save", "/home/ada/train.py", 7, True),), main=True)
    for rank in job.ranks:
        stacks = Stacks(
            "r", rank.number, rank.pid, unix_ns(job.now), "agent", (thread,), automatic=True
        )
        job.say(stacks, rank)
    job.ranks[1].raises("ValueError", "wrong token=abcdef")
    job.ranks[1].ends(signal=9)
    job.ranks[0].ends(signal=15, later_s=0.5)
    return job.passes(1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A report is written into the folder where the command runs."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ended(home):
    """A job that ended, with its last state and its journal."""
    job, entry = killed(), left(NAME, reason="killed", sender=SENDER, world_size=2)
    registry.write_entry(entry)
    journal.write(registry.last_state_path(NAME, "r1"), job.frames)
    journal.write(registry.journal_path(NAME, "r1", SENDER), job.frames)
    return entry


def test_a_report_is_a_file_that_only_its_owner_reads(ended, tmp_path):
    done = ddtop("report", NAME, exits=0)

    (path,) = tmp_path.glob("ddtop-report-*")
    assert done.stdout.startswith(f"wrote {path.name} (")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert "rank 1" in text
    assert "abcdef" not in text
    assert "train.py:7 save" in text
    assert "what its relay left behind (its relay is gone)" in text
    assert "the job ended: rank 1 went first" in text
    assert "stacks were taken, because ranks made no progress" in text


def test_as_a_page_it_is_private_too_and_has_the_last_minutes_of_each_rank(ended, tmp_path):
    ddtop("report", NAME, "--html", exits=0)

    (path,) = tmp_path.glob("ddtop-report-*.html")
    page = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert page.startswith("<!doctype html>\n")
    assert page.count('<div class="row ') >= 2
    assert "abcdef" not in page
    assert "train.py:7 save" in page


def test_a_report_on_stdout_is_nothing_but_the_report(ended, tmp_path):
    done = ddtop("report", NAME, "-o", "-")

    assert (done.returncode, done.stderr, list(tmp_path.glob("ddtop-report*"))) == (0, "", [])
    assert done.stdout.startswith(f"# ddtop report: {NAME}\n")


def test_a_file_that_was_named_is_replaced_and_made_private(ended, tmp_path):
    path = tmp_path / "ticket.txt"
    path.write_text("x" * 100_000)
    path.chmod(0o644)

    ddtop("report", NAME, "-o", str(path), exits=0)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("# ddtop report")
    assert "xxx" not in path.read_text()


def test_a_file_that_cannot_be_written_is_named(ended, tmp_path):
    done = ddtop("report", NAME, "-o", str(tmp_path / "no" / "where"), exits=3)

    assert "cannot be written: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_job_has_no_report(home, tmp_path):
    done = ddtop("report", "bert", exits=3)

    assert "no job named bert" in done.stderr
    assert list(tmp_path.glob("ddtop-report*")) == []


def test_the_journal_alone_is_enough(ended):
    """The scheduler killed the relay with the step, so it wrote no last state."""
    registry.last_state_path(NAME, "r1").unlink()

    done = ddtop("report", NAME, "-o", "-", exits=0)

    assert "what its relay left behind" in done.stdout
    assert "SIGKILL" in done.stdout


def test_a_damaged_journal_is_named_and_the_rest_is_written(ended):
    path = registry.journal_path(NAME, "r1", SENDER)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])

    done = ddtop("report", NAME, "-o", "-", exits=0)

    assert "note: " in done.stdout
    assert "damage" in done.stdout


def test_without_a_journal_the_last_minutes_are_unknown(ended):
    registry.journal_path(NAME, "r1", SENDER).unlink()

    done = ddtop("report", NAME, "-o", "-", exits=0)

    assert "no journal, so the last minutes are not known" in done.stdout


def test_a_job_that_left_nothing_is_no_contact(ended):
    registry.journal_path(NAME, "r1", SENDER).unlink()
    registry.last_state_path(NAME, "r1").unlink()

    done = ddtop("report", NAME, "-o", "-")

    assert (done.returncode, done.stdout) == (3, "")
    assert "left no last state" in done.stderr


def test_the_home_folder_is_not_in_a_report(ended, tmp_path):
    """The paths in the stacks are below a home folder."""
    done = ddtop("report", NAME, "-o", "-", HOME="/home/ada")

    assert "/home/ada" not in done.stdout


def test_environments_are_compared_with_the_hellos_that_came(ended):
    job = killed()
    hello = next(record for _, record in job.records if isinstance(record, Hello))

    done = ddtop("report", NAME, "-o", "-")

    assert all(f"{name}=" in done.stdout for name in hello.environment)
    assert frames.SCHEMA_MAJOR == 2
