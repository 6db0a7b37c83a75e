"""What contrib/ ships agrees with the project, and is at least readable by what it is for."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CONTRIB = ROOT / "contrib"


def requirements():
    """{package: oldest release} of the light installation."""
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[(.*)\]$", text, re.MULTILINE)
    return dict(re.findall(r'"([\w-]+)>=([\d.]+)"', listed))


def test_every_file_is_in_the_table():
    table = (CONTRIB / "README.md").read_text()
    files = {str(path.relative_to(CONTRIB)) for path in CONTRIB.rglob("*") if path.is_file()}

    assert files - {"README.md"} == set(re.findall(r"^\| `([^`]+)`", table, re.MULTILINE))


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = yaml.safe_load((CONTRIB / "conda/recipe.yaml").read_text())
    asked = dict(line.split(" >=") for line in recipe["requirements"]["run"] if " >=" in line)

    assert asked.pop("python") == "3.10"
    assert asked == requirements()


def test_the_spack_package_asks_for_what_the_package_asks_for():
    tree = ast.parse((CONTRIB / "spack/package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = [call for call in calls if getattr(call.func, "id", "") == "depends_on"]
    always = {call.args[0].value for call in asked if len(call.keywords) == 1}
    ours = {f"py-{name}@{oldest}:" for name, oldest in requirements().items()}

    assert always == ours | {"python@3.10:", "py-hatchling", "py-hatch-vcs"}


def test_the_image_installs_the_agent_alone():
    lines = (CONTRIB / "docker/Dockerfile").read_text().splitlines()
    orders = [line for line in lines if line and not line.startswith("#")]

    assert [order.split()[0] for order in orders] == ["ARG", "FROM", "RUN", "ENV"]
    assert orders[2].endswith("pip install --no-cache-dir ddtop")


@pytest.mark.parametrize(
    ("given", "said"), [({}, "export DDTOP=1\n"), ({"DDTOP": "0"}, ""), ({"DDTOP": "1"}, "")]
)
def test_the_task_prolog_leaves_what_a_job_has_chosen(given, said):
    done = subprocess.run(
        [CONTRIB / "slurm/taskprolog.sh"], env=given, capture_output=True, text=True, check=True
    )

    assert done.stdout == said
