"""`ddtop setup-env` and `ddtop doctor --python` on real environments, with small wheels."""

import json
import os
import subprocess
import sys
import venv
import zipfile

import pytest

from ddtop.cli.other_python import NOTE, OtherPython
from tests.cli.commands import ddtop as run

AGENT = ("msgspec", "psutil", "pyzmq")
START_UP_LINE = 'import os; exec("import ddtop.agent.hook") if os.environ.get("DDTOP") else None'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A distribution with a hook and a start-up line, and only what the agent needs."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in AGENT:
        small_wheel(folder, name, "99.0", {f"{name}.py": ""})
    files = {
        "ddtop/__init__.py": "",
        "ddtop/agent/__init__.py": "",
        "ddtop/agent/hook.py": "",
        "ddtop.pth": START_UP_LINE + "\n",
    }
    requires = "".join(f"Requires-Dist: {name}\n" for name in (*AGENT, "textual", "click"))
    return small_wheel(folder, "ddtop", "9.9", files, requires)


def small_wheel(folder, name, version, files, requires=""):
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment") / "env"
    venv.create(folder, with_pip=True, symlinks=True)
    return folder


@pytest.fixture
def other(made, wheel, home, monkeypatch):
    """A virtual environment without ddtop. What a test installs in it is removed afterwards."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    yield made
    python = OtherPython(str(made))
    python.uninstall(python.ask())


@pytest.mark.job
def test_the_agent_is_put_into_an_environment_and_taken_out_again(other, wheel):
    done = run("setup-env", str(other), "--from", str(wheel))

    assert done.returncode == 0, done.stderr
    added = done.stdout.partition("added ")[2].partition(" in ")[0].split(", ")
    assert sorted(added) == ["ddtop 9.9", *(f"{name} 99.0" for name in AGENT)]
    assert f"ddtop setup-env {other} --undo" in done.stdout
    assert OtherPython(str(other)).ask(watched=True).hook_runs
    assert not OtherPython(str(other)).ask().hook_runs

    again = run("setup-env", str(other), "--from", str(wheel))
    assert "has ddtop 9.9: its jobs with DDTOP=1 are seen" in again.stdout

    undone = run("setup-env", str(other), "--undo")
    here = OtherPython(str(other)).ask(watched=True)
    assert "ddtop 9.9" in undone.stdout.partition("removed ")[2]
    assert (here.hook_runs, {"ddtop", *AGENT} & here.packages.keys()) == (False, set())
    assert NOTE not in os.listdir(here.folder)


def test_undo_removes_nothing_that_it_has_not_added(other, wheel):
    pip = [str(other / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "--no-deps", str(wheel)], check=True)
    try:
        undone = run("setup-env", str(other), "--undo")

        assert "nothing to remove" in undone.stdout
        assert OtherPython(str(other)).ask().packages["ddtop"] == "9.9"
    finally:
        subprocess.run([*pip, "uninstall", "-q", "-y", "ddtop"], check=True)


def test_a_container_is_reached_by_its_program(other, wheel, tmp_path, monkeypatch):
    """A stand-in for docker, which runs the command on this host."""
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "exec train" ] || exit 125\nshift 2\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    python = str(other / "bin" / "python")

    done = run("setup-env", python, "--container", "train", "--from", str(wheel))

    assert done.returncode == 0, done.stderr
    assert "--through 'docker exec train' --undo" in done.stdout
    gone = run("setup-env", python, "--container", "else")
    assert (gone.returncode, "exit code 125" in gone.stderr) == (3, True)


def test_a_folder_serves_an_image_that_cannot_be_written(other, wheel, tmp_path):
    folder = tmp_path / "for-pythonpath"
    done = run("setup-env", str(other), "--target", str(folder), "--from", str(wheel))

    assert done.returncode == 0, done.stderr
    assert f"DDTOP=1 PYTHONPATH={folder}" in done.stdout
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = True\n")
    code = "import builtins, sys; print('ddtop.agent.hook' in sys.modules, builtins.theirs)"

    def seen(ddtop):
        variables = {"PYTHONPATH": f"{folder}:{theirs}", "DDTOP": ddtop}
        return subprocess.run(
            [str(other / "bin" / "python"), "-c", code],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()

    assert (seen("1"), seen("0")) == (["True", "True"], ["False", "True"])
    assert run("setup-env", str(other), "--target", str(folder), "--undo").returncode == 0
    assert not folder.exists()


def test_a_folder_with_other_files_is_left_alone(other, tmp_path):
    (tmp_path / "thesis.txt").write_text("x")

    for more in ([], ["--undo"]):
        done = run("setup-env", str(other), "--target", str(tmp_path), *more)
        assert (done.returncode, done.stdout) == (2, "")
    assert (tmp_path / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("python", "code", "text"),
    [
        ("/nowhere/python", 3, "No such file or directory"),
        ("/bin/ls", 3, "exit code 2"),
        ("/bin/true", 3, "does not answer as a Python does"),
    ],
)
@pytest.mark.parametrize("words", [("setup-env",), ("doctor", "--python")])
def test_what_is_no_python_is_one_sentence(home, words, python, code, text):
    done = run(*words, python)

    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 400


def test_options_that_exclude_each_other_are_refused(home):
    for words in (["--container", "a", "--through", "b"], ["--container", "a", "--target", "b"]):
        assert run("setup-env", sys.executable, *words).returncode == 2


def test_doctor_looks_at_another_python(other, wheel):
    before = run("doctor", "--python", str(other))
    run("setup-env", str(other), "--from", str(wheel))
    after = run("doctor", "--python", str(other))

    assert (before.returncode, after.returncode) == (1, 0)
    assert f"not there: ddtop setup-env {other}" in before.stdout
    assert "ddtop 9.9 is there: jobs with DDTOP=1 are seen" in after.stdout
    assert "lacks click, textual: it has only the agent" in after.stdout
    assert "torch" in after.stdout


def test_doctor_says_what_the_agent_of_another_python_lacks(other, wheel):
    """Only the first half of the line for images was typed: `pip install --no-deps ddtop`."""
    pip = [str(other / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "--no-deps", str(wheel)], check=True)
    try:
        done = run("doctor", "--python", str(other))
    finally:
        subprocess.run([*pip, "uninstall", "-q", "-y", "ddtop"], check=True)

    assert done.returncode == 1
    assert "ddtop 9.9 lacks pyzmq, msgspec, psutil" in done.stdout
    assert "-m pip install pyzmq msgspec psutil" in done.stdout


def test_the_note_names_what_was_added(other, wheel):
    run("setup-env", str(other), "--from", str(wheel))
    here = OtherPython(str(other)).ask()

    with open(os.path.join(here.folder, NOTE)) as note:
        assert json.load(note) == {"ddtop": "9.9", **dict.fromkeys(AGENT, "99.0")}


def test_uv_reads_no_settings_of_the_current_folder(home, tmp_path, monkeypatch):
    """A uv.toml that somebody else has left there could name another index."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    python = OtherPython(str(tmp_path / "env"))

    python.install(python.ask(), "ddtop==9.9")

    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--project / pip install")
    assert f"--python {tmp_path}/env/bin/python " in asked
