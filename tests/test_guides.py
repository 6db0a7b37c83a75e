"""The guides of docs/extend, walked in a copy of the package and of the pages of findings: a change
takes so many files, and the guide names each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import new

ROOT = Path(__file__).parent.parent


class Copy:
    """A copy of the package and the pages of findings, in which a guide is followed."""

    def __init__(self, folder: Path, page: str) -> None:
        self._folder = folder
        self._page = (ROOT / "docs" / "extend" / page).read_text()
        self.changed: set[str] = set()
        ignored = shutil.ignore_patterns("__pycache__")
        for part in ("ddtop", "tests/findings"):
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)

    def inserts(self, file: str, before: str, text: str) -> None:
        """Add text to a file that the page names, before text that is in it once."""
        path = self._named(file)
        old = path.read_text()
        assert old.count(before) == 1, (file, before, old.count(before))
        path.write_text(old.replace(before, text + before))

    def adds(self, file: str, text: str) -> None:
        """A new file, in a folder that the page names."""
        self._named(file).write_text(text)

    def begins(self, what: str, name: str) -> None:
        """What `python -m tools.new` writes."""
        for file in new.write(what, name, self._folder)[0]:
            self._named(file)

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
    assert len(copy.changed) <= 2
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
from ddtop.agent.notes import TRAINER, ObjectSource, SourceValues


def wrap(module):
    while_running(module.Fit, "run", FitSource().note, "progress of fastfit")


class FitSource(ObjectSource):
    name = "fastfit"
    level = TRAINER

    def read_from(self, own):
        return SourceValues(step=own.step, total_steps=own.steps)
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


@pytest.mark.parametrize("copy", ["probe.md"], indirect=True)
def test_a_number_of_the_agent_takes_five_files_up_to_the_rules(copy):
    copy.adds(
        "ddtop/agent/probes/saves.py",
        """\"\"\"The queue of the checkpoint writer, as the library counts it.\"\"\"

import sys
from functools import partial

from ddtop.agent.probe import Probe
from ddtop.wire.records import RankState


class SavesProbe(Probe):
    name = "saves"

    def fields(self, tick):
        pending = getattr(sys.modules.get("fastsave"), "pending", None)
        return partial(RankState, saves_pending=pending)


def probe(rank):
    return SavesProbe()
""",
    )
    copy.inserts(
        "ddtop/agent/sources.py",
        '    ProbeRow("cuda",',
        '    ProbeRow("saves", "probes.saves", probe="probe"),\n',
    )
    field = "    saves_pending: int | None = None\n"
    copy.inserts("ddtop/wire/records.py", "\n\nclass Arrivals(Record,", field)
    copy.inserts("ddtop/model/facts.py", "\n\nclass Began(msgspec.Struct,", field)
    copy.inserts(
        "ddtop/model/rank_facts.py",
        "        went_on=went_on,\n",
        "        saves_pending=state.saves_pending,\n",
    )

    said = copy.proves(
        """
import sys
from types import SimpleNamespace
from ddtop.agent.sources import SOURCES
from tests.jobs import trained

sys.modules["fastsave"] = SimpleNamespace(pending=3)
(row,) = [row for row in SOURCES if row.name == "saves"]
job = trained(2)
job.ranks[0].says = row.load(row.probe)(None).fields(None).keywords
print([rank.reported.saves_pending for rank in job.passes(2).snapshot().ranks])
"""
    )
    assert len(copy.changed) <= 5
    assert said == "[3, None]\n"


@pytest.mark.parametrize("copy", ["finding.md"], indirect=True)
def test_a_finding_takes_five_files_with_its_limit_and_its_scenarios(copy):
    copy.begins("finding", "too-big")

    said = copy.proves(FINDING)
    assert len(copy.changed) <= 5
    assert said.split("\n")[:2] == ["the limit is known", "listed and on the site"]
    assert "▲ warning: too-big, for 2 s\n  rank 1 wakes up too often\n" in said
    assert said.count("```text") == 1


FINDING = """
import subprocess, sys
from pathlib import Path
from ddtop.policy import BLOCKS
from docs.generate import PAGES
from tests.findings import anew

