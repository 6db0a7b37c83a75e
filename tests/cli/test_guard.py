"""When `ddtop watch` acts, how often and in which order; and what it refuses at its start."""

import json
import time
from dataclasses import replace

import pytest

from ddtop import start_python
from ddtop.cli import cli
from ddtop.cli.actions import (
    SCHEDULER_VARIABLES,
    Actions,
    JobGuard,
    OnCritical,
    Rules,
    scheduler_of,
)
from ddtop.cli.errors import CommandError
from ddtop.cli.options import SECONDS
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.present.events import APPEARED, CLEARED, ENDED, appeared, event_json

DEADLINE_S = 15.0


class Sink:
    """A stand-in for a webhook or a command. It keeps what it was given."""

    def __init__(self):
        self.events = []

    def put(self, event):
        self.events.append(event)

    def start(self, data, kind, environment):
        self.events.append((json.loads(data), environment))

    def look(self):
        """Does nothing."""

    def leave(self):
        """Does nothing."""


class Scene:
    def __init__(self, **rules):
        self.now, self.hook, self.command = 100.0, Sink(), Sink()
        actions = Actions(command=self.command, webhook=self.hook)
        self.guard = JobGuard("train", Rules(**rules), actions, print, clock=lambda: self.now)

    def happens(self, event, kind=Kind.NOT_IN_COLLECTIVE, ranks=(2,), severity=CRITICAL):
        finding = Finding(kind, severity, ranks, (), 0, "rank 2 sleeps")
        change = replace(appeared(finding, 0), event=event)
        if event == ENDED:
            change = replace(change, finding=None)
        self.guard.take(change, event_json(change, "train"))

    def passes(self, seconds):
        self.now += seconds
        self.guard.look()

    @property
    def done(self):
        return [event["event"] for event in self.hook.events]


def test_a_critical_finding_is_acted_on_at_once_and_its_end_is_reported():
    scene = Scene()
    scene.happens(APPEARED)
    scene.happens(CLEARED)

    assert scene.done == ["appeared", "cleared"]
    assert len(scene.command.events) == 1


def test_a_warning_is_not_acted_on():
    scene = Scene()
    scene.happens(APPEARED, severity=WARNING)
    scene.happens(CLEARED, severity=WARNING)

    assert scene.done == []


def test_it_must_have_stood_for_so_long():
    scene = Scene(for_s=30)
    scene.happens(APPEARED)
    scene.passes(29)
    assert scene.done == []
    scene.passes(2)
    assert scene.done == ["appeared"]


def test_what_is_over_before_that_is_never_reported():
    scene = Scene(for_s=30)
    scene.happens(APPEARED)
    scene.passes(20)
    scene.happens(CLEARED)
    scene.passes(60)

    assert scene.done == []


def test_the_end_of_the_job_does_not_wait():
    """A crash ends the job before the finding has stood for `for_s`."""
    scene = Scene(for_s=30)
    scene.happens(APPEARED, kind=Kind.RANK_CRASHED)
    scene.happens(ENDED)

    assert scene.done == ["appeared", "ended"]


def test_after_one_act_there_is_a_pause_for_findings_of_that_kind():
    scene = Scene(cooldown_s=600)
    scene.happens(APPEARED)
    scene.happens(APPEARED, ranks=(3,))
    scene.happens(APPEARED, kind=Kind.HOST_LOST)
    assert [event["finding"]["kind"] for event in scene.hook.events] == [
        "not-in-collective",
        "host-lost",
    ]
    # A finding that still stands after the pause is acted on again.
    scene.passes(601)
    assert [event["finding"]["ranks"] for event in scene.hook.events] == [[2], [2], [3]]


def test_once_is_once():
    scene = Scene(once=True)
    scene.happens(APPEARED)
    scene.happens(CLEARED)
    scene.happens(APPEARED, kind=Kind.HOST_LOST)

    assert scene.done == ["appeared", "cleared"]


def test_a_command_has_the_event_on_its_input_and_in_its_environment():
    scene = Scene()
    scene.guard.scheduler = {"SLURM_JOB_ID": "4711"}
    scene.happens(APPEARED)

    ((event, environment),) = scene.command.events
    assert event["finding"]["kind"] == environment["DDTOP_EVENT_KIND"] == "not-in-collective"
    assert environment["DDTOP_EVENT_RANKS"] == "2"
    assert environment["DDTOP_EVENT_JOB"] == "train"
    assert environment["SLURM_JOB_ID"] == "4711"


