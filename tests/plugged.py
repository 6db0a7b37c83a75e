"""Packages that add something to ddtop, as pip lays them out in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FINDING = '''
from ddtop.diagnosis.added import Added
from ddtop.diagnosis.page import Explanation
from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Is, Kind
from ddtop.diagnosis.table import RuleRow

KIND = Kind.of_plugin("too-small", Is.BESIDE)


def too_small(context: Context) -> list[Finding]:
    """A job with fewer than four ranks."""
    snapshot = context.snapshot
    if snapshot.world_size >= 4:
        return []
    text = f"the job has {snapshot.world_size} ranks, fewer than four"
    return [Finding(KIND, WARNING, (0,), (), snapshot.time_unix_ns, text)]


PAGE = Explanation(
    KIND, "never", "a small job", "Four ranks share a card.", ("the world size",), ("add ranks",)
)
SMALL = Added(RuleRow(too_small, (KIND,), "the world size"), (PAGE,))
'''
LAUNCHER = """
from ddtop.launch.launcher import Launcher


class Site(Launcher):
    name = "site"
    ranks = ("SITE_RANK",)
    world_sizes = ("SITE_SIZE",)
    prefixes = ("SITE_",)
    sent = r"SITE_\\w+"
"""
FRAMEWORK = """
def wrap(module):
    module.wrapped = "by the plugin"
"""


def installed(folder: Path, group: str, name: str, value: str, code: str) -> Path:
    """A package with one plugin. Returns the folder that goes on the path."""
    packages = folder / "site-packages"
    package = value.partition(":")[0]
    metadata = packages / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (packages / f"{package}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    return packages


def python(packages: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a Python with these packages prints."""
    path = os.pathsep.join([str(packages), str(Path(__file__).parents[1])])
    environ = {name: value for name, value in os.environ.items() if name != "DDTOP"}
    environ |= {"PYTHONPATH": path, "DDTOP_STATE": str(packages.parent / "state")} | variables
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