print("the limit is known" if "too-big" in BLOCKS else BLOCKS)
listed = subprocess.run([sys.executable, "-m", "ddtop", "explain"], stdout=subprocess.PIPE)
page = PAGES["reference/findings/too-big.md"]()
found = b"too-big" in listed.stdout and "more than 1000 a second" in page
print("listed and on the site" if found else page)
print(anew(Path("tests/findings/too-big.md")))
"""


@pytest.mark.parametrize("copy", ["finding.md"], indirect=True)
def test_a_special_case_of_patience_takes_its_row_and_its_scenario_and_its_limit_no_file(copy):
    table = "ddtop/diagnosis/patience.py"
    copy.inserts(
        table,
        "    last_report_s: float = 2.0\n",
        '    licence_s: float = 120.0\n    """A licence server answers within two minutes."""\n',
    )
    copy.inserts(
        table,
        '    Row(\n        "of its phase",',
        """    Row(
        "it waits for a licence server",
        lambda case: getattr(case.rank.reported.place, "function", "") == "checkout_licence",
        lambda case: case.limits.licence_s,
    ),
""",
    )
    page = "tests/findings/not-in-collective.md"
    copy.inserts(page, "## All have come to the new group", LICENCE)

    said = copy.proves(
        f"""
from pathlib import Path
from docs.generate import PAGES
from tests.findings import played, scenarios

page = Path("{page}")
print(*(played(page, text) for _, text in scenarios(page) if "checkout_licence" in text))
print([line for line in PAGES["reference/limits.md"]().split("\\n") if "licence_s" in line])
"""
    )
    assert len(copy.changed) <= 2
    warned, blamed = said.split("```text\n")[1:3]
    assert warned.startswith("▲ warning: not-in-collective, for 20 s")
    assert "· critical in 100 s, because it waits for a licence server" in warned
    assert "✖ critical: not-in-collective, for 20 s" in blamed
    assert "| `licence_s` | 120 | A licence server answers within two minutes. |" in said


LICENCE = """## A rank waits for a licence server

```python
job = trained()
job.ranks[1].stands_at("checkout_licence")
job.others_wait(1)
job.passes(20)
```

Another limit:

```python
job.policy = POLICY.with_limits({"not-in-collective.licence_s": 10.0})
```

"""


@pytest.mark.parametrize("copy", ["command.md"], indirect=True)
def test_a_command_takes_its_file_and_its_line_in_the_list(copy):
    copy.adds(
        "ddtop/cli/commands/hosts.py",
        """\"\"\"`ddtop hosts`: the hosts of the live jobs.\"\"\"

import sys

import click

from ddtop.cli.errors import DdtopCommand, Trait


@click.command("hosts", cls=DdtopCommand, exits="0; 1 no host", traits=Trait.ON_LINUX)
def command() -> None:
    \"\"\"The hosts of the live jobs.\"\"\"
    click.echo("no host")
    sys.exit(1)
""",
    )
    copy.inserts(
        "ddtop/cli/__init__.py",
        '        "gpus": "Free',
        '        "hosts": "The hosts of the live jobs.",\n',
    )

    said = copy.proves(
        """
import subprocess, sys
from docs.generate import PAGES, man

def ddtop(word, before="pass"):
    called = f"sys.argv = ['ddtop', '{word}']; from ddtop.__main__ import main; main()"
    program = f"import sys; {before}; {called}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr

print([line for line in ddtop("--help")[1].split("\\n") if "  hosts " in line])
print(ddtop("hosts"), ddtop("hosts", "sys.platform = 'darwin'")[0])
print([line for line in PAGES["reference/commands.md"]().split("\\n") if "(#ddtop-hosts)" in line])
print("Exit code: 0; 1 no host." in man.page())
"""
    )
    assert len(copy.changed) <= 2
    assert said.split("\n") == [
        "['  hosts     The hosts of the live jobs.']",
        "(1, 'no host\\n', '') 3",
        "['| [`ddtop hosts`](#ddtop-hosts) | The hosts of the live jobs. | 0; 1 no host |']",
        "True",
        "",
    ]
