"""The net under a change of the model or the diagnosis: every finding of recorded jobs."""

import json
import os
import subprocess
import sys
import time
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
from tools.recorded.record import JOBS, ZOO
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


@pytest.fixture(scope="module")
def here(zoo, tmp_path_factory):
    """What is written of each recording, those of whole jobs too, and what of it is wrong. They are
    played once for both."""
    texts, wrong = {}, {}

    def judged(path):
        told = zoo.get(path, {"expected": (), "tolerated": (), "warning_only": False})
        right, wrong[path.stem] = not told["expected"], set()
        for look in looks(path):
            right |= any(said_of(one) in told["expected"] for one in look.verdict.findings)
            wrong[path.stem] |= set(wrong_in(look, told) if path in zoo else ())
            yield look
        wrong[path.stem] |= set() if right else {"nothing right"}

    with pytest.MonkeyPatch.context() as patch:
        # As the program sets it: a finding may say when, in local time.
        patch.setenv("TZ", "UTC")
        time.tzset()
        patch.setattr(findings, "looks", judged)
        for path in (*zoo, *unpacked(JOBS, tmp_path_factory.mktemp("jobs"))):
            texts[path.stem] = played(path, with_now=True)
    time.tzset()
    return texts, {name: said for name, said in wrong.items() if said}


def test_each_recording_gets_its_right_kind_and_nothing_else_is_critical(here):
    _, wrong = here

    assert wrong == {}


def said_of(finding):
    return f"{finding.kind} {','.join(map(str, finding.ranks))}".strip()


def wrong_in(look, told):
    """What must not be said of a recording at this moment."""
    for one in look.verdict.findings:
        said = said_of(one)
        stood_s = (look.snapshot.time_unix_ns - one.since_unix_ns) / 1e9
        critical = one.severity == CRITICAL
        early = critical and told["warning_only"] and stood_s < WARNING_S
        fine = said in told["tolerated"] and not critical
        if said in told["expected"] and not early:
            fine = True
        if not fine and (critical or (one.severity != INFO and not told["expected"])):
            yield f"{one.severity} {said}"


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


def test_two_runs_are_byte_equal(here, tmp_path):
    """Neither the order of a set nor the time zone is in it: this process has another hash seed."""
    texts, _ = here
    subprocess.run(
        [sys.executable, "-m", "tools.recorded.findings", str(tmp_path), "--now"],
        env=os.environ | {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"},
        timeout=LIMIT_S,
        check=True,
    )

    assert len(texts) > FAMILIES_MIN
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == texts
