"""Packages that add findings, launchers and frameworks; one that is broken is named and left
out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugged import FINDING, FRAMEWORK, LAUNCHER, installed, python

FINDINGS = ("ddtop.findings", "small", "ddtop_small:SMALL")
SMALL_JOB = """
from ddtop.diagnosis import added
from tests.jobs import FakeJob
added.load()
job = FakeJob(2).trains(10)
for finding in job.verdict().findings:
    print(finding.severity, str(finding.kind), finding.summary)
"""


def test_the_finding_of_a_plugin_is_reported_and_explained(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING)

    job = python(packages, "-c", SMALL_JOB)
    page = python(packages, "-m", "ddtop", "explain", "too-small")

    assert job.stdout == "warning too-small the job has 2 ranks, fewer than four\n", job.stderr
    assert "Four ranks share a card." in page.stdout
    assert page.stderr == ""


def test_a_folder_that_is_on_the_path_twice_gives_its_plugins_once(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING)
    (tmp_path / "lib64-packages").symlink_to(packages)
    path = f"{packages}:{tmp_path / 'lib64-packages'}:{Path(__file__).parents[1]}"

    job = python(packages, "-c", SMALL_JOB, PYTHONPATH=path)

    assert job.stdout == "warning too-small the job has 2 ranks, fewer than four\n", job.stderr


def test_a_plugin_whose_import_fails_is_named_once_and_left_out(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, "import nothing_of_this_name")

    page = python(packages, "-m", "ddtop", "explain", "straggler")

    assert page.returncode == 0
    assert page.stderr == (
        "ddtop: plugin small (ddtop_small:SMALL) is left out:"
        " ModuleNotFoundError: No module named 'nothing_of_this_name'\n"
    )


ENDINGS = ["SystemExit(7)", "KeyboardInterrupt", "GeneratorExit"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "plugin", [FINDINGS, ("ddtop.launchers", "small", "ddtop_small:SMALL")], ids=["rule", "ranks"]
)
def test_a_plugin_that_ends_python_is_named_and_left_out(
    tmp_path: Path, ending: str, plugin: tuple[str, str, str]
) -> None:
    packages = installed(tmp_path, *plugin, f"raise {ending}")

    page = python(packages, "-m", "ddtop", "explain", "straggler")

    assert page.returncode == 0, page.stderr
    assert f"plugin small (ddtop_small:SMALL) is left out: {ending.partition('(')[0]}" in (
        page.stderr
    )
    assert "straggler" in page.stdout


def test_an_error_whose_text_cannot_be_made_is_named_by_its_type(tmp_path: Path) -> None:
    code = """
class Odd(BaseException):
    def __str__(self):
        raise SystemExit(3)
