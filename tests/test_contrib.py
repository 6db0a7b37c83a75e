"""The files of contrib/ agree with the project, and the programs that they are for can read
them.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ddtop.cli.other_python import OF_THE_AGENT, OF_THE_COMMANDS
from ddtop.metrics import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
CONTRIB = ROOT / "contrib"


def requirements():
    """{package: oldest release} of what is installed on each Python."""
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]$", text, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r'"([\w-]+)>=([\d.]+)"', listed))


def test_the_agent_needs_three_of_the_dependencies_in_the_same_versions():
    assert dict(one.split(">=") for one in OF_THE_AGENT).items() <= requirements().items()
    assert set(OF_THE_COMMANDS) < requirements().keys()


def test_every_file_is_in_the_table():
    table = (CONTRIB / "README.md").read_text()
    files = {str(path.relative_to(CONTRIB)) for path in CONTRIB.rglob("*") if path.is_file()}

    assert files - {"README.md"} == set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE))


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = yaml.safe_load((CONTRIB / "conda/recipe.yaml").read_text())
    asked = dict(line.split(" >=") for line in recipe["requirements"]["run"] if " >=" in line)

    assert asked.pop("python") == "3.10"
    assert asked == requirements()


def test_the_image_installs_the_agent_alone():
    lines = (CONTRIB / "docker/Dockerfile").read_text().splitlines()
    orders = [line for line in lines if line and not line.startswith("#")]

    assert [order.split()[0] for order in orders] == ["ARG", "FROM", "RUN", "ENV"]
    words = shlex.split(orders[2])
    assert words[words.index("--no-deps") :] == ["--no-deps", "ddtop", *OF_THE_AGENT]


@pytest.mark.parametrize(
    ("given", "said"), [({}, "export DDTOP=1\n"), ({"DDTOP": "0"}, ""), ({"DDTOP": "1"}, "")]
)
def test_the_task_prolog_leaves_what_a_job_has_chosen(given, said):
    done = subprocess.run(
        [CONTRIB / "slurm/taskprolog.sh"], env=given, capture_output=True, text=True, check=True
    )

    assert done.stdout == said


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize(
    ("name", "of"), [("ddtop-exporter@", "--system"), ("ddtop-watch@", "--user")]
)
def test_a_unit_is_one_of_systemds(name, of, tmp_path):
    """The script also checks that the command exists, so this one names another."""
    command = tmp_path / "ddtop"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    text = (CONTRIB / f"systemd/{name}.service").read_text()
    unit = tmp_path / f"{name}.service"
    unit.write_text(re.sub(r"(?<=^ExecStart=)\S+/ddtop", str(command), text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", of, unit],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def dashboard():
    """The Grafana dashboard, and the queries of its panels."""
    found = json.loads((CONTRIB / "grafana/ddtop.json").read_text())
    return found, [target["expr"] for panel in found["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_for_series_that_there_are_with_labels_that_they_have():
    labels_of = {family.name: {"job", *family.labels} for family in FAMILIES}
    _, asked = dashboard()
    for expression in asked:
        ((name, labels),) = re.findall(r"(ddtop_\w+)\{([^}]*)\}", expression)
        names = re.findall(r"(\w+)=", labels) + re.findall(r" by \((\w+)\)", expression)

        assert set(names) <= labels_of[name], expression


def test_the_panels_of_the_dashboard_lie_beside_each_other_and_ask_a_source_that_it_has():
    found, _ = dashboard()
    variables = {one["name"] for one in found["templating"]["list"]}
    taken = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }

        assert place["x"] + place["w"] <= 24
        assert taken.isdisjoint(cells), panel["title"]
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(panel))) <= variables | {"__rate_interval"}
        taken |= cells
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_can_read_what_the_dashboard_asks(tmp_path):
    _, asked = dashboard()
    rules = [
        {"record": f"panel_{number}", "expr": expression.replace("$job", ".*")}
        for number, expression in enumerate(asked)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout
