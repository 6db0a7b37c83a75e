"""A command that is typed in a folder where anybody may write: no module of that folder is
imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from ddtop.cli import cli
from ddtop.cli.actions import Actions, JobGuard, Rules
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.present.events import appeared, event_json
from tests.shadowed import Shadowed

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
SCRIPT = "from ddtop.__main__ import main\nmain()\n"
"""What pip, pipx and uvx make of the entry point: Python puts the folder of this file first."""
TYPED = {
    "attach": ["attach", "nosuch"],
    "check": ["check", "--within", "60", "--", TORCHRUN, "--nproc-per-node", "1", "train.py"],
    "completion": ["completion", "bash"],
    "config": ["config"],
    "demo": ["demo", "--fault", "rank-crashed", "--ranks", "2"],
    "diagnose": ["diagnose", "nosuch"],
    "doctor": ["doctor"],
    "doctor of a python": ["doctor", "--python", sys.executable],
    "exporter": ["exporter", "--listen", "127.0.0.1:0"],
    "explain": ["explain", "straggler"],
    "gpus": ["gpus"],
    "help": ["help", "stacks"],
    "jobs": ["jobs"],
    "key": ["key"],
    "mcp": ["mcp"],
    "mute": ["mute", "nosuch", "straggler", "--for", "1m"],
    "replay": ["replay", "nosuch"],
    "report": ["report", "nosuch"],
    "run": ["run", "--", sys.executable, "-c", "pass"],
    "schema": ["schema"],
    "setup-env": ["setup-env", sys.executable],
    "signal": ["signal", "nosuch", "--rank", "0", "TERM"],
    "stacks": ["stacks", "nosuch"],
    "status": ["status", "nosuch"],
    "watch": ["watch", "nosuch"],
    "bridge": ["bridge"],
}
ENDLESS = ("exporter",)
SLOW = ("check", "demo", "doctor", "doctor of a python")


@pytest.fixture
def shadowed(tmp_path):
    return Shadowed(tmp_path)


@pytest.fixture
def command(tmp_path, home, monkeypatch):
    """The command, as it is installed."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    script = tmp_path / "bin" / "ddtop"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    return [sys.executable, str(script)]


def test_every_command_is_tried():
    assert {words[0] for words in TYPED.values()} == set(cli.commands)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.job) if one in SLOW else one for one in TYPED]
)
def test_no_command_runs_what_lies_in_the_folder(name, command, shadowed):
    with subprocess.Popen(
        [*command, *TYPED[name]],
        cwd=shadowed.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        if name in ENDLESS:
            assert "serving" in process.stdout.readline()
            process.terminate()
        output = process.stdout.read()
        code = process.wait()

    assert shadowed.ran() == [], output
    assert "Traceback" not in output
    assert code in (0, 1, 2, 3, -15), output


def test_the_report_of_a_watch_is_written_by_no_stranger(shadowed, home, monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(shadowed.folder)
    complaints = []
    guard = JobGuard("nosuch", Rules(), Actions(report=shadowed.folder.parent), complaints.append)
    finding = Finding(Kind.NOT_IN_COLLECTIVE, CRITICAL, (2,), (), 0, "rank 2 sleeps")
    change = appeared(finding, 0)

    guard.take(change, event_json(change, "nosuch"))
    guard.leave()

    assert shadowed.ran() == []
    # The command ran: there is no such job.
    assert complaints == ["--report: exit code 3; the event is sent without it"]
