"""The net under a change of the model or the diagnosis: every finding of recorded jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtop.diagnosis.finding import CRITICAL, INFO, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.journal import Reader
from ddtop.wire import frames
from ddtop.wire.records import Hello
from tests.follow.journals import written
from tests.follow.taped import hangs
from tools.recorded import findings
from tools.recorded.findings import INDENT, Look, lines, looks, played, unpacked
from tools.recorded.neutral import HOST, SENDER
from tools.recorded.record import ZOO
from zoo.catalogue import all_cases
from zoo.judge import said_text

FAMILIES_MIN, HEALTHY_MIN, BYTES_MAX = 41, 10, 1_000_000
LIMIT_S = 300.0
WARNING_S = 60.0
"""What may not be critical before its time is a warning for at least so long."""


def read_back(text):
    """(the lines at the end, how many half seconds) of what `played` has written."""
    state, count = {}, 0
    for line in text.splitlines():
        if line.startswith("= "):
            count += int(line[2:])
        elif line.startswith(INDENT):
            key, found, value = line[len(INDENT) :].partition(": ")
            if found:
                state[key] = json.loads(value)
            else:
                del state[key]
        else:
            count += 1
    return state, count


# -- what a file says


def test_the_file_of_a_recording_tells_all_that_a_viewer_saw(tmp_path):
    path = written(hangs(), tmp_path / "hangs.journal")
    seen = list(looks(path))

    text = played(path)

    state, count = read_back(text)
    assert (state, count) == (lines(seen[-1]), len(seen))
    assert state["1"] == "critical not-in-collective"
    assert state["1 ranks"] == "2"
    assert state["1 victims"] == "0,1,3"
    assert {"1 since", "1 call", "1 summary", "1 evidence 1", "1 advice"} <= set(state)
    assert text.count(f"{INDENT}1: ") == 1
    assert "\n= " in text


def test_the_now_column_is_told_on_request(tmp_path):
    path = written(hangs(), tmp_path / "hangs.journal")

    assert "rank 2" not in read_back(played(path))[0]
    assert read_back(played(path, with_now=True))[0]["rank 2"] == "culprit: fetch_labels data.py:40"


def test_a_line_that_is_gone_has_no_text(monkeypatch):
    found = Finding(Kind.STRAGGLER, CRITICAL, (1,), (), 3_000_000_000, "slow\nrank", ("a", "b"))
    verdicts = [
        Verdict(CRITICAL, (found,), ""),
        Verdict(CRITICAL, (found,), ""),
        Verdict("ok", (), "ok: all move"),
    ]

    def seen(path):
        for number, verdict in enumerate(verdicts, 1):
            at = SimpleNamespace(time_unix_ns=2_000_000_000 + number * 500_000_000, ranks=())
            yield Look(2_000_000_000, at, verdict)

    monkeypatch.setattr(findings, "looks", seen)

    assert played(Path()).splitlines() == [
        "0.5 s",
        '    health: "critical"',
        '    1: "critical straggler"',
        '    1 ranks: "1"',
        '    1 victims: ""',
        '    1 since: "1.000 s"',
        '    1 call: "group None, op None, seq None"',
        '    1 summary: "slow\\nrank"',
        '    1 evidence 1: "a"',
        '    1 evidence 2: "b"',
        '    1 advice: ""',
        "= 1",
        "1.5 s",
        '    health: "ok"',
        '    calm: "ok: all move"',
        "    1",
        "    1 ranks",
        "    1 victims",
        "    1 since",
        "    1 call",
        "    1 summary",
        "    1 evidence 1",
        "    1 evidence 2",
        "    1 advice",
    ]


# -- the recordings in the repository


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Each journal, and what is right to say of its case."""
    journals = unpacked(ZOO, tmp_path_factory.mktemp("zoo"))
    return {path: json.loads(path.with_suffix(".json").read_text()) for path in journals}


def test_the_recordings_are_of_all_families_and_small(zoo):
    assert len({told["program"] for told in zoo.values()}) >= FAMILIES_MIN
    assert sum(not told["expected"] for told in zoo.values()) >= HEALTHY_MIN
    assert ZOO.stat().st_size <= BYTES_MAX


def test_each_recording_expects_what_its_case_does(zoo):
    """Whoever changes what is right for a case has to record it again."""
    cases = all_cases()

    assert {path.stem: told["expected"] for path, told in zoo.items()} == {
        path.stem: [said_text(one) for one in cases[path.stem].expected] for path in zoo
    }


def test_each_recording_gets_its_right_kind_and_nothing_else_is_critical(zoo):
    assert {path.stem: wrong for path, told in zoo.items() if (wrong := wrong_in(path, told))} == {}


def wrong_in(path, told):
    """What must not be said of this recording, or was not said."""
    right, wrong = False, set()
    for look in looks(path):
        for one in look.verdict.findings:
            said = f"{one.kind} {','.join(map(str, one.ranks))}".strip()
            stood_s = (look.snapshot.time_unix_ns - one.since_unix_ns) / 1e9
            critical = one.severity == CRITICAL
            early = critical and told["warning_only"] and stood_s < WARNING_S
            right = right or said in told["expected"]
            fine = said in told["tolerated"] and not critical
            if said in told["expected"] and not early:
                fine = True
            if not fine and (critical or (one.severity != INFO and not told["expected"])):
                wrong.add((said, one.severity))
    if told["expected"] and not right:
        wrong.add("nothing right")
    return sorted(map(str, wrong))


def test_no_recording_names_its_machine(zoo):
    hellos = 0
    for path in zoo:
        for data in Reader(path):
            envelope = frames.open_envelope(data)
            record = frames.open_record(envelope)
            assert envelope.sender.startswith(SENDER)
            if isinstance(record, Hello):
                hellos += 1
                assert (record.host, record.environment) == (HOST, {})
    assert hellos > len(zoo)


def test_two_runs_are_byte_equal(tmp_path):
    """Neither the order of a set nor the time zone is in it."""
    runs = {
        tmp_path / seed: subprocess.Popen(
            [sys.executable, "-m", "tools.recorded.findings", str(tmp_path / seed), "--now"],
            env=os.environ | {"PYTHONHASHSEED": seed, "TZ": zone},
        )
        for seed, zone in (("1", "Asia/Tokyo"), ("2", "America/New_York"))
    }
    try:
        assert [run.wait(LIMIT_S) for run in runs.values()] == [0, 0]
    finally:
        for run in runs.values():
            run.kill()
            run.wait()
    outputs = [{path.name: path.read_bytes() for path in into.iterdir()} for into in runs]

    assert len(outputs[0]) > FAMILIES_MIN
    assert outputs[0] == outputs[1]
