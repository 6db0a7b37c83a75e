"""`ddtop` without arguments: the one live job, or a list of several, and back to the list."""

from __future__ import annotations

import os
import time
from contextlib import closing

import pytest

from ddtop import registry
from ddtop.cli.job_list import health
from ddtop.cli.pick_job import several_live
from ddtop.follow import engine
from tests.conftest import Home
from tests.ui.terminals import Terminal

PROGRAM = "import sys; sys.argv = ['ddtop', *{words!r}]; from ddtop.cli import main; main()"


def write(name: str, live: bool = True, age_s: float = 60.0) -> registry.JobEntry:
    """A job file of a relay on this host whose process lives and does not answer."""
    now = time.time_ns()
    entry = registry.JobEntry(
        registry.SCHEMA, name, "r1", "node7", registry.host_identity(),
        os.getpid(), registry.start_ticks(os.getpid()) or 0,
        "127.0.0.1", 9, "", "train.py", 8, 8,
        now - round(age_s * 1e9), now, None if live else now,
        None if live else "all ranks finished",
    )  # fmt: skip
    registry.write_entry(entry)
    return entry


def on_terminal(*words: str) -> Terminal:
    return Terminal(PROGRAM.format(words=list(words)), TERM="xterm-256color")


@pytest.mark.parametrize(
    ("live", "ended", "several"), [(0, 0, False), (1, 3, False), (0, 3, False), (2, 1, True)]
)
def test_a_list_is_needed_only_if_several_jobs_are_live(
    home: Home, live: int, ended: int, several: bool
) -> None:
    for number in range(live + ended):
        write(f"job-{number}", number < live)

    assert several_live() is several


def test_a_folder_that_cannot_be_read_is_reported_later(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDTOP_STATE", "/dev/null/x")

    assert several_live() is False


def test_a_job_that_does_not_answer_is_no_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "JOIN_S", 0.2)
    entry = write("gone", live=False)

    assert health(registry.read_entries()[0]).word == "unknown"
    assert entry.job == "gone"


@pytest.mark.parametrize("words", [(), ("attach",)], ids=["alone", "attach"])
def test_one_of_several_jobs_is_picked_and_j_leads_back_to_the_list(
    home: Home, words: tuple[str, ...]
) -> None:
    write("first", age_s=10.0)
    write("second", age_s=60.0)
    write("third", live=False)
    with closing(on_terminal(*words)) as terminal:
        lines = terminal.until("asking ...")
        assert lines[0].startswith("ddtop  2 live jobs, 1 ended")
        terminal.press("j\r")
        terminal.until("waiting for the first records of second")
        terminal.press("J")
        terminal.until("2 live jobs, 1 ended")
        terminal.press("\r")
        # The cursor is on the newest job again, because the list is a new one.
        terminal.until("waiting for the first records of first")
        terminal.press("q")
        assert terminal.ended() == 0


def test_the_only_live_job_needs_no_list_and_has_none_to_go_back_to(home: Home) -> None:
    write("only")
    write("third", live=False)
    with closing(on_terminal()) as terminal:
        terminal.until("waiting for the first records of only")
        terminal.press("J")
        terminal.until("there is no list of jobs to go back to")
        terminal.press("q")
        assert terminal.ended() == 0


def test_the_list_that_is_quit_ends_ddtop(home: Home) -> None:
    write("first")
    write("second")
    with closing(on_terminal()) as terminal:
        terminal.until("2 live jobs")
        terminal.press("q")
        assert terminal.ended() == 0
