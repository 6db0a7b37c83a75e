"""Rules for every launcher of the table, also for a new one."""

import json
import re
import subprocess
import sys

import pytest

from ddtop.launch import MARKS, every_launcher
from ddtop.launch.launcher import Launcher
from tests.launch import environments

EACH = pytest.mark.parametrize("launcher", every_launcher(), ids=lambda one: one.name)
NAMES = {name for found in vars(environments).values() if isinstance(found, dict) for name in found}


def test_no_two_launchers_have_one_name():
    assert len({one.name for one in every_launcher()}) == len(every_launcher())
    assert all(one.name for one in every_launcher())


@EACH
def test_what_a_launcher_reads_of_a_rank_leaves_the_rank(launcher):
    """The relay and the viewer use the same variables as the rank, but see only those that were
    sent.
    """
    read = (*launcher.local_sizes, *launcher.nodes_of_job, *filter(None, [launcher.job_mark]))
    sent = re.compile("|".join(f"({one.sent})" for one in every_launcher() if one.sent))

    assert [name for name in read if not sent.fullmatch(name)] == []


@EACH
def test_variables_that_make_a_rank_can_be_taken_away(launcher):
    """`ddtop demo` inside a job starts a job of its own."""
    assert [name for name in launcher.ranks if not name.startswith(launcher.prefixes)] == []


@EACH
def test_a_launcher_says_nothing_in_an_empty_environment(launcher):
    nothing = {}

    assert launcher.numbers(nothing) is None
    assert launcher.local_and_world_size(nothing) is None
    assert launcher.job_id(nothing) is None
    assert launcher.start(nothing, list, None) is None
    assert launcher.start_across_nodes(nothing) is None
    assert launcher.first_host(nothing) == ""
    assert launcher.started_from(nothing) == ()


@EACH
def test_no_value_is_too_strange_for_a_launcher(launcher):
    """Any program may export any variable."""
    for value in ("", "\0", "-1", "9" * 30, "é,[", "[" * 9, "tcp://", ":", "@", "a-@1"):
        environ = dict.fromkeys(NAMES, value)
        launcher.numbers(environ)
        launcher.local_and_world_size(environ)
        launcher.restarts(environ)
        launcher.chosen_name(environ)
        launcher.start(environ, list, None)
        launcher.start_across_nodes(environ)
        launcher.nodes_of_world(environ, 8)
        launcher.nodes_of_rank(environ, 0)
        assert isinstance(launcher.first_host(environ), str)
        assert isinstance(launcher.started_from(environ), tuple)


def test_an_attribute_that_the_protocol_does_not_know_is_a_mistake():
    """A misspelt `local_rank` instead of `local_ranks` would never be read."""
    known = {name for name in dir(Launcher) if not name.startswith("_")}
    unknown = {
        f"{one.name}.{name}"
        for one in every_launcher()
        for name in dir(one)
        if not name.startswith("_") and name not in known
    }

    assert unknown == set()


def test_the_launchers_that_number_processes_are_marked():
    """A Python without these variables does not load the table."""
    assert {one.ranks[0] for one in every_launcher() if one.ranks} == MARKS


@pytest.mark.parametrize(
    ("variables", "loaded"),
    [({}, set()), ({"RANK": "0", "WORLD_SIZE": "2"}, {"launchers"})],
)
def test_a_python_that_is_no_rank_loads_no_launcher(variables, loaded):
    """Each Python of a DDTOP=1 shell asks who it is."""
    program = (
        "import sys; before = set(sys.modules); from ddtop import launch;"
        f" launch.numbers({variables});import json; print(json.dumps(sorted(set(sys.modules) -"
        " before)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    found = {
        name.removeprefix("ddtop.launch.")
        for name in json.loads(printed)
        if name.startswith("ddtop.") and name not in ("ddtop._version", "ddtop.plugins")
    }

    assert loaded <= found
    assert loaded or found == {"ddtop.launch"}
    assert "start" not in found
