"""Programs choose the policy, all else gets it, and every number that judges is in it.

Whether a test notices another value of a limit, `python -m tools.limits` says.
"""

import ast
import functools
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import ddtop
from ddtop.model.arrivals import Straggler
from ddtop.policy import BLOCKS, POLICY, Limits, Policy, Waits
from ddtop.say.told import diagnose
from tests.jobs import hung
from tests.parsed import nodes, tree

ROOM = Path(ddtop.__file__).parent
EDGES = ("cli", "relay/server.py", "thresholds.py")
"""The programs choose the policy. `thresholds.py` keeps the choice of a viewer's process."""
STARTS = (
    *(
        "api.py",
        "cli",
        "ui",
        "follow/engine.py",
        "follow/recording.py",
        "follow/looks.py",
        "feeds",
    ),
    *(
        f"present/{page}.py"
        for page in ("culprit", "findings", "gpus", "groups", "hosts", "numbers", "rank")
    ),
)
"""Where a viewer begins to follow a job, or draws it: these ask for that choice and pass it on."""
SHARED = [name for name in POLICY.values() if "." not in name]


def modules_that_import(name):
    return {
        path.relative_to(ROOM).as_posix()
        for path in ROOM.rglob("*.py")
        if name in path.read_text()
        for node in nodes(path)
        if isinstance(node, ast.alias) and node.name == name
    }


@pytest.mark.parametrize(("name", "allowed"), [("POLICY", EDGES), ("chosen", STARTS)])
def test_only_programs_choose_the_policy(name, allowed):
    """A program that embeds ddtop, or a test, may judge by other thresholds."""
    found = modules_that_import(name)

    assert found
    assert {path for path in found if not path.startswith(allowed)} == set()


PLUMBING = {
    "judge.STEP_NS": "how often a second opinion counts, which is how often agents report",
    "hosts.OFFSET_MAX_NS": "no clock is 40 years off: a value beyond it is garbage",
    "memory.KEEP_S": "how much is kept",
    "starting._TIMEOUT_S": "what torch does where the program gives no timeout",
    "starting._DEFAULT_TIMEOUT_S": "the same for one backend",
    "losses.APART_NS": "losses of our own, listed as one event or as two",
    "log.SAME_NS": "how precisely two relays say when something began",
    "joins.TOGETHER_NS": "what is listed as one event",
    "groups.SECOND_NS": "a second",
    "strip.SPAN_LEAST_S": "lengths of lines that are drawn",
    "strip.SPAN_MOST_S": "the same",
    "strip.SPAN_STEPS_S": "the same",
    "culprit.SPAN_MOST_S": "the same",
    "lanes.CELL_S": "the same",
    "lanes._LOOKS": "how each cell of a lane looks",
    "now.BEGUN_S": "how often agents report: a younger call may be over by the next report",
    "rank._SPOT_LEAST_RATIO": "how often a rank was at a line that its page lists",
    "map.SETTLE_NS": "which looks follow each other, on a map that must not flicker",
}
"""Numbers with a unit that are not in the policy: they do not judge."""


def test_no_threshold_of_model_diagnosis_and_present_is_outside_the_policy():
    unit = re.compile(r"_(NS|MS|S|RATIO|FACTOR|SHARE|LOOKS|CHANGE)$")
    found = {
        f"{path.stem}.{name.id}"
        for room in ("model", "diagnosis", "present")
        for path in (ROOM / room).rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and unit.search(name.id)
    }

    assert found == set(PLUMBING)


def test_model_and_diagnosis_compare_with_no_bare_fraction():
    """A number in the middle of a function is as much a threshold as a constant is."""
    found = {
        f"{path.stem}: {ast.unparse(node)}"
        for room in ("model", "diagnosis")
        for path in (ROOM / room).rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, float)
        if part.value not in (0.0, 1.0, 1e3, 1e6, 1e9)
    }

    assert found == set()


@functools.cache
def texts():
    """The code of each file."""
    return {path.relative_to(ROOM).as_posix(): path.read_text() for path in ROOM.rglob("*.py")}


