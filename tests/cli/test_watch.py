"""`ddtop watch` against a real relay: its lines, its exit codes, and its end."""

from __future__ import annotations

import json
import signal
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from ddtop import registry
from ddtop.cli import outside_jobs
from ddtop.cli.errors import CommandError
from ddtop.cli.watching import _Watch
from ddtop.follow.look import Look
from ddtop.follow.looks import OVER_S
from tests.cli.commands import finished, killed, write_ended
from tests.feeds.launchers import torchrun
from tests.ports import free_port
from tests.relay.stage import DEADLINE_S, Stage, sees_ranks
from tests.ui import builders
from tests.waiting import until


def one_rank(stage, number=0, code="import sys; sys.stdin.readline()"):
    """A rank that the relay watches. Its child is the last process of the stage."""
    stage.rank(number, code=code)
    stage.heard(stage.viewer(), sees_ranks)
    until(registry.read_entries)
    return stage.children[-1]


def let_end(child):
    """The child ends when it has read a line."""
    child.stdin.write(b"\n")
    child.stdin.flush()


def without_since(event):
    """Where a process needs seconds to start, it began before the first look."""
    return event.partition(", since ")[0]


def test_a_job_that_has_only_a_launcher_is_reported_on_with_its_first_rank(
    stage, watching, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setenv("DDTOP", "1")
        patch.setenv("DDTOP_JOB", "train")
        launcher = torchrun(tmp_path, "first", free_port())
        launcher.__enter__()
    with closing(ExitStack()) as ending:
        ending.push(launcher)
        until(lambda: outside_jobs.before_ranks("train"))
        watch = watching("train")
        child = one_rank(stage)
        event = watch.event()
        let_end(child)

    assert without_since(event) == "joined rank 0 of 2"


def test_a_job_is_reported_from_its_first_rank_to_its_end(stage, watching):
    child = one_rank(stage)
    watch = watching("train")
    events = [watch.event()]
    child.send_signal(signal.SIGSTOP)
    events.append(watch.event())
    child.send_signal(signal.SIGCONT)
    events.append(watch.event())
    let_end(child)
    code, rest, err = watch.ends()

    assert without_since(events[0]) == "joined rank 0 of 2"
    assert events[1].startswith(
        "appeared critical rank-stopped: rank 0 has been stopped (SIGSTOP or Ctrl-Z) for "
    )
    assert events[2].startswith("cleared critical rank-stopped of rank 0, after ")
    assert [line.partition(" ")[2] for line in rest] == ["ended all ranks finished"]
    assert (code, err) == (0, "")


def test_a_relay_that_is_known_by_its_port_alone_is_watched_there(
    stage, watching, tmp_path, monkeypatch
):
    """On a host without the job file."""
    child = one_rank(stage)
    monkeypatch.setenv("DDTOP_KEY", registry.secret().decode())
    monkeypatch.setenv("DDTOP_STATE", str(tmp_path / "empty"))
    watch = watching("--hub", f"127.0.0.1:{stage.server._link.port}")
    joined = watch.event()
    let_end(child)
    code, rest, err = watch.ends()

    assert without_since(joined) == "joined rank 0 of 2"
    assert [line.partition(" ")[2] for line in rest] == ["ended all ranks finished"]
    assert (code, err) == (0, "")


def test_a_relay_that_is_known_by_its_port_alone_is_waited_for_as_long_as_any_other(monkeypatch):
    """No job file has this relay's heartbeat. It is live because it was heard."""
    now = 1_000.0
    monkeypatch.setattr(time, "time_ns", lambda: int(now * 1e9))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(registry, "of_run", lambda *given: None)
    watch = _Watch(None, "train", registry.at_port("train", "node0", 29500), False, None)
    snapshot = builders.healthy()
    heard = Look(snapshot, builders.calm(snapshot))
    for _ in range(3600):
        now += 1.0
        watch._give_up(heard)
    lost = replace(heard, contact="relay not heard")
    for _ in range(int(registry.REVIVED_S) + 1):
        now += 1.0
        watch._give_up(lost)
    now += OVER_S + 1.0

    with pytest.raises(CommandError, match="no other has followed"):
        watch._give_up(lost)


def test_a_job_that_ends_badly_is_exit_code_1_and_its_finding_goes_to_the_command(
    stage, watching, tmp_path
):
    """The user finds the finding in the log, and got a message about it."""
    child = one_rank(stage, code="import sys; sys.stdin.readline(); sys.exit(7)")
    watch = watching("train", "--json", "--on-critical", f"dd status=none of={tmp_path / 'event'}")
    joined = json.loads(watch.line())
    let_end(child)
    code, rest, err = watch.ends()
    appeared, ended = (json.loads(line) for line in rest)

    assert (code, err) == (1, "")
    assert (joined["schema"], joined["event"], joined["ranks"]) == ("ddtop.event/1", "joined", [0])
    assert (appeared["event"], appeared["finding"]["kind"]) == ("appeared", "rank-crashed")
    assert (ended["event"], ended["ended"]["first_rank"]) == ("ended", 0)
    assert json.loads((tmp_path / "event").read_text()) == appeared


@pytest.mark.job
def test_a_command_that_fails_is_reported_and_the_watching_goes_on(stage, watching):
    child = one_rank(stage)
    watch = watching("train", "--on-critical", "false")
    watch.line()
    child.send_signal(signal.SIGSTOP)
    appeared = watch.event()
    child.send_signal(signal.SIGCONT)
    cleared = watch.event()
    let_end(child)
    code, _, err = watch.ends()

    assert (appeared.split()[0], cleared.split()[0], code) == ("appeared", "cleared", 0)
    assert err == "ddtop: --on-critical false failed for rank-stopped: exit code 1\n"


@pytest.mark.job
def test_a_restart_of_the_relay_is_reported_and_an_open_finding_is_not_repeated(
    stage, home, watching
):
    child = one_rank(stage)
    child.send_signal(signal.SIGSTOP)
    watch = watching("train")
    events = [watch.event(), watch.event()]
    # A relay that was killed leaves its roster file and says no goodbye.
    roster = registry.roster_path("train", "r1").read_bytes()
    stage.children.remove(child)
    stage.close()
    events.append(watch.event(contact=True))
    registry.roster_path("train", "r1").write_bytes(roster)
    second = Stage(home)
    try:
        events.append(watch.event(contact=True))
        child.send_signal(signal.SIGCONT)
        events.append(watch.event(contact=True))
    finally:
        child.kill()
        child.communicate()
        second.close()

    assert [event.split()[0] for event in events] == [
        "joined",
        "appeared",
        "lost",
        "joined",
        "cleared",
    ]
    assert events[3].startswith("joined again: the relay reports after ")


def test_ctrl_c_ends_it_quietly(stage, watching):
    one_rank(stage)
    watch = watching("train")
    watch.line()
    watch.process.send_signal(signal.SIGINT)

    code, lines, err = watch.ends()

    assert (code, lines, err.strip()) == (130, [], "")


def test_it_ends_with_its_reader_even_if_nothing_happens(stage, watching):
    """`ddtop watch | head -1` on a healthy job."""
    one_rank(stage)
    watch = watching("train")
    watch.line()
    watch.process.stdout.close()

    assert watch.process.wait(DEADLINE_S) == 0
    assert watch.process.stderr.read() == b""


@pytest.mark.job
def test_a_relay_that_does_not_answer_has_an_exit_code_of_its_own(stage, watching):
    one_rank(stage)
    entry = registry.read_entries()[0]
    stage.close()
    registry.write_entry(entry)
    code, lines, err = watching("train").ends()

    assert (code, lines) == (4, [])
    assert f"does not answer on port {entry.port}" in err


@pytest.mark.parametrize(
    ("job", "code", "events"),
    [(finished, 0, ["ended"]), (killed, 1, ["appeared", "ended"])],
    ids=["well", "badly"],
)
def test_a_job_that_has_already_ended_is_reported(home, watching, job, code, events):
    write_ended(job())
    found, lines, err = watching("train", "--json").ends()

    assert (found, err) == (code, "")
    assert [json.loads(line)["event"] for line in lines] == events


def test_an_ended_job_that_left_nothing_is_no_contact(home, watching):
    entry = write_ended(finished())
    registry.last_state_path(entry.job, entry.run).unlink()
    code, lines, err = watching("train").ends()

    assert (code, lines) == (3, [])
    assert "left no last state" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["nosuch"], 3, "no job named nosuch"),
        ([], 3, "no live job found"),
        (["--on-critical", "no-such-program"], 2, "there is no program"),
    ],
)
def test_a_job_that_cannot_be_watched_is_reported_at_once(home, watching, words, code, reason):
    found, lines, err = watching(*words).ends()

    assert (found, lines) == (code, [])
    assert reason in err
    assert "Traceback" not in err


def test_it_waits_for_a_job_that_has_not_come_yet(home, watching):
    watch = watching("train", "--wait")
    with closing(Stage(home)) as stage:
        stage.rank()
        event = watch.event()

    assert without_since(event) == "joined rank 0 of 2"
