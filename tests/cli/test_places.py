"""Commands on jobs of other hosts, and on processes that were started without ddtop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import click
import pytest

from ddtop.cli.place import typed_command
from ddtop.feeds.bridge import SshTarget
from ddtop.feeds.several import SeveralFeed
from ddtop.relay.processes import pyspy
from ddtop.wire.records import Order
from tests.cli.commands import ddtop, finished
from tests.cli.elsewhere import over
from tests.cli.outside import hanging_script, started
from tests.relay.stage import DEADLINE_S
from tests.waiting import until

ROOM = {"DDTOP_SSH_MIB": "4096"}
"""What another host may say is limited by the memory of this process, which has all tests in it."""
NEEDS_PY_SPY = pytest.mark.skipif(pyspy.find() is None, reason="py-spy is not installed")


def test_the_command_there_has_what_was_typed_but_for_the_way_there():
    found = []

    @click.command("report")
    @click.argument("job", required=False)
    @click.option("-f", "--for", "seconds", type=float, default=2.0)
    @click.option("--json", "as_json", is_flag=True)
    @click.option("--no-source", is_flag=True)
    @click.option("--ssh", expose_value=False)
    @click.pass_context
    def command(context, **_):
        found.append(typed_command(context))

    for words in ([], ["train", "--ssh", "a", "--json"], ["-f", "3", "--no-source"]):
        command.main(words, standalone_mode=False)

    assert found == [["report"], ["report", "--json"], ["report", "--for=3.0", "--no-source"]]


def test_events_of_a_job_on_another_host_are_printed_here(there, here, monkeypatch, watching):
    for name, value in there.environment.items():
        monkeypatch.setenv(name, value)
    watch = watching("--ssh", "there", "--json")
    joined = json.loads(watch.line())
    here.children[0].communicate(b"\n")
    lines = [json.loads(line) for line in watch.ends()[1]]

    assert (joined["event"], joined["job"], joined["ranks"]) == ("joined", "train", [0])
    assert lines[-1]["event"] == "ended"


def test_a_job_that_has_ended_there_is_not_watched(stand_in, home):
    over(finished())
    done = ddtop("watch", "train-47", "--ssh", "there", **stand_in.environment)

    assert (done.returncode, done.stdout) == (3, "")
    assert "train-47 has ended; what it left: ddtop diagnose --ssh there train-47" in done.stderr


def test_a_signal_reaches_a_rank_on_another_host(there, here):
    pid = here.children[0].pid
    done = ddtop(
        *("signal", "train", "--rank", "0", "TERM", "--yes", "--ssh", "there"),
        **there.environment | ROOM,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"sent SIGTERM to rank 0 (pid {pid})\n"
    assert here.children[0].wait(DEADLINE_S) == -signal.SIGTERM


def test_a_signal_goes_to_the_job_of_a_hub_only_by_its_name(here):
    hub = f"127.0.0.1:{here.server._link.port}"
    wrong = ddtop("signal", "eval", "--rank", "0", "TERM", "--yes", "--hub", hub)
    alive = here.children[0].poll() is None
    done = ddtop("signal", "train", "--rank", "0", "TERM", "--yes", "--hub", hub)

    assert (wrong.returncode, wrong.stdout, alive) == (2, "", True)
    assert f"the relay at {hub} is that of train, not of eval" in wrong.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_a_finding_is_muted_for_all_who_look_there(stand_in, here):
    done = ddtop(
        *("mute", "train", "straggler", "--for", "10m", "--because", "it's known; $(x)"),
        *("--ssh", "there"),
        **stand_in.environment | ROOM,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("muted: ")
    muted = here.heard(here.viewer(), lambda one: isinstance(one, Order) and one.mutes)
    assert muted[-1].mutes[0].because == "it's known; $(x)"


def test_a_report_about_a_job_there_is_written_here(stand_in, here, tmp_path):
    target = tmp_path / "report.md"
    done = ddtop("report", "--ssh", "there", "-o", target, **stand_in.environment)
    shown = ddtop("report", "train", "--ssh", "there", "-o", "-", **stand_in.environment)

    assert (done.returncode, shown.returncode) == (0, 0)
    assert done.stdout.startswith(f"wrote {target} (")
    for text in (target.read_text(), shown.stdout):
        assert "train" in text.splitlines()[0]
        assert "## Verdict" in text


def test_the_page_about_a_job_there_is_written_here(stand_in, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ddtop("report", "--ssh", "there", "--html", exits=0, **stand_in.environment)

    (path,) = tmp_path.glob("*.html")
    assert path.read_text().startswith("<!doctype html>\n")


def test_a_job_there_is_told_in_lines(stand_in, here):
    done = subprocess.run(
        [sys.executable, "-m", "ddtop", "attach", "--plain", "--ssh", "there"],
        env={**os.environ, **stand_in.environment},
        input=b"why\nquit\n",
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().count("train  1/2 ranks") == 2


def test_the_report_there_has_all_that_was_typed_but_the_file(home, monkeypatch):
    asked = []

    def run_there(_place, words):
        asked.append(words)
        return 3

    monkeypatch.setattr("ddtop.cli.written_report.run_there", run_there)
    options = ("--wait", "--wait-limit", "20s", "--no-source", "-o", "here.md")
    ddtop("report", "train", "--ssh", "there", *options, exits=3)

    assert sorted(asked[0][1:-2]) == ["--no-source", "--wait", "--wait-limit=20"]
    assert (asked[0][0], asked[0][-2:]) == ("report", ["-o", "-"])


def test_the_jobs_of_another_host_are_listed(stand_in, here):
    done = ddtop("jobs", "--json", "--ssh", "there", **stand_in.environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert [one["job"] for one in json.loads(done.stdout)["jobs"]] == ["train"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("signal", "--rank", "0", "--pid", "1", "--", "x", "TERM"), "by hand: kill -SIGNAL PID"),
        (("signal", "--rank", "0", "--ssh", "a,b", "--", "x", "TERM"), "acts through a relay"),
        (
            ("mute", "x", "straggler", "--for", "1m", "--because", "y", "--pid", "1"),
            "mute acts through a relay, and a job that was started without ddtop has none",
        ),
        (("jobs", "--ssh", "a", "--hub", "b:1"), "--hub and --slurm cannot be used together"),
        (("watch", "x", "--ssh", "a,b"), "--ssh takes no job name: it names hosts"),
        (("watch", "--locals"), "--locals needs --pid"),
        (("watch", "--pid", "x"), "'x' is not a process id"),
        (("stacks", "--ssh", "a,b", "--native"), "act on a rank, and --ssh a,b only looks"),
    ],
)
def test_what_a_place_cannot_do_is_refused_with_the_reason(home, words, text):
    done = ddtop(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


@NEEDS_PY_SPY
@pytest.mark.job
def test_processes_without_ddtop_are_watched_until_they_end(home, tmp_path, watching):
    script = hanging_script(tmp_path)
    with (
        started(script, RANK="0", WORLD_SIZE="2") as first,
        started(script, RANK="1", WORLD_SIZE="2") as second,
    ):
        watch = watching("--pid", f"{first.pid},{second.pid}")
        joined = watch.event()
        appeared = watch.event()
        for one in (first, second):
            one.kill()
        code, lines, _ = watch.ends()

    assert joined.startswith("joined")
    assert appeared.startswith("appeared")
    assert "not-in-collective" in appeared
    assert "ended" in lines[-1]
    assert code == 1


def test_a_host_of_several_that_is_not_reached_ends_the_watch(home, monkeypatch):
    monkeypatch.setattr("ddtop.cli.watching.FIRST_S", 1.0)
    done = ddtop("watch", "--ssh", "gone,away", DDTOP_SSH="false")

    assert (done.returncode, done.stdout) == (3, "")
    assert "gone: " in done.stderr
    assert "away: " in done.stderr


def test_hosts_that_are_tried_again_and_again_leave_no_descriptor(monkeypatch):
    monkeypatch.setenv("DDTOP_SSH", "false")
    monkeypatch.setattr("ddtop.feeds.several.AGAIN_S", 0.0)
    feed = SeveralFeed([SshTarget("gone"), SshTarget("away")])

    async def tried():
        await feed.connect(controller=False)
        while not feed.over:
            await asyncio.sleep(0.01)
        return len(os.listdir("/proc/self/fd"))

    async def counts():
        return [await tried() for _ in range(4)]

    try:
        counted = asyncio.run(counts())
    finally:
        feed.end()

    assert len(set(counted)) == 1


def test_nothing_is_left_of_a_watch_through_ssh(stand_in, here, monkeypatch, watching):
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    watch = watching("--ssh", "there", "train")
    watch.line()
    watch.process.send_signal(signal.SIGINT)

    assert watch.ends()[0] == 130
    pids = ",".join(map(str, stand_in.bridges))
    # A bridge ends as it finds its pipe closed.
    until(lambda: subprocess.run(["ps", "-o", "pid=", "-p", pids], check=False).returncode == 1)
