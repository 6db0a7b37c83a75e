"""What the tests of all rooms share: repeatable examples, and separate folders for state and
sockets.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator

from ddtop import folders, thresholds
from ddtop.policy import POLICY
from ddtop.present.schemas import KEYS, json_schema
from ddtop.relay import server
from tests.runtime_folder import runtime_folder

# Shells start background commands with SIGINT ignored, and processes that tests start would inherit
# that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same with nohup and SIGHUP.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# pytest-xdist sets them in its workers. A command that a test starts would not see its own
# terminal's size.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Where it is set, each process that a test starts would compile ddtop again, and each worker the
# tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "ddtop",
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ddtop")

PURE, LONG = (
    {Path(__file__).parent / room for room in rooms}
    for rooms in (("diagnosis", "model", "words", "launch", "wire"), ("ui", "sim"))
)


def pytest_configure(config: pytest.Config) -> None:
    """Workers of pytest-xdist take the files in their order, not the largest first."""
    config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means. Half of the time of these tests is waiting, so there are twice as many
    workers as cores. More than eight gain nothing: the longest file decides.
    """
    return min(2 * (os.cpu_count() or 1), 8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The pure rooms come first, so that a broken rule is named within a minute; then those with
    long files, for which nobody waits at the end. Without torch, what needs it is skipped; it is
    not imported to find that out.
    """
    items.sort(
        key=lambda item: (PURE.isdisjoint(item.path.parents), LONG.isdisjoint(item.path.parents))
    )
    if find_spec("torch") is None:
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason="torch is not installed"))


def pytest_collection_finish() -> None:
    """What the thousands of tests consist of lives until the end. Without this, the five garbage
    collections with which pytest ends take a second each, in every worker.
    """
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def documents_are_valid() -> Iterator[None]:
    """Each JSON document of ddtop that a test reads must be valid against its schema.

    Tests read them with `json.loads`: the output of commands, bodies of webhooks, files.
    """
    validators = {name: Draft202012Validator(json_schema(name)) for name in KEYS}
    loads = json.loads

    def checked(*arguments: Any, **named: Any) -> Any:
        found = loads(*arguments, **named)
        validator = validators.get(str(found.get("schema"))) if isinstance(found, dict) else None
        if validator is not None:
            validator.validate(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", checked)
        yield


@dataclass(frozen=True)
class Home:
    """The folders where one test's ddtop keeps its jobs and its sockets."""

    state: Path
    runtime: Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Own state and runtime folders."""
    for name in [name for name in os.environ if name.startswith(("DDTOP", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    # A test that calls a command in this process makes the process a view.
    monkeypatch.setattr(folders, "_patience_s", None)
    # A relay in a thread of a test looks at its host more often, so that nobody waits for it.
    for name in ("HOST_EVERY_S", "ALIVE_EVERY_S", "ROSTER_AFTER_S"):
        monkeypatch.setattr(server, name, getattr(server, name) / 5)
    with runtime_folder() as runtime:
        found = Home(tmp_path / "state", runtime)
        monkeypatch.setenv("DDTOP_STATE", str(found.state))
        monkeypatch.setenv("DDTOP_RUNTIME", str(found.runtime))
        # The settings of the person who runs the tests must not change them.
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setattr(thresholds, "_chosen", POLICY)
        yield found


@pytest.fixture
def stage(home: Home) -> Iterator[Any]:
    """A relay in this process; it is ended unless the test has done so."""
    from tests.relay.stage import Stage

    found = Stage(home)
    yield found
    if found.thread.is_alive():
        found.close()


@pytest.fixture
def agents_count_as_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that a test plays report only when the test makes them report. On a slow machine the
    relay would take them for silent, and not ask them.
    """
    monkeypatch.setattr("ddtop.relay.dumps.collect.Dumps._is_silent", lambda *_: False)


@pytest.fixture(scope="session")
def hook_is_installed() -> None:
    """The start-up line is installed in this Python. With only a checkout on PYTHONPATH, a process
    is not watched.
    """
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print('ddtop.agent.hook' in sys.modules)"],
        env=os.environ | {"DDTOP": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if done.stdout.strip() != "True":
        pytest.skip("ddtop.pth is not in this Python")
