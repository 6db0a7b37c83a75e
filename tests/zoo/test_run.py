"""The runner's options, its file of outcomes, and its tables."""

import json

import pytest

from tools.benchmarks.stage import StageError
from zoo import run as runner
from zoo.catalogue import all_cases
from zoo.judge import Heard, begun
from zoo.report import COLUMNS, bars, comparison, line, markdown, percentile
from zoo.run import Options, left_out, read_outcomes, run_all
from zoo.tools.ddtop import Ddtop


def outcome(name, named_s=None, wrong=(), **more):
    """The outcome of a case, as if it had been run with ddtop."""
    found = begun(all_cases()[name], "ddtop", 1.0)
    found.named_s = found.kind_s = named_s
    found.stands = named_s is not None
    found.wrong = [Heard(["rank-killed"], [0], one, "rank 0", 1.0, 2.0) for one in wrong]
    found.ended_s = 20.0 if found.healthy else None
    for key, value in more.items():
        setattr(found, key, value)
    return found


@pytest.fixture
def ran(monkeypatch):
    """The names of the cases that were run. Nothing is started."""
    names = []

    def run(case, tool, options, into=None):
        names.append(case.name)
        found = outcome(case.name, 5.0)
        found.options = runner.asdict(options)
        return found

    monkeypatch.setattr(runner, "run", run)
    return names


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path, ran):
    cases, file = [all_cases()[name] for name in ("own-lock", "ring")], tmp_path / "done.jsonl"
    run_all(cases[:1], [Ddtop()], Options(), resume=file)
    with file.open("a") as end:
        end.write('{"case": "ri')

    outcomes = run_all(cases, [Ddtop()], Options(), resume=file)

    assert ran == ["own-lock", "ring"]
    assert [one.case for one in outcomes] == ["own-lock", "ring"]


def test_other_options_are_another_run(tmp_path, ran):
    cases, file = [all_cases()["own-lock"]], tmp_path / "done.jsonl"
    run_all(cases, [Ddtop()], Options(), resume=file)
    run_all(cases, [Ddtop()], Options(seed=7), resume=file)
    run_all(cases, [Ddtop()], Options(seed=7), repeat=3, resume=file)

    assert len(ran) == 4
    assert len(read_outcomes(file)) == 4


def test_a_healthy_program_that_fails_by_itself_is_run_again(monkeypatch):
    tries = []

    def run(case, tool, options, into=None):
        tries.append(case.name)
        return outcome(case.name, failed_itself=len(tries) < 3)

    monkeypatch.setattr(runner, "run", run)

    outcomes = run_all([all_cases()["again"]], [Ddtop()], Options())

    assert [one.failed_itself for one in outcomes] == [True, True, False]


def test_what_goes_wrong_with_the_run_itself_is_reported_and_not_raised(monkeypatch):
    def start(*_, **__):
        raise StageError("mpirun is not installed")

    tool = Ddtop()
    monkeypatch.setattr(tool, "start", start)

    found = runner.run(all_cases()["own-lock"], tool, Options())

    assert found.trouble == "mpirun is not installed"
    assert not found.right


def test_a_launcher_is_given_to_those_that_it_can_start():
    cases = all_cases()

    assert left_out(cases["own-lock"], Options(launcher="mpirun")) == ""
    assert left_out(cases["own-lock"], Options(launcher="spawn")) == ""
    assert left_out(cases["family"], Options(launcher="torchrun")) == "not under torchrun"
    assert left_out(cases["again"], Options(launcher="plain")) == "not under plain"
    assert left_out(cases["again"], Options()) == ""


def test_under_load_all_limits_double():
    assert Options(load=8).slower == 2.0
    assert Options().slower == 1.0


def test_the_bars_are_of_faults_seconds_places_and_silence():
    outcomes = [outcome("own-lock", 5.0, has_place=True, placed_s=5.0) for _ in range(99)]
    outcomes += [outcome("ring", 9.0), outcome("a-fifth", 77.0), outcome("ends-well")]

    rows = {row.what: row for row in bars(outcomes)}

    assert rows["faults: right kind and exact ranks"].measured == "101 of 101"
    assert rows["faults: right place"].met
    assert rows["seconds to the right verdict, p95"].measured == "5.0 s"
    assert rows["kinds with a longer limit: named in their time"].met
    assert rows["wrong critical findings"].met
    assert rows["healthy jobs left in peace"].met


def test_the_bars_name_what_was_missed():
    outcomes = [outcome("own-lock", wrong=["critical"]), outcome("ends-well", wrong=["warning"])]

    rows = {row.what: row for row in bars(outcomes)}

    assert all(row.met is False for row in rows.values())
    assert rows["faults: right kind and exact ranks"].detail == "own-lock"
    assert rows["healthy jobs left in peace"].detail == "ends-well"
    assert rows["seconds to the right verdict, p95"].measured == "16.0 s"


def test_the_table_of_tools_counts_what_a_tool_cannot_say_as_not_right():
    outcomes = [
        outcome("own-lock", 5.0),
        outcome("ring", unable="the job was over"),
        outcome("ends-well", wrong=["warning"]),
    ]

    head, row = comparison(outcomes, [Ddtop()])

    cells = dict(zip(head, row, strict=True))
    assert head == COLUMNS
    assert (cells["exact ranks"], cells["not able"]) == ("1 of 2", "1 of 2")
    assert (cells["false alarms"], cells["wrong criticals"]) == ("1 of 1", "0")
    assert (cells["s p50"], cells["s p50, slow"]) == ("5.0", "-")
    assert markdown([head, row]).splitlines()[1].count("|") == len(COLUMNS) + 1


def test_a_line_says_what_was_wrong_and_what_was_not_able():
    assert line(outcome("own-lock", 5.0, caused=True, cured=True)).endswith("ok")
    assert line(outcome("own-lock", 5.0, caused=True)).endswith("not said: cure")
    assert "wrong +1.0..+2.0 s critical rank-killed: rank 0" in line(
        outcome("own-lock", 5.0, wrong=["critical"])
    )
    assert line(outcome("ring", unable="it was over")).endswith("not able: it was over")


def test_a_percentile_is_one_of_the_values():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.95) == 1.0
    assert percentile([float(one) for one in range(1, 21)], 0.95) == 19.0


def test_all_outcomes_are_json(tmp_path):
    text = json.dumps(outcome("own-lock", 5.0, wrong=["critical"]).as_json())

    assert json.loads(text)["named_s"] == 5.0
