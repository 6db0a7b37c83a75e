"""How cases are read from their programs."""

import signal

import pytest

from zoo.case import CaseError
from zoo.catalogue import all_cases, cases_of

PROGRAM = '''
"""A program."""
import nothing_that_is_installed
CASES = {
    "waits-for-ever": {
        "story": "It waits.",
        "source": "owner/repository#1",
        "expected": ["not-in-collective 1,2", "cancelled"],
        "place": "waits",
        "world": 4,
        "act": "SIGINT",
    },
    "goes-on": {"story": "It goes on.", "expected": [], "shape": "main"},
}
'''


def test_cases_are_read_without_running_their_program(tmp_path):
    program = tmp_path / "waits.py"
    program.write_text(PROGRAM)

    first, second = cases_of(program)

    assert first.expected == (("not-in-collective", (1, 2)), ("cancelled", ()))
    assert (first.shape, first.place, first.world) == ("waits_for_ever", ("waits",), 4)
    assert first.act is signal.SIGINT
    assert not first.healthy
    assert second.healthy
    assert second.shape == "main"


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ('"world": 4', '"wrold": 4', "wrold"),
        ('"world": 4', '"world": "4"', "world is not a int"),
        ("not-in-collective", "not-in-colective", "no finding is called not-in-colective"),
        ("1,2", "1-2", "ranks are numbers"),
        ('"story": "It waits.",', "", "`story` and `expected` are needed"),
        ('"world": 4', '"launcher": "horse"', "launcher is one of"),
        ("CASES = {", "CASES = dict() or {", "not a literal dict"),
        ("CASES = {", "OTHERS = {", "no CASES"),
    ],
)
def test_a_mistake_in_a_case_is_named(tmp_path, before, after, word):
    program = tmp_path / "waits.py"
    program.write_text(PROGRAM.replace(before, after))

    with pytest.raises(CaseError, match=word):
        cases_of(program)


def test_two_cases_of_one_name_are_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(PROGRAM)

    with pytest.raises(CaseError, match=r"one\.py has a case named waits-for-ever too"):
        all_cases(tmp_path)
