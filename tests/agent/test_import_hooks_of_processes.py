"""What a Python process imports because ddtop is installed: nothing, unless it is watched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ddtop
from tests.running import python

HEAVY = (
    "torch",
    "zmq",
    "msgspec",
    "textual",
    "rich",
    "psutil",
    "pynvml",
    "click",
    "numpy",
    "asyncio",
)
PTH = Path(ddtop.__file__).parent / "agent" / "ddtop.pth"
ASK = (
    "import json, sys, threading; print(json.dumps([sorted(sys.modules), [t.name for t in"
    " threading.enumerate()]]))"
)


def asked(home, code, *, command=None, **variables):
    """(modules, threads) of a fresh Python that ran this code."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("DDTOP")
    }
    environment |= {"DDTOP_STATE": str(home.state), "DDTOP_RUNTIME": str(home.runtime)} | variables
    program = [*(command or [sys.executable, "-c"]), f"{code}\n{ASK}"]
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    modules, threads = json.loads(done.stdout.splitlines()[-1])
    return set(modules), threads


def heavy(modules):
    return {name for name in HEAVY if name in modules}


@pytest.mark.usefixtures("hook_is_installed")
@pytest.mark.parametrize("value", [None, "", "0"])
def test_with_ddtop_unset_nothing_is_imported(home, value):
    """Every Python pays for the imports of the start-up line, also pip and the prompt."""
    modules, threads = asked(home, "", **({} if value is None else {"DDTOP": value}))

    assert {name for name in modules if name.startswith("ddtop")} == set()
    assert heavy(modules) == set()
    assert threads == ["MainThread"]


@pytest.mark.usefixtures("hook_is_installed")
def test_a_watched_process_that_is_no_rank_gets_an_import_hook_and_no_more(home):
    """With `DDTOP=1` in a profile, `python prep.py` must start no threads."""
    modules, threads = asked(home, "", DDTOP="1")

    assert "ddtop.agent.import_hooks" in modules
    assert heavy(modules) == set()
    assert threads == ["MainThread"]
    assert not home.state.exists()
    assert list(home.runtime.iterdir()) == []


@pytest.mark.usefixtures("hook_is_installed")
def test_launchers_get_a_mark_for_their_children_and_no_more(home, tmp_path):
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"import os\nprint(os.environ['DDTOP_TREE'])\n{ASK}")
    environment = os.environ | {"DDTOP": "1"}
    done = python(str(launcher), "--nproc-per-node", "2", "train.py", env=environment)
    tree, answer = done.stdout.splitlines()
    modules, threads = json.loads(answer)

    assert tree.startswith("train-")
    assert "zmq" not in modules
    assert threads == ["MainThread"]


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("ddtop", set()),
        ("ddtop.agent.identity", set()),
        ("ddtop.agent.import_hooks", set()),
        ("ddtop.agent.guard", set()),
        ("ddtop.agent.state_page", {"msgspec"}),
        ("ddtop.wire.records", {"msgspec"}),
        ("ddtop.cli", {"click", "msgspec"}),
    ],
)
def test_a_module_imports_nothing_heavier_than_it_needs(home, module, allowed):
    modules, _ = asked(home, f"import {module}")

    assert heavy(modules) <= allowed


@pytest.mark.parametrize(
    "module",
    [
        "ddtop.cli.commands.attach",
        "ddtop.cli.look",
        "ddtop.cli.commands.demo",
        "ddtop.relay.server",
    ],
)
def test_views_and_relay_never_import_torch_nor_the_dashboard(home, module):
    modules, _ = asked(home, f"import {module}")

    assert not {"torch", "textual", "numpy"} & modules


def test_what_a_training_calls_is_there_without_importing_more(home):
    """`watch` is for programs that follow a job, so it imports the viewer when it is used."""
    modules, _ = asked(
        home,
        "import ddtop\nnames = set(ddtop.__all__) - {'watch'}\n"
        "for name in names: getattr(ddtop, name)\nddtop.step()",
    )

    found = {name for name in modules if name.startswith("ddtop")}
    assert found - {"ddtop._version"} == {"ddtop"}


# -- a broken or missing ddtop


@pytest.mark.parametrize(
    "content",
    [
        None,
        "raise RuntimeError('half upgraded')",
        "import nosuchmodule",
        "def broken(:",
        "import sys; sys.exit(3)",
        "raise KeyboardInterrupt",
    ],
    ids=["missing", "raises", "import error", "syntax error", "exits", "interrupt"],
)
def test_a_broken_or_missing_ddtop_is_silent(home, tmp_path, content):
    """An interrupted upgrade made every Python print a traceback."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(PTH, site / "ddtop.pth")
    if content is not None:
        (site / "ddtop" / "agent").mkdir(parents=True)
        (site / "ddtop" / "__init__.py").write_text("")
        (site / "ddtop" / "agent" / "__init__.py").write_text("")
        (site / "ddtop" / "agent" / "hook.py").write_text(content)
    program = f"import site; site.addsitedir({str(site)!r}); print('up')"

    done = python("-I", "-S", "-c", program, check=False, env={"DDTOP": "1"})

    assert (done.returncode, done.stdout, done.stderr) == (0, "up\n", "")
