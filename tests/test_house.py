"""Rules about the code itself: which room may import which, its size, and what a module has."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parsed import called, nodes
from tools import house

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ddtop"
MODULES = sorted(PACKAGE.rglob("*.py"))
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "base"}
HEAVY = {"torch", "pynvml", "numpy"}


def trees():
    """Each module with all its nodes, itself first."""
    return [(path, nodes(path)) for path in MODULES]


def test_every_import_contract_holds(capsys):
    """The agent once gained an import of the model, and with it 30 ms in every Python start."""
    linter = pytest.importorskip("importlinter.cli")

    status = linter.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)

    assert status == 0, capsys.readouterr().out


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions and for type checking count: a reader follows them as well."""
    known = {_module_of(path): nodes for path, nodes in trees()}
    imports = {
        name: {one for node in nodes for one in _imported(node, known)} - {name}
        for name, nodes in known.items()
    }

    assert sum(map(len, imports.values())) > len(known)
    # Raises CycleError with the modules of the cycle.
    graphlib.TopologicalSorter(imports).prepare()


def _module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node, known):
    """The modules of ddtop that an import statement names."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name in known}
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return set()
    named = (f"{node.module}.{alias.name}" for alias in node.names)
    return {one if one in known else node.module for one in named if node.module in known}


def test_no_room_is_larger_than_house_toml_says():
    """A room may grow only if another one shrinks."""
    rooms = house.rooms()
    limits = house.limits()

    assert set(rooms) == set(limits)
    assert sum(limits.values()) <= house.most()
    assert {name: count for name, count in rooms.items() if count > limits[name]} == {}


def test_only_follow_makes_a_model_or_a_judge():
    """Two ways to make one would be two verdicts on the same job."""
    makers = {
        str(path.relative_to(PACKAGE))
        for path, nodes in trees()
        for node in nodes
        if called(node) in ("Job", "Judge")
    }

    assert makers == {
        "cli/outside_jobs.py",  # launchers before their first rank: there is no frame to follow
        "follow/engine.py",
        "follow/recording.py",
        "follow/tape.py",
    }


def test_only_follow_makes_a_follower():
    """Who follows a job elsewhere has a contact, a clock and a limit of its own."""
    makers = {
        str(path.relative_to(PACKAGE))
        for path, nodes in trees()
        for node in nodes
        if called(node).rpartition(".")[2] in ("Follower", "follower")
    }

    assert makers == {"follow/engine.py", "follow/session.py"}


def test_threads_are_started_in_few_places():
    """A thread needs an owner that ends it, and a reason why `ddtop.patience` is not enough."""
    starters = {
        str(path.relative_to(PACKAGE))
        for path, nodes in trees()
        if "demo" not in path.parts
        for node in nodes
        if called(node) == "threading.Thread"
    }

    assert starters == STARTERS


STARTERS = {
    "api.py",
    "cli/actions.py",
    "cli/exporter.py",
    "folders.py",
    "follow/engine.py",
    "follow/fleet.py",
    "follow/source_lines.py",
    "patience.py",
    "pytest.py",
    "relay/gpus/ras.py",
    "relay/gpus/reader.py",
    "relay/history.py",
    "relay/hub/topology.py",
    "relay/processes/pyspy.py",
    "relay/processes/sockets.py",
}


def test_no_module_has_a_name_that_says_nothing():
    assert [
        str(path) for path in MODULES if path.stem in EMPTY_NAMES or path.parent.name in EMPTY_NAMES
    ] == []


def test_every_module_says_what_it_knows():
    silent = [
        str(path.relative_to(ROOT))
        for path, (module, *_) in trees()
        if path.name != "__main__.py" and not ast.get_docstring(module)
    ]

    assert silent == []


def test_torch_and_pynvml_are_met_inside_functions_only():
    """Both belong to the watched job. A viewer on a login node has neither."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, (module, *_) in trees()
        if "demo" not in path.parts
        for node in module.body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and names_of(node) & HEAVY
    }

    assert found == set()


def names_of(node):
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").split(".")[0]}
    return {alias.name.split(".")[0] for alias in node.names}


def test_nothing_prints_but_the_commands_and_the_demo():
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, nodes in trees()
        if "demo" not in path.parts
        for node in nodes
        if called(node) == "print"
    }

    assert found == set()


def test_the_start_up_line_is_one_line_and_catches_everything():
    """A .pth line that raises prints a traceback in every Python of that environment."""
    (line,) = (PACKAGE / "agent" / "ddtop.pth").read_text().splitlines()

    assert line.startswith("import ")
    assert "except BaseException" in line
    compile(line, "ddtop.pth", "exec")


def test_feeds_follow_and_present_load_no_screen():
    """An exporter, a bot or a notebook needs these two rooms, and may run without Textual."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] in ("feeds", "follow", "present")
        and path.name != "__init__.py"
    ]
    program = (
        f"import sys, {', '.join(modules)}; print([n for n in ('textual', 'rich') if n in"
        " sys.modules])"
    )

    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert printed == "[]\n"


NAMES_A_TEST = re.compile(r"from [\w.]*\btest_|from [\w.]+ import (\([^)]*|[^(\n]*)\btest_")


def test_no_test_imports_from_a_test_module():
    """What two test modules need belongs in a module of its own: a module of tests is for pytest
    alone.
    """
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (
            *(ROOT / "tests").rglob("*.py"),
            *(ROOT / "tools").rglob("*.py"),
            *(ROOT / "zoo").rglob("*.py"),
        )
        if NAMES_A_TEST.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and any(
            part.startswith("test_")
            for name in [node.module or "", *(alias.name for alias in node.names)]
            for part in name.split(".")
        )
    }

    assert found == set()
