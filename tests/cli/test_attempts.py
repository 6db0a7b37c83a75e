"""`ddtop jobs --attempts`, and what `diagnose` says after a failed run: stop or restart."""

import json
import time

import pytest
from msgspec.structs import replace

from ddtop import journal, registry
from ddtop.cli import attempts
from ddtop.cli.attempts import ATTEMPTS_MAX, Next, attempt_of, attempts_of, following
from ddtop.present.schemas import ATTEMPTS_SCHEMA
from docs.generate import json_schema
from tests.cli.commands import ddtop, finished, killed
from tests.diagnosis.rules.host_lost import cut
from tests.entries import S, left
from tests.jobs import trained


def crashed(line=40, kind="ValueError"):
    job = trained(2)
    job.ranks[1].raises(kind, f"bad batch {time.monotonic()}", line=line)
    job.ranks[1].ends(code=1)
    job.ranks[0].ends(signal=15, later_s=0.5)
    return job.passes(1)


def lost():
    job = cut()
    job.others_wait(4, 5)
    return job.passes(12.0)


def told(*jobs):
    """What is said after these runs, the newest first."""
    return following([attempt_of(left(), job.snapshot(), job.verdict()) for job in jobs])


def write(*jobs):
    """The files of these runs, the newest first."""
    for at, job in enumerate(jobs):
        run, ago_s = f"r{at}", 100.0 * (at + 1)
        entry = left("train", ago_s, "exit code 1", run=run, world_size=2)
        registry.write_entry(entry)
        journal.write(registry.last_state_path("train", run), job.frames)


def test_the_same_exception_at_the_same_line_twice_means_stop():
    assert told(crashed(), crashed()) == Next(
        "stop", "the last 2 attempts of train ended with ValueError at /home/ada/data.py:40"
    )
    assert "the last 3 attempts" in told(crashed(), crashed(), crashed(), crashed(41)).reason


@pytest.mark.parametrize(
    "jobs",
    [
        [crashed],
        [crashed, lambda: crashed(41)],
        [crashed, lambda: crashed(kind="KeyError")],
        [crashed, finished, crashed],
        [killed, killed],
        [finished, finished],
    ],
)
def test_otherwise_nothing_is_said(jobs):
    assert told(*(job() for job in jobs)) is None


def test_a_lost_host_is_left_out_of_the_next_run():
    assert told(lost(), crashed(), crashed()) == Next("restart", "it was lost", ("node2",))
    assert told(lost(), crashed(), lost()).text() == (
        "restart without node2: it was lost, and at fault in 2 of the last 3 attempts"
    )


def test_diagnose_says_it_after_its_findings(home):
    write(crashed(), crashed())
    text = ddtop("diagnose", "train", exits=1).stdout
    found = json.loads(ddtop("diagnose", "train", "--json", exits=1).stdout)

    assert text.splitlines()[-1].startswith("stop: the last 2 attempts of train ended with")
    assert found["next"]["do"] == "stop"
    assert json_schema.complaints("ddtop.diagnose/1", found) == []


@pytest.mark.parametrize("jobs", [[crashed], [finished, crashed, crashed]])
def test_diagnose_says_nothing_of_it_where_nothing_speaks_for_either(home, jobs):
    write(*(job() for job in jobs))
    found = json.loads(ddtop("diagnose", "train", "--json").stdout)

    assert found["next"] is None


def test_each_run_is_a_line(home):
    write(crashed(), finished(), crashed(41))
    lines = ddtop("jobs", "--attempts", "train", exits=0).stdout.splitlines()

    assert len(lines) == 3
    assert lines[0].split()[2:6] in (["9", "s", "step", "100"], ["10", "s", "step", "100"])
    assert "rank 1 raised ValueError: bad batch" in lines[0]
    assert lines[1].endswith("all ranks finished")
    assert "data.py:41" in lines[2]


def test_the_document_has_the_described_keys(home):
    write(crashed(), crashed())
    found = json.loads(ddtop("jobs", "--attempts", "train", "--json", exits=0).stdout)

    assert json_schema.complaints(ATTEMPTS_SCHEMA, found) == []
    assert [one["run"] for one in found["attempts"]] == ["r0", "r1"]
    assert (found["attempts"][0]["kind"], found["attempts"][0]["ranks"]) == ("rank-crashed", [1])
    assert found["next"]["do"] == "stop"


def test_a_run_whose_files_are_gone_or_cut_is_a_line_too(home):
    write(crashed(), crashed(), crashed())
    registry.last_state_path("train", "r0").unlink()
    path = registry.last_state_path("train", "r1")
    path.write_bytes(path.read_bytes()[:40])
    lines = ddtop("jobs", "--attempts", "train", exits=0).stdout.splitlines()

    assert len(lines) == 3
    assert lines[0].endswith("exit code 1")


def test_a_live_run_and_other_names_are_no_attempts(home):
    write(crashed())
    (entry,) = registry.read_entries()
    registry.write_entry(replace(entry, job="train-2", run="r8"))
    now = time.time_ns()
    registry.write_entry(
        replace(entry, run="r9", ended_unix_ns=None, heartbeat_unix_ns=now, sender="0" * 12)
    )

    assert [one.entry.run for one in attempts_of("train")] == ["r0"]
    assert attempts_of("train", before_unix_ns=entry.started_unix_ns) == []


def test_without_such_a_run_it_says_so(home):
    done = ddtop("jobs", "--attempts", "train", exits=3)

    assert done.stderr == "ddtop: no run named train has ended\n"


def test_it_reads_the_files_of_this_host_only(home):
    done = ddtop("jobs", "--attempts", "train", "--hub", "node0:7777", exits=2)

    assert done.stderr.startswith("ddtop: --attempts cannot be used with --hub")


def test_old_runs_are_not_read(home, monkeypatch):
    write(*[crashed()] * 3)
    monkeypatch.setattr(attempts, "ATTEMPTS_MAX", 2)

    assert len(attempts_of("train")) == 2 < ATTEMPTS_MAX
    assert min(one.entry.started_unix_ns for one in attempts_of("train")) > time.time_ns() - 400 * S
