"""What shell completion offers, called as a shell calls it; help and the man page."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddtop.cli import COMMANDS
from docs.generate import man
from tests.cli.commands import ddtop, finished, write_ended

ROOT = Path(__file__).resolve().parents[2]


def offered(*words):
    """What is offered for the last of these words."""
    asked = {
        "_DDTOP_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("ddtop", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = ddtop(**asked)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.fixture
def job(home):
    return write_ended(finished(), name="train-47")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("st",), ["stacks", "status"]),
        (("attach", "tr"), ["train-47"]),
        (("report", ""), ["train-47"]),
        (("stacks", "train-47", "--rank", ""), ["0", "1"]),
        (("stacks", "train-47", "--rank", "0,"), ["0,0", "0,1"]),
        (("stacks", "nobody", "--rank", ""), []),
        (("explain", "not-in"), ["not-in-collective"]),
        (("demo", "--fault", "rank-s"), ["rank-stopped"]),
        (("demo", "--mpi", "--fault", "loader"), []),
        (("--scenario", "gpu-to"), ["gpu-tour"]),
    ],
)
def test_a_word_is_completed(job, words, wanted):
    assert offered(*words) == wanted


def test_a_state_folder_that_cannot_be_read_offers_nothing(home, monkeypatch):
    monkeypatch.setenv("DDTOP_STATE", "/proc/nothing/here")

    assert offered("attach", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_for_a_shell_are_understood_by_it(home, shell, tmp_path):
    lines = ddtop("completion", shell).stdout
    assert "_DDTOP_COMPLETE" in lines
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    script = tmp_path / "lines"
    script.write_text(lines)

    assert subprocess.run([program, "-n", script], check=False).returncode == 0


def test_bash_completes_the_name_of_a_job(job, tmp_path):
    (tmp_path / "ddtop").write_text(f'#!/bin/sh\nexec {sys.executable} -m ddtop "$@"\n')
    (tmp_path / "ddtop").chmod(0o755)
    lines = tmp_path / "lines"
    lines.write_text(ddtop("completion", "bash").stdout)
    typed = (
        f"PATH={tmp_path}:$PATH; source {lines}; COMP_WORDS=(ddtop attach tr); COMP_CWORD=2; "
        '_ddtop_completion ddtop; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("train-47\n", "")


def test_help_prints_what_the_option_prints(home):
    assert ddtop("help").stdout == ddtop("--help").stdout
    assert ddtop("help", "stacks").stdout == ddtop("stacks", "--help").stdout
    assert "rotate [OPTIONS]" in ddtop("help", "key", "rotate").stdout
    wrong = ddtop("help", "key", "nothing")
    assert (wrong.returncode, wrong.stderr) == (2, "ddtop: there is no command key nothing\n")
    assert ddtop("help", "stakcs").stderr.endswith("; did you mean stacks?\n")
    assert (
        ddtop("help", "stacks", "x").stderr == "ddtop: stacks has no commands; ddtop help stacks\n"
    )


def test_the_list_of_commands_has_sections_and_examples(home):
    text = ddtop("-h").stdout

    assert all(f"\n{title}:\n" in text for title in (*COMMANDS, "Examples"))
    assert ddtop("-V").stdout == ddtop("--version").stdout


def test_the_man_page_has_every_command_and_no_wrong_order(tmp_path):
    page, text = tmp_path / "ddtop.1", man.page()
    page.write_text(text)

    assert all(
        f"\n.SS ddtop {name.replace('-', chr(92) + '-')}" in text
        for name in ("attach", "setup-env", "key rotate")
    )
    if shutil.which("man") is None:
        pytest.skip("no man here")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
