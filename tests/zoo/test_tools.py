"""How the answers of each tool are read."""

import os
import subprocess
import sys

import pytest

from ddtop.diagnosis.finding import Finding
from ddtop.diagnosis.kinds import Kind
from zoo.tools import TOOLS, ddtop, ddtop_outside
from zoo.tools.asked import Tracers, lives, state
from zoo.tools.flight_recorder import claims
from zoo.tools.py_spy import Seen, Stack, conclusion, stack
from zoo.tools.traceml import instrumented, read

C10D = "/venv/site-packages/torch/distributed/distributed_c10d.py"
MISSING = """\
Not all ranks joining collective, sequence number: 87
internal record id: 86
group info: 0:default_pg
collective: gloo:all_reduce
missing ranks: {1, 3}
input sizes: [[1024]]
output sizes: [[1024]]
world size: 4
expected ranks: {0, 1, 2, 3}
collective state: scheduled
collective stack trace:
 """
ERRORS = """\
Collective sequence number: 12 has errors
internal record id: 11
group info: 0:default_pg
collective: gloo:all_reduce
input sizes: [[8]]
output sizes: [[8]]
world size: 3
expected ranks: {0, 1, 2}
collective state: scheduled
error msg: %s
collective stack trace:
 """
TYPE = "Culprit rank %d; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'a'"
STATE = "Culprit rank %d; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: 'completed'"


def test_every_tool_has_a_name_of_its_own_and_says_how_it_is_used():
    assert next(iter(TOOLS)) == "ddtop"
    assert all(name == tool.name and tool.about for name, tool in TOOLS.items())


# -- ddtop


def test_where_a_victim_waits_is_not_the_place_of_the_fault():
    evidence = (
        "rank 1 is at train.py:20 loads",
        "ranks 0,2-3 wait at train.py:30 reduces",
        "rank 0 waits at train.py:31 reduces",
        "its DataLoader: 0 batches ready",
    )
    finding = Finding(
        Kind.NOT_IN_COLLECTIVE, "critical", (1,), (0, 2, 3), 0, "rank 1 sleeps", evidence
    )

    text = ddtop.claim(finding).text

    assert text.splitlines() == ["rank 1 sleeps", evidence[0], evidence[3]]


def test_from_outside_a_rank_that_is_not_in_a_collective_may_hold_the_gil():
    finding = {
        "kind": "not-in-collective",
        "ranks": [2],
        "severity": "critical",
        "summary": "rank 2 is elsewhere",
    }

    assert ddtop_outside.claim(finding).kinds == {"not-in-collective", "interpreter-frozen"}


# -- torch's analyser


def test_the_analyser_names_ranks_that_did_not_join():
    (claim,) = claims("loaded 4 files\n" + MISSING)

    assert claim.ranks == (1, 3)
    assert "not-in-collective" in claim.kinds
    assert "rank-killed" not in claim.kinds
    assert "87, gloo:all_reduce, missing ranks: 1,3" in claim.text


def test_only_the_first_report_of_a_group_counts():
    (claim,) = claims(MISSING + "\n" + ERRORS % (TYPE % 2))

    assert claim.ranks == (1, 3)


def test_of_several_groups_all_ranks_that_are_named_may_be_a_cycle():
    other = MISSING.replace("0:default_pg", "5:undefined").replace("{1, 3}", "{0}")

    (claim,) = claims(MISSING + "\n" + other)

    assert claim.ranks == (0, 1, 3)
    assert "wait-cycle" in claim.kinds


def test_a_culprit_is_a_rank_in_another_call_and_most_of_a_group_cannot_be_culprits():
    (one,) = claims(ERRORS % (TYPE % 2))
    (others,) = claims(ERRORS % f"{TYPE % 1}, {TYPE % 2}")

    assert one.ranks == (2,)
    assert others.ranks == (0,)
    assert "collective-mismatch" in one.kinds


def test_another_state_is_not_another_call():
    (claim,) = claims(ERRORS % (STATE % 1))

    assert "collective-mismatch" not in claim.kinds
    assert "not-in-collective" in claim.kinds


def test_an_analyser_that_finds_nothing_claims_nothing():
    assert claims("loaded 3 files\nNo errors found for this collective entry\n") == []
    assert claims("") == []


