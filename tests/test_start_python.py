"""Another Python is started in one way: nothing of the folder where a command is typed runs in
it."""

import ast
import os
import subprocess
import sys

import pytest

from ddtop import start_python
from tests.parsed import package
from tests.shadowed import Shadowed

STARTS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}
OF_OS = ("exec", "spawn", "posix_spawn", "popen", "system", "startfile", "fork")
STARTERS = {
    "agent/start_relay.py": "the relay: `clone` and exec in /, with PYTHONSAFEPATH",
    "cli/actions.py": "the report by start_python; else the command that the user gave",
    "cli/check/rank_program.py": "nvidia-smi",
    "cli/check/trial.py": "the launcher that the user typed, in the user's folder",
    "cli/commands/config.py": "the user's editor",
    "cli/commands/doctor.py": "programs of start_python, and py-spy",
    "cli/commands/run.py": "the program that the user typed, in the user's folder",
    "cli/demo_job.py": "a script of ours in /, or torchrun by start_python",
    "cli/gpu_query.py": "a copy of this process, without exec",
    "cli/interpreter.py": "a program of start_python",
    "cli/other_python.py": "programs of start_python, and uv in /",
    "cli/over_ssh.py": "ssh",
    "feeds/schedulers.py": "a scheduler's program",
    "link/ssh_pipe.py": "ssh",
    "pytest.py": "ddtop itself, in /",
    "relay/processes/pyspy.py": "py-spy",
    "ui/terminal/files.py": "the user's editor",
}
SHELLS = {"sh", "/bin/sh"}


def starts_a_process(call):
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    module, name = getattr(call.func.value, "id", ""), call.func.attr
    if module == "os":
        return name.startswith(OF_OS)
    return (
        (module == "subprocess" and name in STARTS)
        or name.startswith("create_subprocess")
        or module == "multiprocessing"
    )


def test_processes_are_started_in_few_files():
    """Whoever starts one more says here what it is. A Python is started by `start_python`."""
    starts = {path for path, nodes in package().items() if any(map(starts_a_process, nodes))}

    assert starts == set(STARTERS)


def python_by_hand(node):
    """Whether this is a command line with `-c` or `-m` that does not begin with a shell."""
    if not isinstance(node, ast.List):
        return False
    words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
    return any(
        word in ("-c", "-m") and index and words[index - 1] not in SHELLS
        for index, word in enumerate(words)
    )


def test_only_start_python_makes_a_command_line_for_python():
    found = {path for path, nodes in package().items() if any(map(python_by_hand, nodes))}

    assert found == {"start_python.py", "agent/start_relay.py"}


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


ASK = "import json, statistics, sys; print('' in sys.path, sys.argv[1:])"


@pytest.fixture
def shadowed(tmp_path):
    return Shadowed(tmp_path)


def test_a_program_does_not_look_into_the_current_folder(shadowed):
    """Also where PYTHONSAFEPATH is not known: Python 3.10, a container."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = start_python.program(sys.executable, ASK, "a word")

    assert run(command, cwd=shadowed.folder, env=environ) == "False ['a word']\n"
    assert shadowed.ran() == []


def test_the_folder_of_the_test_runs_in_a_python_that_is_started_otherwise(shadowed):
    with pytest.raises(subprocess.CalledProcessError):
        run([sys.executable, "-c", ASK], cwd=shadowed.folder)

    assert shadowed.ran() == ["json"]


def test_a_module_is_started_where_only_root_writes(shadowed):
    about = os.stat(start_python.FOLDER)

    assert (about.st_uid, about.st_mode & 0o022) == (0, 0)
    assert "Usage: ddtop" in run(
        start_python.module("ddtop", "--help"),
        cwd=start_python.FOLDER,
        env=start_python.environment(),
    )


def test_an_empty_part_of_the_path_is_not_passed_on(shadowed, monkeypatch):
    """It means the current folder. `export PYTHONPATH=$PYTHONPATH:/x` makes one by accident."""
    monkeypatch.chdir(shadowed.folder.parent)
    monkeypatch.setenv("PYTHONPATH", ":sub:/x:")
    monkeypatch.setenv("DDTOP", "1")

    environ = start_python.environment()

    assert environ["PYTHONPATH"] == f"{shadowed.folder.parent}/sub:/x"
    assert (environ["PYTHONSAFEPATH"], "DDTOP" in environ) == ("1", False)


def test_python_m_ddtop_looks_no_longer_into_the_current_folder(tmp_path):
    """Python itself has put that folder first: a `ddtop` of it would still be taken."""
    (tmp_path / "click.py").write_text("raise SystemExit('a stranger')\n")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}

    assert "Usage: ddtop" in run(
        [sys.executable, "-m", "ddtop", "--help"], cwd=tmp_path, env=environ
    )
