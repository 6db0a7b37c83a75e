"""`ddtop explain` as people type it."""

import pytest

from ddtop.diagnosis.explain import PAGES
from tests.cli.commands import ddtop


def explain(*words):
    return ddtop("explain", *words)


def test_a_kind_is_explained(home):
    done = explain("not-in-collective")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("not-in-collective (critical; a warning while the rank works")
    for heading in (
        "what it means",
        "how it is found",
        "what to do",
        "code that does it",
        "code that does not",
    ):
        assert f"\n{heading}\n" in done.stdout


def test_without_a_kind_they_are_listed(home):
    done = explain()

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[: len(PAGES)]] == list(PAGES)


@pytest.mark.parametrize("word", ["rank-kiled", "nonsense", "a\x1b[2Jb", ""])
def test_an_unknown_kind_is_a_usage_error_in_one_line(home, word):
    done = explain(word)

    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no finding named" in done.stderr
    assert len(done.stderr) < 120
    assert ("did you mean rank-killed?" in done.stderr) == (word == "rank-kiled")
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr
