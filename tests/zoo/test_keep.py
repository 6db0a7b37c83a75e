"""What is kept of a case that has run."""

import json

import pytest

from ddtop import journal, registry
from ddtop.wire import frames
from ddtop.wire.records import Hello
from tools.benchmarks.stage import StageError
from tools.recorded.neutral import HOME, HOST
from zoo import run as runner
from zoo.catalogue import all_cases
from zoo.judge import begun
from zoo.keep import keep
from zoo.run import Options
from zoo.tools.ddtop import Ddtop


def recorded(role, started_unix_ns, script, run="r1"):
    """The files of a relay in this process's state folder."""
    entry = registry.JobEntry(
        registry.SCHEMA, "verdict", run, "box", f"{'a' * 12}.{role}", 1, 1, "127.0.0.1", 1, "", "",
        3, 3, started_unix_ns, started_unix_ns, role=role,
    )  # fmt: skip
    registry.write_entry(entry)
    hello = Hello("verdict", run, 0, 0, 0, 3, "box", 47, 11, script=script)
    journal.write(
        registry.journal_path(entry.job, entry.run, entry.sender),
        [frames.seal(hello, sender=entry.sender, unix_ns=1, mono_ns=1, rank=0)],
    )


def kept(path):
    return [frames.open_record(frames.open_envelope(data)) for data in journal.Reader(path)]


def test_the_recording_of_the_hub_is_kept_with_what_is_right_beside_it(state_home, tmp_path):
    case = all_cases()["node-stands"]
    recorded("leaf", 1, "leaf.py")
    recorded("hub", 2, f"{state_home}/hub.py")
    outcome = begun(case, "ddtop", 1.0)

    keep(case, outcome, state_home, tmp_path / "kept")

    (hello,) = kept(tmp_path / "kept" / "node-stands.journal")
    assert (hello.script, hello.host) == (f"{HOME}/job/hub.py", HOST)
    assert json.loads((tmp_path / "kept" / "node-stands.json").read_text()) == {
        "program": "nodes.py",
        "expected": ["not-in-collective 3"],
        "tolerated": [],
        "warning_only": False,
        "right": False,
    }


def test_a_case_without_a_relay_leaves_nothing(state_home, tmp_path):
    case = all_cases()["own-lock"]

    keep(case, begun(case, "ddtop", 1.0), state_home, tmp_path / "kept")

    assert not (tmp_path / "kept").exists()


def test_a_run_with_trouble_is_not_kept(monkeypatch, tmp_path):
    def start(*_, **__):
        raise StageError("mpirun is not installed")

    tool = Ddtop()
    monkeypatch.setattr(tool, "start", start)

    runner.run(all_cases()["own-lock"], tool, Options(), tmp_path / "kept")

    assert not (tmp_path / "kept").exists()


@pytest.fixture
def state_home(monkeypatch, tmp_path):
    home = tmp_path / "stage"
    home.mkdir()
    monkeypatch.setenv("DDTOP_STATE", str(home / "state"))
    return home