def test_the_last_command_is_run_without_a_shell_and_gets_the_id_of_the_batch_job(tmp_path):
    said, out = [], tmp_path / "out"
    program = tmp_path / "then"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{out}\n')
    program.chmod(0o700)
    words = f"{program} requeue $SLURM_JOB_ID ${{PBS_JOBID}}.x $SLURM_JOB_IDS '$X'"
    last = OnCritical(words, said.append, "--then", SCHEDULER_VARIABLES)

    last.start(b"{}", "host-lost", {"SLURM_JOB_ID": "47", "PBS_JOBID": "1[2].head", "X": "a b"})
    last.leave()

    assert (said, out.read_text()) == ([], "requeue|47|1[2].head.x|$SLURM_JOB_IDS|$X|")


def test_a_variable_that_nobody_set_stops_the_command(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    said = []
    last = OnCritical("true $SLURM_JOB_ID", said.append, "--then", SCHEDULER_VARIABLES)
    last.start(b"{}", "host-lost")

    assert said == ["--then true was not run for host-lost: $SLURM_JOB_ID is not set"]


def test_the_batch_job_of_the_ranks_counts_not_that_of_the_watcher(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")

    assert scheduler_of({"SLURM_JOB_ID": "2", "HOME": "/"})["SLURM_JOB_ID"] == "2"
    assert scheduler_of({})["SLURM_JOB_ID"] == "1"


def test_a_report_that_cannot_be_made_holds_the_event_up_no_further(home, tmp_path):
    """No such job exists: the report ends with an error, and the event is sent without it."""
    said, hook = [], Sink()
    guard = JobGuard("none", Rules(), Actions(webhook=hook, report=tmp_path), said.append)
    finding = Finding(Kind.HOST_LOST, CRITICAL, (), (), 0, "x")
    change = appeared(finding, 0)
    guard.take(change, event_json(change, "none"))
    assert hook.events == []

    end = time.monotonic() + DEADLINE_S
    while not hook.events:
        assert time.monotonic() < end
        guard.look()
        time.sleep(0.05)
    assert said == ["--report: exit code 3; the event is sent without it"]
    assert "report" not in hook.events[0]


@pytest.mark.parametrize(("html", "ending"), [(False, ".md"), (True, ".html")])
def test_the_report_is_a_page_where_that_was_asked_for(home, tmp_path, monkeypatch, html, ending):
    begun = []
    monkeypatch.setattr(start_python, "module", lambda *words: begun.append(words) or ["true"])
    hook = Sink()
    guard = JobGuard("x", Rules(), Actions(None, hook, report=tmp_path, html=html), print)
    change = appeared(Finding(Kind.HOST_LOST, CRITICAL, (), (), 0, "x"), 0)
    guard.take(change, event_json(change, "x"))
    guard.leave()

    ((*_, path), more) = (begun[0][:5], begun[0][5:])
    assert (path.endswith(ending), more) == (True, ("--html",) if html else ())
    assert hook.events[0]["report"] == path


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--webhook", "example.org"), "takes an http or https URL, not 'example.org'"),
        (("--webhook", "http://a", "--webhook-file", "b"), "cannot be used together"),
        (("--webhook", "http://am:9093/api/v2/alerts"), "let Prometheus scrape ddtop exporter"),
        (("--webhook-file", "/none"), "--webhook-file /none: No such file"),
        (("--report", "/none"), "there is no such folder"),
        (("--report", "/proc"), "--report /proc"),
        (("--html", "--once"), "give --report too"),
        (("--then", "no-such-program x"), "--then: there is no program"),
        (("--then", ""), "--then needs a command"),
        (("--for", "30s"), "there is nothing to do"),
        (("--once",), "there is nothing to do"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_watched(home, words, text):
    with pytest.raises(CommandError) as raised:
        cli.main(["watch", *words], standalone_mode=False)

    assert raised.value.code == 2
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600), ("2", 2)])
def test_times_are_understood(text, seconds):
    assert SECONDS.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "5 m", "1e3", "1.2.3"])
def test_a_time_that_is_none_is_refused(text):
    import click

    with pytest.raises(click.UsageError, match="is not a duration"):
        SECONDS.convert(text, None, None)
