"""The file of a person's settings: its values are used, and an error in it is one sentence."""

from __future__ import annotations

import stat

import pytest

from ddtop.cli import config as config_file
from ddtop.policy import POLICY
from tests.cli.commands import ddtop, ddtop_process


@pytest.fixture
def file(home, tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    path.write_text("")
    monkeypatch.setenv("DDTOP_CONFIG", str(path))
    for name in ("DDTOP_REMOTE", "DDTOP_SSH"):
        monkeypatch.delenv(name, raising=False)
    return path


def shown(**variables):
    """{setting: its line} of `ddtop config show`."""
    lines = ddtop("config", "show", **variables).stdout.splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}


def test_a_variable_is_stronger_than_the_file_and_the_file_than_the_default(file):
    default = shown()
    file.write_text('ssh = "ssh -J jump"\nremote = "/opt/ddtop"\n')
    of_file = shown()
    of_variable = shown(DDTOP_SSH="mine")

    assert default["ssh"] == "ssh default"
    assert of_file["ssh"] == "ssh -J jump file"
    assert of_variable["ssh"] == "mine DDTOP_SSH"
    assert of_variable["remote"] == "/opt/ddtop file (overridden by --remote)"


def test_a_flag_is_stronger_than_the_file(file, tmp_path):
    """The stand-in for ssh prints the command that it would run there."""
    program = tmp_path / "fake-ssh"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    file.write_text(f'ssh = "{program}"\nremote = "/of/the/file"\n')

    by_file = ddtop("status", "--ssh", "there")
    by_flag = ddtop("status", "--ssh", "there", "--remote", "/of/the/flag")

    assert "/of/the/file" in by_file.stdout + by_file.stderr
    assert "/of/the/flag" in by_flag.stdout + by_flag.stderr
    assert "/of/the/file" not in by_flag.stdout + by_flag.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ssh =", "it is not TOML"),
        ("\x00", "it is not TOML"),
        ("colour = 'red'", "there is no setting 'colour'"),
        ("them = 'dark'", "did you mean theme?"),
        ("theme = 3", "theme must be a string, not 3"),
        ("interval_s = 0", "interval_s must be 0.1 to 60 s"),
        ("hidden = [1]", "hidden must be a list of strings"),
        ("thresholds = 3", "[thresholds] is a table"),
        ("[thresholds]\nstill_limit = 3", "did you mean still_limit_s?"),
        ("[thresholds]\nstill_limit_s = 'x'", "still_limit_s is a number"),
        ("[thresholds]\nstill_limit_s = true", "still_limit_s is a number"),
        ("[thresholds]\nstill_limit_s = 0.001", "still_limit_s is 0.05 to 500, not 0.001"),
        ("[thresholds]\nstill_limit_s = nan", "still_limit_s is 0.05 to 500"),
        ("[thresholds]\ncpu_working_ratio = 2", "cpu_working_ratio is 0.0005 to 1, not 2"),
        ("[thresholds]\narrivals_stuck_s = 2", "there is no threshold 'arrivals_stuck_s'"),
    ],
)
def test_what_is_wrong_is_named_with_the_file_and_a_way_out(file, text, said):
    file.write_text(text)
    done = ddtop("status")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ddtop: {file}: ")
    assert said in done.stderr
    assert "(ddtop config edit)" in done.stderr
    # These commands help to fix it.
    assert ddtop("config", "path").stdout == f"{file}\n"
    assert ddtop("help").returncode == 0


def test_a_file_that_was_named_and_is_not_there_is_reported(home, tmp_path):
    done = ddtop("status", DDTOP_CONFIG=str(tmp_path / "none"))

    assert (done.returncode, "there is no file" in done.stderr) == (2, True)


def test_every_threshold_may_be_as_it_is(home, tmp_path):
    """Our own defaults are within the ranges."""
    lines = [f"{name} = {getattr(POLICY, name)}" for name in config_file.names_of_thresholds()]
    data = "\n".join([f"[{config_file.THRESHOLDS}]", *lines]).encode()

    assert config_file.parsed(tmp_path, data).policy == POLICY


def test_a_threshold_that_was_changed_is_shown_with_ours(file):
    file.write_text("[thresholds]\nstill_limit_s = 10\n")

    assert shown()["still_limit_s"] == "10 changed by you from 5 (0.05 to 500)"
    assert "10 s" in ddtop("explain", "not-in-collective").stdout


def test_the_template_is_understood_and_changes_nothing(file):
    told = config_file.parsed(file, config_file.template().encode())
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line or line == "# [thresholds]" else line
        for line in config_file.template().splitlines()
    )
    every = config_file.parsed(file, uncommented.encode())

    assert (told.values, told.thresholds) == ({}, {})
    assert set(every.values) == set(config_file.BY_NAME)


def test_edit_opens_a_new_file_and_checks_what_was_written(home, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "$TEXT" >> "$1"\n')
    editor.chmod(0o755)
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "new"), "EDITOR": str(editor), "VISUAL": ""}

    good = ddtop("config", "edit", TEXT="theme = 'light'", **variables)
    bad = ddtop("config", "edit", TEXT="theme = 3", **variables)

    file = tmp_path / "new" / "ddtop" / "config.toml"
    assert (good.returncode, good.stdout) == (0, f"{file} is valid\n"), good.stderr
    assert bad.returncode == 2
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert ddtop("config", "edit", **{**variables, "EDITOR": "/no/editor"}).returncode == 2


def test_what_a_viewer_likes_does_not_reach_a_job(file, tmp_path):
    file.write_text('remote = "/opt/ddtop"\n')
    done = ddtop_process("run", "--", "env")

    assert "DDTOP=1" in done.stdout, done.stderr
    assert "/opt/ddtop" not in done.stdout


def test_the_shell_offers_the_hosts_of_the_file(file, monkeypatch):
    file.write_text('hosts = ["node7", "node8", "login"]\n')
    asked = {"_DDTOP_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    done = ddtop(**asked, COMP_WORDS="ddtop status --ssh no")

    assert done.stdout.split() == ["plain,node7", "plain,node8"]
