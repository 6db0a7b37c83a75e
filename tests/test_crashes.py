"""A rank that crashes without being told to fails the test or the tool that started it."""

import signal

import pytest

from ddtop import journal
from ddtop.wire import frames
from ddtop.wire.records import Exit
from tests.crashes import crashes
from tools.benchmarks.stage import CrashError, Stage


def ended(folder, *records):
    """A state folder in which a relay has recorded these exits."""
    folder.mkdir(parents=True)
    made = [
        frames.seal(record, sender="relay", unix_ns=at, mono_ns=at, rank=record.rank)
        for at, record in enumerate(records, start=1)
    ]
    journal.write(folder / "job-1.journal", made)
    return folder


def of(number, order=0, **more):
    """The exit of rank 1 by this signal."""
    return Exit(1, 4711, None, number, False, order, "pidfd", **more)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL])
def test_the_first_rank_that_crashes_is_reported(tmp_path, number):
    (text,) = crashes(ended(tmp_path / "state", of(number)))

    assert text.startswith(f"rank 1 (pid 4711): {number.name}")


@pytest.mark.parametrize(
    "record", [of(signal.SIGKILL), of(signal.SIGTERM), of(None), of(signal.SIGABRT, order=1)]
)
def test_a_kill_and_a_consequence_are_no_crash(tmp_path, record):
    """gloo aborts a rank whose peer has gone."""
    assert crashes(ended(tmp_path / "state", record)) == []


def test_a_crash_in_a_walk_counts_whatever_went_before(tmp_path):
    records = of(signal.SIGKILL), of(signal.SIGSEGV, order=1, walking=True)

    (text,) = crashes(ended(tmp_path / "state", *records))
    assert "while ddtop read its frames" in text


def test_a_stage_ends_with_the_crash():
    def run(expected):
        with Stage("crash") as stage:
            stage.crash_expected = expected
            ended(stage.home / "state", of(signal.SIGSEGV))

    with pytest.raises(CrashError, match=r"rank 1 \(pid 4711\): SIGSEGV"):
        run(False)
    run(True)
