"""Which versions are tried, and what runs with each of them."""

from __future__ import annotations

from dataclasses import dataclass

CASES = (
    "ingest",
    "metrics-first",
    "runs-dry",
    "raises",
    "struck",
    "starves",
    "crossed",
    "ends-well",
)
"""Seven faults of seven kinds and a healthy job, of `zoo`."""
AGENT = ("tests/agent", "tests/cli/test_doctor.py", "tests/end_to_end/test_groups_made_anew.py")
SCREENS = ("tests/ui", "tests/cli/test_commands.py", "tests/cli/test_simulate.py")
LINKS = ("tests/link", "tests/relay", "tests/cli/test_bridge.py")
RECORDS = ("tests/wire", "tests/model", "tests/follow", "tests/test_journal.py")
OF_TORCH = {
    "torch",
    "numpy",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
    "filelock",
    "typing_extensions",
}
"""What torch asks for, in versions of its own."""


@dataclass(frozen=True)
class Cell:
    """One environment. `wants`: what pip installs beside ddtop; `free`: names whose pin in
    constraints.txt does not hold here; `without`: tests that pytest leaves out (`-k`);
    `environment`: set for the jobs and for `ddtop doctor`.
    """

    name: str
    wants: tuple[str, ...]
    tests: tuple[str, ...]
    free: frozenset[str] = frozenset()
    cases: tuple[str, ...] = ()
    without: str = ""
    environment: tuple[tuple[str, str], ...] = ()


RECORD = (("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"),)
"""Turns torch's flight recorder on, which is off by default before torch 2.11."""


def _torch(name: str, wanted: str, *environment: tuple[str, str]) -> Cell:
    wants = (wanted, "numpy", "mpi4py", "openmpi")
    return Cell(name, wants, AGENT, frozenset(OF_TORCH), CASES, environment=environment)


def _library(name: str, wanted: str, tests: tuple[str, ...], *free: str, without: str = "") -> Cell:
    package = wanted.partition("=")[0]
    return Cell(name, (wanted,), tests, frozenset({package, *free}), without=without)


_NOT_PICTURES = "not pictures"
"""A picture of the screen may differ between two releases of Textual, a test of what it says may
not."""
CELLS = (
    _torch("torch-2.4", "torch==2.4.*", *RECORD),
    _torch("torch-2.6", "torch==2.6.*", *RECORD),
    _torch("torch-2.8", "torch==2.8.*", *RECORD),
    _torch("torch-2.11", "torch==2.11.*"),
    _torch("torch-2.13", "torch==2.13.*"),
    _torch("torch-newest", "torch"),
    _library("textual-oldest", "textual==7.0.0", SCREENS, "rich", without=_NOT_PICTURES),
    _library("textual-newest", "textual", SCREENS, "rich", without=_NOT_PICTURES),
    _library("pyzmq-oldest", "pyzmq==26.0.0", LINKS),
    _library("msgspec-oldest", "msgspec==0.18.0", RECORDS),
)
"""The oldest of each library is what `pyproject.toml` allows; a test compares the two."""
