"""The matrix of versions, without making an environment."""

import re
from pathlib import Path

from tools.matrix import environment
from tools.matrix.cells import CASES, CELLS, RECORD, Cell
from tools.matrix.environment import ROOT, Result, constraints, counted, run
from tools.matrix.page import page, shown
from zoo.catalogue import all_cases

RIGHT = {"case": "ingest", "right": True, "named_s": 5.0, "text": "ok"}
WRONG = {"case": "struck", "right": False, "named_s": None, "text": "struck  WRONG\n  at the end"}


def test_the_oldest_of_each_library_is_the_one_that_pyproject_allows():
    text = (ROOT / "pyproject.toml").read_text()
    for cell in CELLS:
        if cell.name.endswith("-oldest"):
            name, _, version = cell.wants[0].partition("==")
            least = re.search(rf'"{name}>=([0-9.]+)"', text)
            assert least is not None
            assert version.startswith(least[1])


def test_its_cases_are_seven_faults_of_seven_kinds_and_a_healthy_job():
    cases = [all_cases()[name] for name in CASES]
    kinds = [case.expected[0][0] for case in cases if case.expected]

    assert len(CASES) == 8
    assert len(kinds) == 7
    assert len(set(kinds)) >= 6


def test_a_release_under_test_is_not_pinned_and_everything_else_is():
    text = "torch==2.13.0\ntyping_extensions==4.16.0\nbackrefs==8.3 ; python_version >= '3.11'\n"

    kept = constraints(text, frozenset({"torch", "typing-extensions"}))

    assert kept == "backrefs==8.3 ; python_version >= '3.11'\n"


def test_the_numbers_of_pytest_are_read_from_its_last_line():
    assert counted("..F\n1 failed, 10 passed, 3 skipped in 2.1s\n") == {
        "failed": 1,
        "passed": 10,
        "skipped": 3,
    }
    assert counted("2 errors in 0.5s")["error"] == 2
    assert counted("killed") == {}


def test_a_row_that_was_interrupted_has_no_result_and_one_that_ended_is_not_run_again(tmp_path):
    result = Result("torch-2.6", "2026-11-23", tests={"passed": 9}, verdicts=[RIGHT])
    assert Result.load(tmp_path, result.name) is None
    result.save(tmp_path)

    assert Result.load(tmp_path, result.name) == result
    assert result.holds


def test_what_cannot_be_installed_is_reported_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(command, *_, **__):
        raise environment.PartError("pip: exit code 1: no matching distribution")

    monkeypatch.setattr(environment, "_call", fails)
    result = run(Cell("torch-9", ("torch==9",), ("tests/agent",)), tmp_path, "python3", False)

    assert result.trouble.endswith("no matching distribution")
    assert not result.holds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["torch-9.log"]


def test_the_table_names_what_failed_and_the_page_has_a_row_for_each_environment():
    results = [
        Result("torch-2.8", "2026-11-23", tests={"passed": 9}, verdicts=[RIGHT, WRONG]),
        Result("pyzmq-oldest", "2026-11-23", tests={"passed": 7, "failed": 1}, failures=["t::a"]),
    ]

    assert "1 of 2, not struck" in shown(results)
    assert "    t::a" in shown(results).splitlines()
    assert "| pyzmq-oldest |" in page(results)
    assert all(len(line) <= 100 for line in page([]).splitlines())


def test_variables_reach_the_process_and_those_of_ddtop_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("DDTOP", "1")
    command = ["/bin/sh", "-c", "echo $DDTOP-$TORCH_NCCL_TRACE_BUFFER_SIZE"]

    said = environment._call(command, 20.0, Path(tmp_path / "log"), more=dict(RECORD))

    assert said == "-2000\n"
