"""What a release is made of agrees: version, wheel, lock file, list of parts, workflows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK: dict[str, Any] = tomllib.loads((ROOT / "pylock.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())


def name_of(requirement: str) -> str:
    """The name of a package as an index writes it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_one_version_is_in_all_files():
    (version,) = [PROJECT["tool"]["hatch"]["version"]["fallback-version"]]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    recipe = yaml.safe_load((ROOT / "contrib" / "conda" / "recipe.yaml").read_text())
    package = (ROOT / "ddtop" / "__init__.py").read_text()

    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert (cited, recipe["context"]["version"]) == (version, version)
    assert f'__version__ = "{version}"' in package


def test_the_list_of_parts_has_every_requirement():
    parts = json.loads((ROOT / "contrib" / "sbom" / "ddtop.cdx.json").read_text())
    required = [name_of(one) for one in PROJECT["project"]["dependencies"]]

    assert [part["name"] for part in parts["components"]] == required
    assert parts["dependencies"][0]["dependsOn"] == [part["purl"] for part in parts["components"]]


def test_the_lock_file_has_the_versions_of_the_constraints_with_digests_and_no_torch():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(
        line.partition(" ;")[0].split("==", 1) for line in lines if "==" in line and line[0] != "#"
    )
    pinned = {name_of(name): version for name, version in pinned.items()}
    # Only on systems that constraints.txt does not know, or before Python 3.11.
    others = {one["name"] for one in LOCK["packages"] if "marker" in one} - pinned.keys()
    locked = {one["name"]: one["version"] for one in LOCK["packages"] if one["name"] not in others}

    assert {name: pinned.get(name) for name in locked} == locked
    assert {name_of(one) for one in PROJECT["project"]["dependencies"]} <= locked.keys() | {"tomli"}
    assert not {"torch", "mpi4py"} & locked.keys()
    for package in LOCK["packages"]:
        for file in [*package["wheels"], *([package["sdist"]] if "sdist" in package else [])]:
            assert file["hashes"]["sha256"]
            assert file["url"].startswith("https://files.pythonhosted.org/")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_only_actions_of_one_commit_and_has_no_right_but_those_it_names(path: Path):
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]

    assert workflow["permissions"] == {}
    assert all(job["permissions"] for job in workflow["jobs"].values())
    for step in steps:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", f"a@{'0' * 40}"))


@pytest.mark.parametrize("name", ["wrong-verdict", "broken"])
def test_who_opens_an_issue_is_asked_for_a_report(name: str):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())

    assert any("ddtop report" in one["attributes"]["description"] for one in form["body"])


def kind_of_entry(name: str) -> str | None:
    """The kind of an entry of the change log by the name of its file; None if nothing would join
    it."""
    found = re.fullmatch(r"(?:\d+|\+[a-z0-9-]+)\.([a-z]+)\.md", name)
    known = found is not None and found[1] in PROJECT["tool"]["towncrier"]["fragment"]
    return found[1] if found is not None and known else None


def test_every_entry_of_the_change_log_is_joined_at_a_release():
    """towncrier leaves out what it does not know."""
    entries = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]

    assert [path.name for path in entries if kind_of_entry(path.name) is None] == []
    assert [path.name for path in entries if not path.read_text().strip()] == []


@pytest.mark.parametrize("name", ["12.md", "12.Fixed.md", "a-word.fixed.md", "12.new.md"])
def test_a_name_that_no_release_joins_is_found(name: str):
    assert kind_of_entry(name) is None
    assert kind_of_entry("12.fixed.md") == kind_of_entry("+a-word.fixed.md") == "fixed"
