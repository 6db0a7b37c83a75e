"""The check for machines with a GPU, as far as a machine without one can test it: it starts without
any package, prints what it has seen, and its lines fit a screen.
"""

import importlib
import inspect
import os
import subprocess
import sys

import pytest

from ddtop.relay.gpus.nvml import driver_is_there
from tools.gpu import check


@pytest.mark.skipif(driver_is_there(), reason="a host without a driver")
def test_without_a_driver_and_without_any_package_it_says_so():
    """`-I -S`: no site-packages at all, as on a machine to which only the repository was copied."""
    code = (
        f"import sys; sys.path.insert(0, {str(check.ROOT)!r}); import tools.gpu.check as c;"
        " sys.argv = ['check']; sys.exit(c.main())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 3
    assert done.stdout == "no NVIDIA driver: nothing to check here\n"
    assert done.stderr == ""


def test_each_part_is_there_and_says_what_it_is():
    rooms = [
        importlib.import_module(name)
        for name in ("tools.gpu.cards", "tools.gpu.jobs", "tools.gpu.nccl", "tools.gpu.several")
    ]
    for name in check.PARTS:
        (part,) = [found for room in rooms if (found := vars(room).get(name)) is not None]
        assert inspect.getdoc(part)
        assert not inspect.signature(part).parameters


def test_what_it_prepares_runs_the_hook_and_sees_what_this_python_has(tmp_path):
    python = check.prepare(None, tmp_path / "venv")
    code = (
        "import sys, ddtop, msgspec, zmq; print('ddtop.agent.hook' in sys.modules, ddtop.__file__)"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("DDTOP")
    }
    for value in ("1", "0"):
        done = subprocess.run(
            [python, "-c", code],
            cwd=tmp_path,
            env={**environment, "DDTOP": value},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split() == [str(value == "1"), str(check.ROOT / "ddtop/__init__.py")]


def test_claims_are_shown_before_all_else_and_lines_are_cut():
    lines = [
        "== part",
        *(f"much that was said {'x' * 500}" for _ in range(9)),
        "PASS it holds: 1",
        "FAIL it does not: 2",
    ]
    text = check.shown(lines, 700)

    assert (text[0], text[-2:]) == ("== part", ["PASS it holds: 1", "FAIL it does not: 2"])
    assert sum(len(line) + 1 for line in text) <= 700
    assert len(text) == 5


def test_a_part_that_does_not_come_back_is_ended_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / "tools/gpu").mkdir(parents=True)
    for package in ("tools", "tools/gpu"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "tools/gpu/check.py").write_text(
        "import time; print('SEEN something', flush=True); time.sleep(60)"
    )
    with (tmp_path / "log").open("w") as log:
        lines = check.run("slow", 3, log)

    assert lines[1:] == ["SEEN something", "FAIL slow: not done after 3 s"]
    assert (tmp_path / "log").read_text().splitlines() == lines[1:]
