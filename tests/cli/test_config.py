"""The file of a person's settings: its values are used, and an error in it is one sentence."""

import stat
import subprocess
import sys

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


def run_python(code):
    """What it prints, in a process of its own."""
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


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
        ("limits = 3", "[limits] must be a table"),
        ("[limits]\nstill_limit = 3", "there is no limit [limits] still_limit; did you mean"),
        ("[limits]\nstill_limit_s = 'x'", "[limits] still_limit_s must be a number, not 'x'"),
        ("[limits]\nstill_limit_s = true", "still_limit_s must be a number"),
        ("[limits]\nstill_limit_s = 0.001", "still_limit_s must be 0.05 to 500, not 0.001"),
        ("[limits]\nstill_limit_s = nan", "still_limit_s must be 0.05 to 500"),
        ("[limits]\ncpu_working_ratio = 2", "cpu_working_ratio must be 0.0005 to 1, not 2"),
        ("[limits]\nstraggler = 3", "there is no limit [limits] straggler"),
        ("[limits.stragler]\nratio = 0.2", "[limits.stragler] ratio; did you mean straggler?"),
        ("[limits.quux]\nratio = 0.2", "no limit [limits.quux] ratio; there are arrivals,"),
        ("[limits.straggler]\nratoi = 0.2", "[limits.straggler] ratoi; did you mean ratio?"),
        ("[limits.straggler]\nquux = 0.2", "[limits.straggler] quux; there are ratio, least_ms,"),
        ("[limits.straggler]\nratio = 2", "[limits.straggler] ratio must be 0.001 to 1, not 2"),
        ("[limits.straggler]\nsteps = 20.5", "[limits.straggler] steps must be a whole number"),
        ("[limits.straggler]\nratio = [1]", "[limits.straggler] ratio must be a number, not [1]"),
        (
            "[limits.deadlock]\nwait_s = 501",
            "[limits.deadlock] wait_s must be 0.05 to 500, not 501",
        ),
        (
            "[limits.not-in-collective]\nwait_s = 4",
            "[limits.not-in-collective] wait_s must be at least still_limit_s, 5",
        ),
        ("[thresholds]\nstill_limit_s = 3", "there is no setting 'thresholds'"),
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


def tables(limits):
    """These limits as a person writes them."""
    found = {}
    for name, value in limits.items():
        of, dot, one = name.rpartition(".")
        found.setdefault(f"[limits{dot}{of}]", []).append(f"{one} = {value}")
    return "\n".join(line for title, lines in found.items() for line in (title, *lines))


def test_every_limit_may_be_as_it_is(tmp_path):
    """Our own defaults are within the ranges."""
    found = config_file.parse(tmp_path, tables(POLICY.values()).encode())

    assert found.policy.values() == POLICY.values()
    assert found.policy.changes() == ()


def test_a_limit_that_was_changed_is_shown_with_ours(file):
    file.write_text("[limits]\nstill_limit_s = 10\n[limits.straggler]\nratio = 0.2\n")
    found = shown()

    assert found["still_limit_s"] == "10 changed by you from 5 (0.05 to 500)"
    assert found["straggler.ratio"] == "0.2 changed by you from 0.1 (0.001 to 1)"
    assert "10 s" in ddtop("explain", "not-in-collective").stdout


def test_all_limits_are_shown_on_request(home):
    lines = ddtop("config", "show", "--all").stdout.splitlines()
    found = {line.split()[0] for line in lines}

    assert set(POLICY.values()) <= found
    assert "deadlock.wait_s" + " " * 29 + "5           default   (0.05 to 500)" in lines


def test_a_file_without_limits_imports_no_rule(file):
    """A command that only lists jobs starts faster than the rules can be imported."""
    code = (
        "import os, sys; from ddtop.cli import config; config.read(os.environ).policy;"
        "print('ddtop.diagnosis' in sys.modules)"
    )
    plain = run_python(code)
    file.write_text("[limits]\nstill_limit_s = 10\n")

    assert (plain, run_python(code)) == ("False", "True")


def test_the_template_is_understood_and_changes_nothing(file):
    told = config_file.parse(file, config_file.template().encode())
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line or line == "# [limits]" else line
        for line in config_file.template().splitlines()
    )
    every = config_file.parse(file, uncommented.encode())

    assert (told.values, told.limits) == ({}, {})
    assert set(every.values) == set(config_file.BY_NAME)


def test_edit_opens_a_new_file_and_checks_what_was_written(home, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "$TEXT" >> "$1"\n')
    editor.chmod(0o755)
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "new"), "EDITOR": str(editor), "VISUAL": ""}

    good = ddtop("config", "edit", TEXT="theme = 'light'", **variables)
    ddtop("config", "edit", TEXT="theme = 3", **variables, exits=2)

    file = tmp_path / "new" / "ddtop" / "config.toml"
    assert (good.returncode, good.stdout) == (0, f"{file} is valid\n"), good.stderr
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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('stakcs = "x"', "no action 'stakcs'; did you mean stacks?"),
        ('stacks = "R"', "R would be the key of reverse and of stacks"),
        ('stacks = "j"', "j would be the key of the lists and of stacks"),
        ("stacks = 3", "must be a key such as x, f5 or ctrl+g, not 3"),
        ('stacks = "Ctrl G"', "must be a key such as x, f5 or ctrl+g"),
    ],
)
def test_a_key_that_is_wrong_is_one_sentence(file, line, why):
    file.write_text(f"[keys]\n{line}\n")

    done = ddtop("jobs")

    assert done.returncode == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_actions_can_change_their_keys(file):
    file.write_text('[keys]\nstacks = "D"\nstacks-all = "d"\n')

    assert "'stacks': 'D'" in shown()["keys"]
