"""Which Python a command line runs, and whether the start-up hook is installed in it."""

import sys

import pytest

from ddtop.cli import interpreter


def script(tmp_path, first_line):
    path = tmp_path / "torchrun"
    path.write_text(f"{first_line}\nprint()\n")
    path.chmod(0o755)
    return [str(path), "train.py"]


def test_a_python_is_itself():
    assert interpreter.of_command([sys.executable, "train.py"]) == sys.executable


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("#!/opt/env/bin/python3.11", "/opt/env/bin/python3.11"),
        ("#!/opt/env/bin/python -u", "/opt/env/bin/python"),
        ("#!/bin/bash", None),
        ("#!", None),
        ("no first line", None),
        ("\x00\x01\x02", None),
    ],
)
def test_a_scripts_first_line_names_its_python(tmp_path, line, python):
    assert interpreter.of_command(script(tmp_path, line)) == python


def test_a_script_that_asks_env_is_looked_up(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "python9").write_text("")
    (tmp_path / "python9").chmod(0o755)

    assert interpreter.of_command(script(tmp_path, "#!/usr/bin/env python9")) == str(
        tmp_path / "python9"
    )


def test_a_command_that_is_not_there_has_no_python():
    assert interpreter.of_command(["nosuchcommand"]) is None
    assert interpreter.of_command([]) is None


def test_a_python_without_the_hook_gets_an_advice(tmp_path):
    """Many users install tools in one environment and train in another."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 0 1\n")
    fake.chmod(0o755)

    assert interpreter.looks(str(fake)) == (False, True)
    assert (
        interpreter.install_advice(str(fake))
        == f"the start-up hook is not in {fake}: {fake} -m pip install ddtop"
    )


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho what\n", "#!/nosuch\n"])
def test_there_is_no_advice_for_a_python_that_does_not_answer(tmp_path, text):
    fake = tmp_path / "python"
    fake.write_text(text)
    fake.chmod(0o755)

    assert interpreter.looks(str(fake)) is None
    assert interpreter.install_advice(str(fake)) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["mpirun", "-n", "4", "python", "sim.py"], None),
        (["mpirun", "-x", "DDTOP", "--hostfile", "nodes", "python", "sim.py"], None),
        (["srun", "--host", "a", "python", "sim.py"], None),
        (["/opt/bin/mpirun", "--hostfile", "nodes", "python", "sim.py"], "-x DDTOP -x DDTOP_JOB"),
    ],
)
def test_open_mpi_needs_options_to_pass_variables_on_to_other_hosts(command, said):
    hint = interpreter.not_passed_on(command, {"DDTOP": "1", "DDTOP_JOB": "sim", "PATH": "/bin"})

    assert hint == (said and f"with Open MPI, ranks on other hosts are seen only with: {said}")