# -- py-spy


def waits(line=30):
    return Seen("S", Stack((("all_reduce", C10D, 3000), ("step", "/home/me/train.py", line))))


def sleeps(line=20):
    read = ("read", "/usr/lib/python3.11/socket.py", 700)
    return Seen("S", Stack((read, ("load", "/home/me/train.py", line))))


def test_the_ranks_that_are_not_in_communication_are_the_culprits():
    ranks = {0: waits(), 1: sleeps(), 2: waits()}

    (claim,) = conclusion(ranks, ranks, 3)

    assert claim.ranks == (1,)
    assert "not-in-collective" in claim.kinds
    assert "load (train.py:20)" in claim.text


def test_of_ranks_that_all_communicate_the_fewest_at_one_line_are_the_culprits():
    ranks = {0: waits(), 1: waits(), 2: waits(40)}

    (claim,) = conclusion(ranks, ranks, 3)

    assert claim.ranks == (2,)
    assert "collective-mismatch" in claim.kinds


def test_two_classes_of_one_size_tell_nothing():
    ranks = {0: waits(), 1: waits(40)}

    assert conclusion(ranks, ranks, 2) == []


def test_a_job_in_which_every_stack_has_changed_moves():
    assert conclusion({0: waits(), 1: sleeps()}, {0: waits(31), 1: sleeps(21)}, 2) == []


def test_a_rank_that_is_stopped_or_gone_is_the_culprit():
    ranks = {0: waits(), 1: Seen("T", None), 2: waits()}
    (stopped,) = conclusion(ranks, ranks, 3)
    (gone,) = conclusion({0: waits(), 2: waits()}, {0: waits(), 2: waits()}, 3)

    assert (stopped.ranks, stopped.kinds) == ((1,), {"rank-stopped"})
    assert gone.ranks == (1,)
    assert "rank-crashed" in gone.kinds


def test_the_main_thread_is_read_of_py_spys_json():
    frame = {"name": "load", "filename": "/home/me/train.py", "line": 7}
    other = {"thread_name": "Thread-1", "frames": [frame | {"name": "feed"}]}
    main = {"thread_name": "MainThread", "frames": [frame]}

    assert stack([other, main]).place == "load (train.py:7)"
    assert stack([]).frames == ()


# -- TraceML

LOOP = """import torch
for batch in loader:
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
"""


def diagnosis(kind, severity="crit", ranks=()):
    """The part of TraceML's summary that is read."""
    found = {"kind": kind, "status": kind, "severity": severity, "summary": "why", "ranks": ranks}
    return read({"step_time": {"diagnosis": found}})


def test_traceml_is_put_around_the_step():
    text = instrumented(LOOP)

    assert text is not None
    lines = text.splitlines()
    assert lines[1] == "__import__('traceml_ai').init(mode='auto')"
    assert lines[3] == "    with __import__('traceml_ai').trace_step(model):"
    assert lines[-1] == "        optimizer.step()"
    assert instrumented("import torch\nloss.backward()\n") is None


def test_traceml_names_slow_ranks_and_nothing_else():
    (claim,) = diagnosis("COMPUTE_STRAGGLER", ranks=[2]).claims

    assert (claim.ranks, claim.severity) == ((2,), "critical")
    assert claim.kinds == {"straggler"}
    assert diagnosis("COMPUTE_BOUND", "info").claims == ()
    assert diagnosis("NO_DATA", "info").unable == "NO_DATA: why"


# -- processes


def test_a_process_that_nobody_traces_was_not_held():
    with Tracers([os.getpid()]) as tracers:
        pass

    assert tracers.longest_s == 0.0


def test_a_zombie_does_not_live():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert state(process.pid) == "Z"
    assert not lives(process.pid)
    process.wait()
    process.stdout.close()
    assert not lives(process.pid)


@pytest.mark.parametrize("name", ["flight-recorder", "py-spy"])
def test_a_tool_says_of_what_it_has_no_notion(name):
    from zoo.catalogue import all_cases

    cases = all_cases()

    assert TOOLS[name].unable(cases["own-lock"]) == ""
    assert TOOLS[name].unable(cases["a-fifth"]) != ""
    assert TOOLS[name].unable(cases["ends-well"]) == ""
