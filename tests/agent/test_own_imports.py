"""A program that has a module with the name of one that the agent needs: the agent is off."""

from __future__ import annotations

import os
import sys

import pytest

from tests.running import python

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