@functools.cache
def files_that_read():
    """For each shared limit, the files that read it."""
    found = {}
    for path, text in texts().items():
        for name in re.findall(r"(?:policy|chosen\(\))\.(\w+)", text):
            found.setdefault(name, set()).add(path)
    return found


def test_each_shared_limit_is_read_somewhere():
    assert [name for name in SHARED if name not in files_that_read()] == []


def test_a_limit_that_only_one_file_of_the_model_or_the_rules_reads_is_in_that_file():
    found = {name: sorted(files_that_read()[name]) for name in SHARED}
    rooms = ("model/", "diagnosis/")

    assert [
        name for name, (path, *more) in found.items() if not more and path.startswith(rooms)
    ] == []


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_read_in_its_own_file_and_in_words_and_each_of_its_limits_is(name):
    """A limit judges in one place. Words may name it."""
    block = BLOCKS[name]
    own = Path(sys.modules[block.__module__].__file__).relative_to(ROOM).as_posix()
    asks = re.compile(rf"\b(?:of|wait_s)\({block.__name__}\)")
    wait_s = {"wait_s"} if issubclass(block, Waits) else set()
    files = [path for path, text in texts().items() if asks.search(text)]
    read = {
        one.attr
        for path in {own, *files}
        for one in nodes(ROOM / path)
        if isinstance(one, ast.Attribute)
    }

    assert [path for path in files if path != own and not path.startswith("say/")] == []
    assert files
    assert {one.name for one in fields(block)} - read - wait_s == set()


def test_no_two_blocks_have_one_name():
    with pytest.raises(TypeError, match="two blocks of limits are called straggler"):

        class Another(Limits, of="straggler"):
            """The name is taken."""


def test_two_policies_are_in_one_process_and_a_block_is_that_of_its_policy():
    theirs = POLICY.with_limits({"straggler.ratio": 0.2, "still_limit_s": 7.0})
    again = theirs.with_limits({"straggler.steps": 20})

    assert POLICY.of(Straggler) is Policy().of(Straggler)
    assert [one.of(Straggler).ratio for one in (POLICY, theirs, again)] == [0.1, 0.2, 0.2]
    assert (theirs.of(Straggler).steps, again.of(Straggler).steps) == (16, 20)
    assert again.changes() == (
        ("still_limit_s", 7.0, 5.0),
        ("straggler.ratio", 0.2, 0.1),
        ("straggler.steps", 20, 16),
    )


def test_a_relay_is_called_silent_before_its_ranks_are():
    assert POLICY.relay_silent_s < POLICY.report_silent_s


def test_a_rule_that_compares_a_wait_itself_may_have_a_limit_of_its_own():
    """A command looks until the rule with the longest one has judged."""
    policy = POLICY.with_limits({"deadlock.wait_s": 8.0, "io-stall.wait_s": 1.0})
    blocks = [BLOCKS[name] for name in ("deadlock", "io-stall", "loader-stuck")]

    assert [policy.wait_s(block) for block in blocks] == [8.0, 1.0, POLICY.still_limit_s]
    assert (POLICY.longest_wait_s, policy.longest_wait_s) == (POLICY.still_limit_s, 8.0)
    assert POLICY.with_limits({"still_limit_s": 30.0, "deadlock.wait_s": 8.0}).longest_wait_s == 30


def test_a_finding_tells_which_limits_its_reader_has_changed():
    snapshot, line = hung().snapshot(), "you changed still_limit_s to 4 (default 5)"
    (ours,) = diagnose(snapshot, POLICY)
    (theirs,) = diagnose(snapshot, POLICY.with_limits({"still_limit_s": 4.0}))

    assert line not in ours.evidence
    assert theirs.evidence[-1] == line


@pytest.mark.parametrize(
    "limits",
    [
        {"still_limit_s": 3600.0, "not-in-collective.wait_s": 5.0},
        {"not-in-collective.wait_s": 3600.0},
    ],
    ids=["the model blames later", "the rule judges later"],
)
def test_a_rank_is_named_when_the_model_blames_it_and_the_wait_is_too_long_for_the_rule(limits):
    job = hung()
    job.policy = POLICY.with_limits(limits)

    assert diagnose(job.snapshot(), job.policy) == ()
