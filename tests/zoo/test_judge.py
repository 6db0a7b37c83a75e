"""How a tool's claims are judged."""

from pathlib import Path

import pytest

from zoo.case import CaseError, read_case
from zoo.judge import Outcome, begun, ended, take
from zoo.place import Places
from zoo.tool import Claim, Look

S = 1_000_000_000
PROGRAM = """CASES = {}


def waits():
    while True:  # place: loop
        pass


def mark():
    print("fault")


waits()
"""
FAULT = {"story": "It waits.", "expected": ["not-in-collective 1"], "place": "waits"}
HEALTHY = {"story": "It goes on.", "expected": [], "tolerated": ["not-in-collective 0"]}


def claim(kind="not-in-collective", ranks=(1,), severity="critical", text="in f.py:5"):
    return Claim(frozenset(kind.split("/")), ranks, severity, text)


def judged(tmp_path, values, *looks):
    """The outcome of looks, each (seconds, claims)."""
    program = tmp_path / "f.py"
    program.write_text(PROGRAM)
    case = read_case("it-waits", program, values)
    places, outcome = Places(case, program), begun(case, "a tool", 1.0)
    for at, *claims in looks:
        take(outcome, case, places, Look(int((100 + at) * S), tuple(claims)), 100 * S)
    ended(outcome, case)
    if case.healthy:
        outcome.ended_s = 30.0
    return outcome


def test_right_is_the_kind_about_exactly_the_ranks_in_the_place_and_the_first_time_counts(tmp_path):
    outcome = judged(
        tmp_path,
        FAULT,
        (1.0, claim(ranks=(0, 1), severity="warning")),
        (2.0, claim(text="somewhere")),
        (3.0, claim()),
        (4.0, claim()),
    )

    assert (outcome.kind_s, outcome.named_s, outcome.placed_s) == (1.0, 2.0, 3.0)
    assert outcome.right
    assert [one.ranks for one in outcome.beside] == [[0, 1]]


def test_cause_and_cure_are_said_by_a_right_finding_with_one_of_the_phrases_each(tmp_path):
    values = {**FAULT, "cause": ["asleep|waits", "lock"], "cure": [r"time-?out", "stacks"]}
    right = Claim(frozenset({"not-in-collective"}), (1,), "critical", "Asleep", "set a timeout")
    other = Claim(frozenset({"rank-killed"}), (1,), "warning", "its lock", "ddtop stacks")

    said = judged(tmp_path, values, (1.0, right), (2.0, claim()))
    assert (said.caused, said.cured) == (True, True)
    unsaid = judged(tmp_path, values, (1.0, other), (2.0, claim()))
    assert (unsaid.caused, unsaid.cured) == (False, False)
    assert judged(tmp_path, FAULT, (1.0, right)).caused is None


@pytest.mark.parametrize("key", ["cause", "cure"])
def test_a_phrase_that_is_no_regular_expression_is_refused(tmp_path, key):
    with pytest.raises(CaseError, match=r"f.py, it-waits: \("):
        judged(tmp_path, {**FAULT, key: ["("]})


@pytest.mark.parametrize(
    "other", [claim("rank-killed"), claim(ranks=(2,)), claim(ranks=(0, 1)), claim(ranks=())]
)
def test_every_other_critical_claim_is_wrong_also_for_a_moment(tmp_path, other):
    outcome = judged(tmp_path, FAULT, (1.0, other), (2.0, claim()), (3.0, claim()))

    assert not outcome.right
    assert [(one.from_s, one.to_s) for one in outcome.wrong] == [(1.0, 1.0)]


def test_what_is_named_and_then_forgotten_is_not_right(tmp_path):
    outcome = judged(tmp_path, FAULT, (5.0, claim()), (6.0,))

    assert outcome.named_s == 5.0
    assert not outcome.right


def test_the_right_words_before_the_fault_are_wrong(tmp_path):
    outcome = judged(tmp_path, FAULT, (-2.0, claim()), (5.0, claim()))

    assert outcome.named_s == 5.0
    assert len(outcome.wrong) == 1


def test_a_tool_that_tells_less_apart_is_right_with_any_of_its_kinds(tmp_path):
    outcome = judged(tmp_path, FAULT, (5.0, claim("left-early/not-in-collective")))

    assert outcome.right


def test_a_critical_finding_about_a_rank_that_works_comes_too_early(tmp_path):
    values = FAULT | {"warning_only": True}

    assert judged(tmp_path, values, (5.0, claim(severity="warning"))).right
    assert not judged(tmp_path, values, (5.0, claim())).right


def test_a_healthy_job_may_have_what_is_tolerated_as_a_warning_and_nothing_else(tmp_path):
    tolerated = claim(ranks=(0,), severity="warning")

    assert judged(tmp_path, HEALTHY, (1.0,), (2.0, tolerated)).right
    assert judged(tmp_path, HEALTHY, (1.0, claim(severity="info"))).right
    assert not judged(tmp_path, HEALTHY, (1.0, claim(ranks=(0,)))).right
    assert not judged(tmp_path, HEALTHY, (1.0, claim(severity="warning"))).right


def test_after_a_restart_nothing_may_stand_at_the_end(tmp_path):
    values = HEALTHY | {"tolerated": ["rank-crashed 1"], "restarts": 1}
    crash = claim("rank-crashed")

    assert judged(tmp_path, values, (1.0, crash), (2.0,)).right
    assert not judged(tmp_path, values, (1.0, crash), (2.0, crash)).right


def test_a_tool_that_could_say_nothing_was_not_right(tmp_path):
    outcome = judged(tmp_path, FAULT)
    outcome.unable = "the job was over"

    assert not outcome.right


def test_an_outcome_goes_through_a_file(tmp_path):
    outcome = judged(tmp_path, FAULT, (1.0, claim(ranks=(2,))), (2.0, claim()))

    assert Outcome.from_json(outcome.as_json()) == outcome


@pytest.mark.parametrize(
    ("place", "text", "named"),
    [
        ("waits", "at f.py:6 somewhere", True),
        ("waits", "at f.py:10 mark", False),
        ("waits", "at other.py:6", False),
        ("waits", "it is in waits", True),
        ("waits", "it waits", False),
        ("@loop", "at f.py:5", True),
        ("@loop", "at f.py:6", False),
        (["mark", "waits"], "at f.py:10", True),
        ("plugin.py", "in load (plugin.py:3)", True),
        ("plugin.py", "at f.py:5", False),
    ],
)
def test_a_place_is_a_function_or_a_marked_line(tmp_path, place, text, named):
    program = tmp_path / "f.py"
    program.write_text(PROGRAM)
    case = read_case("it-waits", program, FAULT | {"place": place})

    assert Places(case, program).named_in(text) is named


def test_a_marked_line_is_found_in_a_renamed_copy(tmp_path):
    program, copy = tmp_path / "f.py", tmp_path / "zqx_.py"
    program.write_text(PROGRAM)
    copy.write_text("def k_():\n    while True:\n        pass\ndef m_():\n    print('f')\nk_()\n")
    case = read_case("it-waits", program, FAULT | {"place": "@loop"})

    places = Places(case, copy, {"waits": "k_", "mark": "m_"}.__getitem__)

    assert places.named_in("k_ (zqx_.py:2)")
    assert not places.named_in("k_ (zqx_.py:5)")


def test_every_case_with_a_place_names_one_that_is_there():
    from zoo.catalogue import all_cases

    for case in all_cases().values():
        assert bool(Places(case, Path(case.program))) is bool(case.place), case.name
