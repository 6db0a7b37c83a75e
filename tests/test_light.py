"""An image can have the agent alone: the programs that run there need no package of the commands,
and the command says what it needs.
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


def test_agent_and_relay_import_no_package_of_the_commands():
    ended = run(IMPORTS)

    assert (ended.stdout, ended.stderr) == ("all\n", "")


@pytest.mark.parametrize("arguments", [(), ("status",), ("--version",), ("bridge",), ("doctor",)])
def test_the_command_says_in_a_sentence_which_package_is_missing_and_what_to_type(arguments):
    ended = run(COMMAND, *arguments)

    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr == (
        f"ddtop: the agent works in {sys.executable}, but the commands need click:"
        f" {sys.executable} -m pip install ddtop, or elsewhere on this host: uvx ddtop\n"
    )


def test_where_the_agent_lacks_a_package_nobody_says_that_it_works():
    """Only the first half of the line for images was typed: `pip install --no-deps ddtop`."""
    ended = run(ONLY_MSGSPEC_IS_MISSING + COMMAND, "jobs")

    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith(
        f"ddtop: {sys.executable} lacks msgspec, which agent and commands need:"
    )
    assert ended.stderr.count("\n") == 1


def test_a_package_that_is_none_of_ours_is_not_taken_for_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "ddtop.cli", None)

    with pytest.raises(ModuleNotFoundError):
        main()


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(monkeypatch):
    """A viewer that was ended in its first half second printed a page of import frames."""

    class Slow(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "ddtop.cli", Slow("ddtop.cli"))

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130
