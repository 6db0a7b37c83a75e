"""The command of `ddtop watch --on-critical`, with real programs."""

import os
import time
from pathlib import Path

import pytest

from ddtop.cli.actions import AT_ONCE_MAX, OnCritical
from ddtop.cli.errors import CommandError

DEADLINE_S = 15.0


def ran(*commands, event=b"{}"):
    """The error messages, after all commands have ended."""
    said = []
    for command in commands:
        action = OnCritical(command, said.append)
        action.start(event, "rank-killed")
        action.leave()
    return said


def test_it_gets_the_event_on_its_standard_input(tmp_path):
    event = b'{"text": "' + b"x" * 300_000 + b'"}\n'

    assert ran(f"dd status=none of={tmp_path / 'event'}", event=event) == []
    assert (tmp_path / "event").read_bytes() == event


def test_its_output_goes_to_standard_error(capfd):
    """Stdout is for a program that reads JSON, so only events may be on it."""
    ran("echo the job hangs")

    assert capfd.readouterr() == ("", "the job hangs\n")


def test_a_command_that_fails_is_reported_with_its_exit_code_or_signal():
    assert ran("sh -c 'exit 7'", "sh -c 'kill -9 $$'") == [
        "--on-critical sh failed for rank-killed: exit code 7",
        "--on-critical sh failed for rank-killed: SIGKILL",
    ]


def test_there_is_no_shell(tmp_path, capfd):
    """A summary may contain any text. Text that looks like a redirection stays an argument."""
    assert ran(f"echo $HOME > {tmp_path / 'out'}") == []
    assert capfd.readouterr().err == f"$HOME > {tmp_path / 'out'}\n"


def test_one_that_does_not_read_the_event_does_not_fail_for_that():
    assert ran("true", event=b"x" * 1_000_000) == []


def test_a_program_that_was_removed_meanwhile_is_reported(tmp_path):
    program = tmp_path / "alert"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    said = []
    action = OnCritical(str(program), said.append)
    program.unlink()
    action.start(b"{}", "rank-killed")

    assert said == [
        f"--on-critical {program} could not be run for rank-killed: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("{folder}/alert.sh", "may not be executed: chmod +x {folder}/alert.sh"),
        ("alert.sh", "is not on the PATH; if you mean the file in this folder: ./alert.sh"),
        ("{folder}/alrt.sh", "there is no program"),
    ],
)
def test_a_program_that_is_there_and_cannot_be_run_is_not_called_missing(
    tmp_path, monkeypatch, command, said
):
    """The script was just written, and `chmod +x` was forgotten."""
    monkeypatch.chdir(tmp_path)
    Path("alert.sh").write_text("#!/bin/sh\n")

    with pytest.raises(CommandError) as raised:
        OnCritical(command.format(folder=tmp_path), print)
    assert raised.value.code == 2
    assert said.format(folder=tmp_path) in str(raised.value)


def test_commands_that_do_not_end_do_not_pile_up(tmp_path):
    """A mail server does not answer, and findings come and go all night."""
    os.mkfifo(tmp_path / "gate")
    said = []
    action = OnCritical(f"cat {tmp_path / 'gate'}", said.append)
    began = time.monotonic()
    for _ in range(AT_ONCE_MAX + 2):
        action.start(b"{}", "rank-killed")
    took_s = time.monotonic() - began
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    skipped = list(said)
    end = time.monotonic() + DEADLINE_S
    try:
        # A reader of the named pipe sees its end as soon as no process writes to it.
        while action._running and time.monotonic() < end:
            os.close(gate)
            gate = os.open(tmp_path / "gate", os.O_RDWR | os.O_NONBLOCK)
            action.look()
    finally:
        os.close(gate)
        for process, _ in action._running:
            process.kill()
            process.wait()

    assert took_s < DEADLINE_S / 2
    assert action.skipped == 2
    assert skipped == [
        "--on-critical cat was not run for rank-killed: 4 are still running (1 left out so far)",
        "--on-critical cat was not run for rank-killed: 4 are still running (2 left out so far)",
    ]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "needs a command"),
        ("mail 'me", "is not a command line: no closing quotation"),
        ("no-such-program x", "there is no program 'no-such-program'"),
        ("~/no-such-program", "there is no program"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error_at_once(command, reason):
    """A missing command must not be noticed only at night, when the job hangs."""
    with pytest.raises(CommandError, match=reason) as caught:
        OnCritical(command, lambda text: None)

    assert caught.value.code == 2
