"""A program that has a module with the name of one that the agent needs: the agent is off."""

import json
import os
import sys
from pathlib import Path

import pytest

from ddtop.agent.own_imports import LIBRARY, NEEDED
from tests.running import python
from tests.shadowed import Shadowed

pytestmark = pytest.mark.usefixtures("hook_is_installed")
PRINTS = "import time, zmq, msgspec; time.sleep(0.3); print(zmq.mine, msgspec.mine)\n"
RANK = {"RANK": "0", "WORLD_SIZE": "1", "DDTOP_LINGER_S": "0"}
SUBINTERPRETER = """
import sys
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
number = interpreters.create()
run = getattr(interpreters, "run_string", None) or interpreters.exec
run(number, "import sys; print(any(type(one).__module__.startswith('ddtop') for one in sys.meta_path), flush=True)")
print("main", any(type(one).__module__.startswith("ddtop") for one in sys.meta_path))
"""  # noqa: E501


def run(home, script, *words, **variables):
    """(stdout, stderr) of a watched script."""
    done = python(
        *words, str(script), check=False, env={**os.environ, "DDTOP": "1", **RANK, **variables}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def shadows(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"mine = 'my {name}'\n")
    script = folder / "train.py"
    script.write_text(PRINTS)
    return script


def test_a_folder_of_the_scripts_with_the_name_of_a_library_is_the_scripts(home, tmp_path):
    out, err = run(home, shadows(tmp_path, "zmq", "msgspec"))

    assert out == "my zmq my msgspec\n"
    assert (
        err
        == f"ddtop is off in this job: the program has its own msgspec: {tmp_path / 'msgspec'}\n"
    )


def test_a_folder_called_zmq_is_no_business_of_ours(home, tmp_path):
    """The rank loads no libzmq, so the program's module replaces nothing."""
    script = shadows(tmp_path, "zmq")
    script.write_text(
        "import zmq, sys\nwhile 'ddtop.agent.report' not in sys.modules: pass\nprint(zmq.mine)\n"
    )
    out, err = run(home, script)

    assert out == "my zmq\n"
    assert "ddtop is off" not in err


def test_no_rank_imports_zmq(home, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time; time.sleep(1.0); print('msgspec' in sys.modules, 'zmq' in sys.modules)\n"
    )

    assert run(home, script)[0] == "True False\n"


def test_a_second_interpreter_gets_no_agent(home, tmp_path):
    """It runs the start-up line again, with modules of its own."""
    pytest.importorskip("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters")
    script = tmp_path / "train.py"
    script.write_text(SUBINTERPRETER)

    assert run(home, script)[0] == "False\nmain True\n"


AGENT = Path(__file__).resolve().parents[2] / "ddtop" / "agent"
EVERY_MODULE = """
import sys
def load_all():
    for name in {names!r}:
        __import__(name)
"""
WATCHED = """
import sys, time
while "ddtop.agent.report" not in sys.modules:
    time.sleep(0.01)
time.sleep(1.5)
load_all()
"""
LISTS = """
load_all()
import _imp, json
found = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([name for name in found if not _imp.is_frozen(name)]))
"""


@pytest.fixture
def load_all():
    """A program that imports each module of the agent."""
    found = (path.relative_to(AGENT).with_suffix("").parts for path in sorted(AGENT.rglob("*.py")))
    names = [".".join(("ddtop.agent", *parts)).removesuffix(".__init__") for parts in found]
    no_agent = {"ddtop.agent.hook", "ddtop.agent.frameworks.check"}
    return EVERY_MODULE.format(names=[name for name in names if name not in no_agent])


def test_the_table_has_each_module_of_the_standard_library_that_the_agent_loads(load_all):
    before = set(sys.builtin_module_names) | set(json.loads(python("-c", STARTED).stdout))
    loaded = set(json.loads(python("-c", load_all + LISTS).stdout))

    assert loaded & set(sys.stdlib_module_names) - before - LIBRARY == set()
    assert loaded - set(sys.stdlib_module_names) - {"ddtop", "__main__"} <= {*NEEDED, *BESIDE}


STARTED = "import sys, json; print(json.dumps(list(BEFORE)))".replace("BEFORE", "sys.modules")
BESIDE = {"typing_extensions", "_virtualenv", "_distutils_hack", "sitecustomize"}


def test_nothing_of_the_scripts_folder_runs_whatever_its_names_are(home, tmp_path, load_all):
    """A tool `statistics.py` beside `train.py` began its file of results anew in each rank."""
    stranger = Shadowed(tmp_path)
    for name in LIBRARY | {"msgspec", "ddtop"}:
        (stranger.folder / f"{name}.py").unlink(missing_ok=True)
    script = stranger.folder / "train.py"
    script.write_text(load_all + WATCHED)

    out, err = run(home, script)

    assert stranger.ran() == []
    assert (out, "ddtop is off" in err) == ("", False)


def test_where_the_program_has_a_module_that_the_agent_needs_neither_is_loaded(home, tmp_path):
    stranger = Shadowed(tmp_path)
    script = stranger.folder / "train.py"
    script.write_text("import sys, time; time.sleep(0.5); print('uuid' in sys.modules)\n")

    out, err = run(home, script)

    assert stranger.ran() == []
    assert out == "False\n"
    assert "ddtop is off in this job: the program has its own" in err


@pytest.mark.parametrize("entry", ["uuid.txt", "uuid/data.csv", "uuid.py.orig"])
def test_a_file_that_python_would_not_import_is_no_module(home, tmp_path, entry):
    (tmp_path / entry).parent.mkdir(exist_ok=True)
    (tmp_path / entry).write_text("")
    script = tmp_path / "train.py"
    script.write_text("")

    assert "ddtop is off" not in run(home, script)[1]


def test_a_module_of_pythonpath_is_the_programs(home, tmp_path):
    """It comes before the standard library, for this rank and for the relay that it starts."""
    stranger = Shadowed(tmp_path)
    of_the_relay = ("statistics", "random", "json", "argparse", "resource", "traceback", "logging")
    for path in stranger.folder.iterdir():
        if path.stem not in of_the_relay:
            path.unlink()
    script = tmp_path / "train.py"
    script.write_text(WATCHED.replace("load_all()", "print('watched')"))

    out, err = run(home, script, PYTHONPATH=str(stranger.folder))

    assert stranger.ran() == []
    assert (out, "ddtop: watching" in err) == ("watched\n", True)