raise Odd
"""
    page = python(installed(tmp_path, *FINDINGS, code), "-m", "ddtop", "explain", "straggler")

    assert page.returncode == 0
    assert page.stderr == "ddtop: plugin small (ddtop_small:SMALL) is left out: Odd\n"


def test_ctrl_c_ends_a_command_whose_plugin_takes_long(tmp_path: Path) -> None:
    code = "import time; print('loads', flush=True); time.sleep(60)"
    packages = installed(tmp_path, *FINDINGS, code)
    path = os.pathsep.join([str(packages), str(Path(__file__).parents[1])])
    environ = os.environ | {"PYTHONPATH": path, "DDTOP_STATE": str(tmp_path / "state")}
    command = [sys.executable, "-m", "ddtop", "explain", "straggler"]

    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loads\n"
        process.send_signal(signal.SIGINT)
        ended = process.wait(timeout=20)

    assert ended == -signal.SIGINT


def test_a_rule_that_ends_python_is_left_out(tmp_path: Path) -> None:
    ends = FINDING.replace("    snapshot = context.snapshot", "    raise SystemExit(7)")

    job = python(installed(tmp_path, *FINDINGS, ends), "-c", SMALL_JOB)

    assert job.stdout.startswith("info too-small the plugin small is left out"), job.stderr
    assert "SystemExit: 7" in job.stdout


def test_a_plugin_with_a_kind_of_ours_is_left_out(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING.replace('"too-small"', '"straggler"'))

    page = python(packages, "-m", "ddtop", "explain", "straggler")

    assert "is left out: ValueError: it needs one page for each of its kinds" in page.stderr
    assert "Four ranks" not in page.stdout


def test_a_rule_that_raises_is_left_out_and_an_info_says_so(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING.replace("world_size >= 4", "no_such_field"))

    job = python(packages, "-c", SMALL_JOB)

    assert job.stdout.startswith("info too-small the plugin small is left out, because"), job.stderr
    assert "has no attribute 'no_such_field'" in job.stdout


def test_a_rule_that_reports_another_kind_is_left_out(tmp_path: Path) -> None:
    wrong = FINDING.replace("Finding(KIND,", "Finding(Kind.STRAGGLER,")

    job = python(installed(tmp_path, *FINDINGS, wrong), "-c", SMALL_JOB)

    assert job.stdout.startswith("info too-small the plugin small is left out"), job.stderr


ASKED = """
from ddtop import launch, plugins
print(launch.numbers({"SITE_RANK": "2", "SITE_SIZE": "3"}), plugins.left_out)
"""
LAUNCHERS = ("ddtop.launchers", "site", "ddtop_site:Site")


def test_the_ranks_of_a_launcher_of_a_plugin_are_known(tmp_path: Path) -> None:
    asked = python(installed(tmp_path, *LAUNCHERS, LAUNCHER), "-c", ASKED)

    assert asked.stdout == "(2, 3, None) {}\n", asked.stderr


def test_a_launcher_that_raises_is_left_out(tmp_path: Path) -> None:
    code = LAUNCHER + "    def restarts(self, environ):\n        return environ['NO_SUCH']\n"

    asked = python(installed(tmp_path, *LAUNCHERS, code), "-c", ASKED)

    assert asked.stdout.startswith("(None, None, None) {'site (ddtop_site:Site)'")
    assert "KeyError: 'NO_SUCH'" in asked.stdout


IMPORTS_IT = """
import sys
from ddtop.agent import import_hooks
import_hooks.install()
print("ddtop_mine" in sys.modules)
import mine.trainer
print(mine.trainer.wrapped)
"""


def test_the_framework_of_a_plugin_is_wrapped_when_it_is_imported(tmp_path: Path) -> None:
    packages = installed(tmp_path, "ddtop.frameworks", "mine.trainer", "ddtop_mine", FRAMEWORK)
    (packages / "mine").mkdir()
    (packages / "mine" / "trainer.py").touch()

    imported = python(packages, "-c", IMPORTS_IT)

    assert imported.stdout == "False\nby the plugin\n", imported.stderr


def test_a_broken_file_of_a_package_is_named(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING)
    (packages / "ddtop_small-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[")

    page = python(packages, "-m", "ddtop", "explain", "straggler")

    assert page.returncode == 0
    assert "plugin ddtop_small-1.0.dist-info is left out: UnicodeDecodeError" in page.stderr


def test_a_pipe_and_a_long_file_are_not_read(tmp_path: Path) -> None:
    """Either would stop every Python of a DDTOP=1 shell."""
    packages = installed(tmp_path, *FINDINGS, FINDING)
    for name in ("ddtop_pipe", "ddtop_long"):
        (packages / f"{name}-1.0.dist-info").mkdir()
    os.mkfifo(packages / "ddtop_pipe-1.0.dist-info" / "entry_points.txt")
    lines = "".join(f"n{number} = ddtop_long:N\n" for number in range(20_000))
    (packages / "ddtop_long-1.0.dist-info" / "entry_points.txt").write_text(
        f"[ddtop.launchers]\n{lines}"
    )

    asked = python(
        packages, "-c", "from ddtop import plugins as p; p.installed(); print(p.left_out)"
    )
    job = python(packages, "-c", SMALL_JOB)

    for name in ("ddtop_pipe", "ddtop_long"):
        assert f"'{name}-1.0.dist-info': 'ValueError: entry_points.txt is not a" in asked.stdout
    assert job.stdout.startswith("warning too-small"), job.stderr


def test_comments_and_spaces_of_the_file_are_read_as_python_reads_them(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING)
    listed = packages / "ddtop_small-1.0.dist-info" / "entry_points.txt"
    listed.write_text(
        "[console_scripts]\na = b:c\n\n# of ours\n[ddtop.findings]\n small=ddtop_small:SMALL\n"
    )
    program = """
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from ddtop import plugins
theirs = PathDistribution(Path(sys.argv[1])).entry_points
print(plugins.installed() == tuple(one for one in theirs if one.group == plugins.FINDINGS))
"""
    asked = python(packages, "-c", program, str(listed.parent))

    assert asked.stdout == "True\n", asked.stderr


def test_without_a_plugin_no_metadata_is_read(tmp_path: Path) -> None:
    """It takes longer than the rest of a start."""
    (tmp_path / "site-packages").mkdir()
    program = "import sys, ddtop.agent.sources; print('importlib.metadata' in sys.modules)"

    asked = python(tmp_path / "site-packages", "-c", program)

    assert asked.stdout == "False\n", asked.stderr


def test_doctor_lists_the_plugins(tmp_path: Path) -> None:
    packages = installed(tmp_path, *FINDINGS, FINDING)
    program = "from ddtop.cli.commands import doctor; print(doctor._plugins())"

    asked = python(packages, "-c", program)

    assert asked.stdout == "('ok', 'plugins', 'small (ddtop.findings)')\n", asked.stderr
