"""A training environment has no package of the viewer, and the programs that run there do not need
one.
"""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from ddtop.__main__ import main

WITHOUT = """
import importlib, pkgutil, sys
sys.modules.update({name: None for name in ("click", "textual", "rich", "pynvml")})
"""
IMPORTS = """
import ddtop
for room in ("wire", "link", "launch", "agent", "relay"):
    package = importlib.import_module(f"ddtop.{room}")
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print("all")
"""
COMMAND = """
import runpy
sys.argv = ["ddtop", *sys.argv[1:]]
runpy.run_module("ddtop", run_name="__main__")
"""
ONLY_MSGSPEC_IS_MISSING = """
for name in ("click", "textual", "rich"):
    del sys.modules[name]
sys.modules["msgspec"] = None
"""


def run(code, *arguments):
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_agent_and_relay_import_no_package_of_the_viewer():
    ended = run(IMPORTS)

    assert (ended.stdout, ended.stderr) == ("all\n", "")


@pytest.mark.parametrize("arguments", [(), ("status",), ("--version",), ("bridge",)])
def test_the_command_says_which_package_is_missing_and_what_to_type(arguments):
    ended = run(COMMAND, *arguments)

    assert (ended.returncode, ended.stdout) == (3, "")
    assert "(click is missing)" in ended.stderr
    assert f"{sys.executable} -m pip install 'ddtop[viewer]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_another_package_misses_is_not_taken_for_the_viewer():
    ended = run(ONLY_MSGSPEC_IS_MISSING + COMMAND, "jobs")

    assert "ddtop[viewer]" not in ended.stderr
    assert "msgspec" in ended.stderr


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(monkeypatch):
    """A viewer that was ended in its first half second printed a page of import frames."""

    class Slow(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "ddtop.cli", Slow("ddtop.cli"))

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130
