"""The guides of docs/extend, walked in a copy of the package: a change takes so many files, and
the page names each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


class Copy:
    """A copy of the package, in which a change is made as its guide says."""

    def __init__(self, folder: Path, page: str) -> None:
        self._folder = folder
        self._page = (ROOT / "docs" / "extend" / page).read_text()
        self.changed: set[str] = set()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "ddtop", folder / "ddtop", ignore=ignored)

    def inserts(self, file: str, before: str, text: str) -> None:
        """Add text to a file that the page names, before text that is in it once."""
        path = self._named(file)
        old = path.read_text()
        assert old.count(before) == 1, (file, before, old.count(before))
        path.write_text(old.replace(before, text + before))

    def adds(self, file: str, text: str) -> None:
        """A new file, in a folder that the page names."""
        self._named(file).write_text(text)

    def _named(self, file: str) -> Path:
        assert file in self._page or str(Path(file).parent) in self._page, file
        self.changed.add(file)
        return self._folder / file

    def proves(self, program: str) -> str:
        """What a program prints that uses the copy."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self._folder,
            env=os.environ | {"PYTHONPATH": f"{self._folder}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path, request):
    return Copy(tmp_path, request.param)


@pytest.mark.parametrize("copy", ["column.md"], indirect=True)
def test_a_column_takes_two_files_and_is_sorted_filtered_and_mapped(copy):
    copy.inserts(
        "ddtop/metrics.py",
        '    Metric(\n        "rank",',
        '    Metric("wakes_per_s", "/s", "how often it woke up", "/proc", "pidstat -w"),\n',
    )
    copy.inserts(
        "ddtop/present/numbers.py",
        '    Number(\n        "heat",',
        '    Number("wakes", "WAKES", 5, True, value=lambda rank, _: rank.process.wakes_per_s,'
        ' metric="wakes_per_s", form=lambda value: f"{value:.0f}", room=18, per=1,'
        ' scale=Scale("wakes", str)),\n',
    )

    said = copy.proves(COLUMN)
    assert len(copy.changed) <= 4
    assert "WAKES" in said
    assert "sorted [7, 6]" in said
    assert "passing [5, 6, 7]" in said
    assert "map ['step', 'comm', 'cpu', 'rss', 'wakes']" in said


COLUMN = """
from dataclasses import replace
import msgspec
from ddtop.diagnosis.finding import Verdict
from ddtop.present.filter import by_column, parse_filter
from ddtop.present.map import metrics_of
from ddtop.present.plain import status_text
from tests.ui import builders

def woken(rank):
    process = msgspec.structs.replace(rank.process, wakes_per_s=9.0 * rank.rank)
    return msgspec.structs.replace(rank, process=process)

snapshot = builders.healthy()
snapshot = replace(snapshot, ranks=tuple(map(woken, snapshot.ranks)))
wanted = parse_filter("wakes>40")
print(status_text(snapshot, Verdict("ok", (), ""), 300))
print("sorted", by_column(snapshot, "wakes", descending=True)[:2])
print("passing", [rank.rank for rank in snapshot.ranks if wanted.passes(rank)])
print("map", [number.key for number in metrics_of(snapshot)])
"""


@pytest.mark.parametrize("copy", ["launcher.md"], indirect=True)
def test_a_launcher_takes_two_files_and_its_tasks_are_ranks(copy):
    copy.inserts(
        "ddtop/launch/launchers.py",
        "class Hydra(Launcher):",
        """class Flux(Launcher):
    \"\"\"flux run.\"\"\"

    name = "flux"
    ranks = ("FLUX_TASK_RANK",)
    world_sizes = ("FLUX_JOB_SIZE",)
    new_for_each_rank = own_to_rank = ("FLUX_TASK_RANK",)
    job_mark = "FLUX_JOB_ID"
    prefixes = ("FLUX_",)
    helpers = ("flux-shell",)


""",
    )
    table = "ddtop/launch/__init__.py"
    copy.inserts(table, "            Hydra,\n", "            Flux,\n")
    copy.inserts(table, "            Slurm(),\n", "            Flux(),\n")
    copy.inserts(table, '"PMI_RANK", ', '"FLUX_TASK_RANK", ')

    said = copy.proves(
        """
from ddtop import launch
flux = {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "8", "FLUX_JOB_ID": "f1"}
print(launch.numbers(flux), launch.begins_a_job(["/usr/libexec/flux/flux-shell"]))
print(launch.numbers(flux | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}))
"""
    )
    assert len(copy.changed) <= 2
    assert said.split("\n")[:2] == ["(3, 8, None) True", "(1, 2, 1)"]


@pytest.mark.parametrize("copy", ["probe.md"], indirect=True)
def test_a_framework_takes_two_files_and_its_step_is_read(copy):
    copy.adds(
        "ddtop/agent/frameworks/fastfit.py",
        """\"\"\"fastfit.\"\"\"

from ddtop.agent.frameworks.wrapping import while_running
from ddtop.agent.notes import TRAINER, ObjectSource, Reading


def wrap(module):
    while_running(module.Fit, "run", FitSource().note, "progress of fastfit")


class FitSource(ObjectSource):
    name = "fastfit"
    level = TRAINER

    def read_from(self, own):
        return Reading(step=own.step, total_steps=own.steps)
""",
    )
    copy.inserts(
        "ddtop/agent/sources.py",
        '    ProbeRow("ignite",',
        '    ProbeRow("fastfit", "frameworks.fastfit", after="fastfit"),\n',
    )

    said = copy.proves(
        """
from types import SimpleNamespace
from ddtop.agent.notes import progress_notes
from ddtop.agent.sources import SOURCES

class Fit:
    step, steps = 7, 9
    def run(self):
        return progress_notes.sources["fastfit"].read()

(row,) = [row for row in SOURCES if row.after == "fastfit"]
row.load(row.wrap)(SimpleNamespace(Fit=Fit))
reading = Fit().run()
print(reading.step, reading.total_steps)
"""
    )
    assert len(copy.changed) <= 2
    assert said == "7 9\n"


@pytest.mark.parametrize("copy", ["finding.md"], indirect=True)
def test_a_finding_takes_four_files_and_its_limit_none_of_its_own(copy):
    copy.inserts(
        "ddtop/diagnosis/kinds.py",
        '    INPUT_BOUND = "input-bound"',
        '    TOO_BIG = "too-big", Is.BESIDE | Is.MOVES\n',
    )
    copy.adds(
        "ddtop/diagnosis/rules/too_big.py",
        """\"\"\"A rank uses more memory than it should.\"\"\"

from dataclasses import dataclass

from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.policy import Limits


@dataclass(frozen=True)
class TooBig(Limits, of=Kind.TOO_BIG):
    \"\"\"`too-big`.\"\"\"

    rss_bytes: int = 1 << 40
    \"\"\"Nobody has so much.\"\"\"


def rule(context: Context) -> list[Finding]:
    most, snapshot = context.policy.of(TooBig).rss_bytes, context.snapshot
    ranks = tuple(r.rank for r in snapshot.ranks if (r.process.rss_bytes or 0) > most)
    since, text = snapshot.time_unix_ns, f"{len(ranks)} ranks are too big"
    finding = Finding(Kind.TOO_BIG, WARNING, ranks, (), since, text, (), "buy memory")
    return [finding] if ranks else []
""",
    )
    table = "ddtop/diagnosis/table.py"
    copy.inserts(table, "    versions,\n", "    too_big,\n")
    copy.inserts(
        table,
        "    RuleRow(\n        versions.version_skew,",
        '    RuleRow(too_big.rule, (Kind.TOO_BIG,), "memory"),\n',
    )
    copy.inserts(
        "ddtop/diagnosis/explain/stalls.py",
        "    Explanation(\n        kind=Kind.INPUT_BOUND,",
        """    Explanation(
        kind=Kind.TOO_BIG,
        severity="warning",
        brief="a rank is too big",
        meaning="It uses more than {too-big.rss_bytes}.",
        found=("the memory of its process",),
        steps=("buy memory",),
    ),
""",
    )

    said = copy.proves(FINDING)
    assert len(copy.changed) <= 4
    assert said.split("\n")[:3] == ["[]", "[('warning', 'too-big', (0, 1))]", "the limit is known"]
    assert "It uses more than 1024 GiB." in said
    assert "too-big" in said.split("kinds:")[1]


FINDING = """
import subprocess, sys
from ddtop.diagnosis.explain import explain
from ddtop.diagnosis.limits import BLOCKS
from ddtop.diagnosis.rules.too_big import TooBig
from ddtop.policy import POLICY
from tests.jobs import FakeJob

def job(policy):
    made = FakeJob(2)
    made.policy = policy
    made.trains(10)
    return [(severity, str(kind), ranks) for severity, kind, ranks in made.kinds()]

print(job(POLICY))
print(job(POLICY.with_limits({"too-big.rss_bytes": 1})))
print("the limit is known" if BLOCKS["too-big"] is TooBig else BLOCKS)
print(explain("too-big", POLICY).meaning)
listed = subprocess.run([sys.executable, "-m", "ddtop", "explain"], stdout=subprocess.PIPE)
print("kinds:", listed.stdout.decode())
"""
