"""Processes that were started without ddtop: the user gives their pids, and py-spy reads them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ddtop import thresholds
from ddtop.cli import outside
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from ddtop.feeds.outside import targets
from ddtop.feeds.outside.look import OutsideFeed
from ddtop.follow import looks
from ddtop.follow.live import LiveSource
from ddtop.follow.look import Look
from ddtop.follow.looks import settle
from ddtop.model.facts import PeerWait
from ddtop.policy import POLICY
from ddtop.present.stacks import Shape
from ddtop.procfs import children
from ddtop.relay.processes import pyspy
from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.cli.commands import ddtop
from tests.cli.outside import script_in, started
from tests.feeds.launchers import SCRIPT, torchrun
from tests.jobs import trained
from tests.ports import free_port

NEEDS_PY_SPY = pytest.mark.skipif(
    pyspy.find() is None, reason="py-spy is not installed: pip install 'ddtop[native]'"
)
TORCHRUN = """
import os, subprocess, sys
ranks = []
for rank in range(3):
    environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
    command = [sys.executable, sys.argv[1]]
    pipe = subprocess.PIPE
    one = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
    one.stdout.readline()
    ranks.append(one)
print("ready", flush=True)
sys.stdin.read()
for one in ranks:
    one.communicate()
"""


@pytest.fixture
def script(tmp_path):
    return script_in(tmp_path)


@contextmanager
def two_ranks(script):
    with (
        started(script, RANK="0", WORLD_SIZE="2") as zero,
        started(script, RANK="1", WORLD_SIZE="2") as one,
    ):
        yield zero, one


def skip_without_right(done):
    if "no right to look" in done.stdout:
        pytest.skip(done.stdout)
    return done


def test_a_script_stands_for_the_launcher_that_it_has_started(home, tmp_path):
    """It was taken for a rank that waits for its child."""
    script = tmp_path / "submit.py"
    script.write_text(SCRIPT)
    with torchrun(tmp_path, "first", free_port(), by=(script,)) as pid:
        (launcher,) = children(pid)
        done = ddtop("diagnose", "--pid", pid)

    assert f"no rank of pid {launcher} yet" in done.stdout


# -- stacks --pid


@NEEDS_PY_SPY
def test_ranks_are_known_from_their_environment_and_merged(home, script):
    """The usual hang: one rank is not in the collective."""
    with two_ranks(script) as (zero, one):
        done = skip_without_right(ddtop("stacks", "--pid", f"{one.pid},{zero.pid}", "--json"))
        assert zero.poll() is one.poll() is None

    shown = json.loads(done.stdout)
    assert (done.returncode, shown["schema"], shown["job"]) == (0, "ddtop.stacks/1", None)
    assert shown["unanswered"] == []
    innermost = {tuple(group["ranks"]): group["frames"][0]["function"] for group in shown["groups"]}
    assert innermost == {(0,): "all_reduce", (1,): "load_image"}
    assert {group["method"] for group in shown["groups"]} == {"py-spy"}


@NEEDS_PY_SPY
def test_a_launcher_stands_for_its_ranks(home, script, tmp_path):
    """`pgrep torchrun` prints one number."""
    launcher = tmp_path / "torchrun"
    launcher.write_text(TORCHRUN)
    with started(launcher, script) as torchrun:
        done = skip_without_right(ddtop("stacks", "--pid", torchrun.pid))

    assert done.returncode == 0
    assert f"pid {torchrun.pid} (torchrun) stands for its 3 ranks: pid" in done.stdout
    assert "3 ranks asked, 3 answered (3 by py-spy)" in done.stdout
    assert "[1]" in done.stdout
    assert "[0,2]" in done.stdout
    assert "load_image" in done.stdout


@NEEDS_PY_SPY
def test_processes_without_a_rank_are_shown_by_their_pid(home, script):
    """An invented rank number would be believed."""
    with started(script) as process:
        done = skip_without_right(ddtop("stacks", "--pid", process.pid))

    assert done.returncode == 0
    assert f"no rank in the environment of pid {process.pid}" in done.stdout
    assert "1 process asked, 1 answered" in done.stdout


@NEEDS_PY_SPY
def test_a_process_that_is_not_python_is_unanswered_and_described(home):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        done = ddtop("stacks", "--pid", process.pid)

    assert done.returncode == 1
    assert f"pid {process.pid}: sleeping" in done.stdout
    assert "0 children" in done.stdout


@NEEDS_PY_SPY
def test_a_process_that_is_gone_is_one_that_did_not_answer(home, script):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with started(script, RANK="0") as process:
        done = skip_without_right(ddtop("stacks", "--pid", f"{process.pid},{gone.pid}", "--json"))

    unanswered = json.loads(done.stdout)["unanswered"]
    assert done.returncode == 1
    assert unanswered == [{"rank": None, "pid": gone.pid, "why": f"there is no process {gone.pid}"}]


@pytest.mark.parametrize("command", ["stacks", "attach", "diagnose", "status"])
@pytest.mark.parametrize(
    ("pids", "code", "text"),
    [
        ("twelve", 2, "'twelve' is not a process id"),
        ("", 2, "--pid takes 1 to"),
        ("5-3", 2, "not a range"),
        ("0", 2, "not a process id"),
        ("999999999", 3, "there is no process 999999999"),
    ],
)
def test_pids_that_make_no_sense_end_with_a_sentence(home, command, pids, code, text):
    done = ddtop(command, "--pid", pids)

    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["stacks", "attach", "diagnose", "status"])
def test_a_job_and_pids_do_not_go_together(home, command):
    done = ddtop(command, "llama", "--pid", "12", exits=2)

    assert "--pid takes no job name" in done.stderr


def test_without_the_right_to_trace_the_command_that_works_is_named(
    home, script, tmp_path, monkeypatch, capsys
):
    """Yama on Ubuntu allows only parents to trace a process."""
    fake = tmp_path / "py-spy"
    fake.write_text(
        "#!/bin/sh\n"
        "echo 'Permission Denied: Try running again with elevated permissions' >&2\n"
        "exit 1\n"
    )
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with started_by(sys.base_prefix, script) as process:
        code = outside.stacks_of(str(process.pid), native=False, as_json=False, shape=Shape())

    shown = capsys.readouterr().out
    assert code == 1
    # Lines are wrapped where the terminal ends.
    assert f"no right to look into pid {process.pid}" in " ".join(shown.split())
    assert "what /proc says about those without stacks" in shown


@contextmanager
def started_by(prefix, script):
    """As `started`, with a Python that the test has not replaced."""
    python = os.path.join(prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    with subprocess.Popen(
        [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline()
        yield process


# -- attach --pid


def test_without_a_terminal_attach_prints_the_table_and_never_says_ok(home, script):
    """Without sequence numbers a hang looks like a healthy job."""
    with two_ranks(script) as (zero, one):
        done = ddtop("attach", "--pid", f"{zero.pid},{one.pid}")

    assert done.returncode == 0
    assert "started without DDTOP=1: judged by stacks" in done.stdout
    assert "2/2 ranks" in done.stdout
    assert "ok" not in done.stdout.split()
    assert "ok:" not in done.stdout


@contextmanager
def watching(*processes):
    """These processes as a source, with the right to act on them."""
    found = targets.find(",".join(str(process.pid) for process in processes))
    feed = OutsideFeed(found.found, "pid", found.notes)
    try:
        yield LiveSource(feed, controller=True)
    finally:
        feed.end()


async def _until(source, holds):
    """The first look for which the condition holds."""
    end = time.monotonic() + 40
    while (look := source.look()).snapshot is None or not holds(look):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    return look


def until(source, holds, act=None):
    """Follows the source until the condition holds. Returns the look, and what `act` returned once
    there was a first one."""

    async def run():
        running = asyncio.ensure_future(source.run())
        await _until(source, lambda _: True)
        said = await act() if act is not None else None
        look = await _until(source, holds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return look if act is None else (look, said)

    return asyncio.run(run())


@NEEDS_PY_SPY
def test_places_come_from_py_spy_without_a_pause(home, script):
    with two_ranks(script) as (zero, one), watching(zero, one) as source:
        look = until(
            source,
            lambda look: (
                all(rank.reported.place for rank in look.snapshot.ranks)
                or "no right" in look.verdict.calm
            ),
        )

    if "no right" in look.verdict.calm:
        pytest.skip(look.verdict.calm)
    places = [rank.reported.place for rank in look.snapshot.ranks]
    assert [place.function for place in places] == ["all_reduce", "load_image"]
    assert look.verdict.health == "unknown"
    assert re.search(r"places from py-spy --nonblocking every [12] s", look.verdict.calm)


def test_a_stopped_rank_is_a_finding_from_outside_too(home, script):
    with two_ranks(script) as (zero, one), watching(zero, one) as source:
        os.kill(one.pid, signal.SIGSTOP)
        look = until(source, lambda look: look.verdict.findings)

    assert [(finding.kind, finding.ranks) for finding in look.verdict.findings] == [
        ("rank-stopped", (1,))
    ]


def test_a_rank_that_is_killed_is_named(home, script):
    with two_ranks(script) as (zero, one), watching(zero, one) as source:
        look, said = until(
            source,
            lambda look: look.verdict.findings,
            lambda: source.send_signal(1, signal.SIGKILL),
        )

    assert said == f"SIGKILL sent to rank 1 (pid {one.pid})"
    assert [(finding.kind, finding.ranks) for finding in look.verdict.findings] == [
        ("rank-killed", (1,))
    ]


def test_a_job_whose_end_was_seen_has_ended(home, script):
    with two_ranks(script) as (zero, one), watching(zero, one) as source:
        zero.communicate()
        one.communicate()
        look = until(source, lambda look: look.snapshot.ended)

    assert look.verdict.calm.startswith("ended: ")


def test_what_was_seen_from_outside_can_be_seen_again(home, script):
    """Time travel, and the marks of what happened."""

    async def kill_and_go_back(source):
        running = asyncio.ensure_future(source.run())
        await _until(source, lambda look: look.span and look.span[1] - look.span[0] > 1e9)
        await source.send_signal(1, signal.SIGKILL)
        now = await _until(source, lambda look: look.verdict.findings and len(look.marks) == 3)
        source.travel(now.span[0] + 500_000_000)
        past = await _until(source, lambda look: look.travelled)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return now, past

    with two_ranks(script) as (zero, one), watching(zero, one) as source:
        now, past = asyncio.run(kill_and_go_back(source))

    assert [what for _, what in now.marks] == ["gone", "critical", "shown"]
    assert not past.verdict.findings
    assert past.snapshot.time_unix_ns < now.snapshot.time_unix_ns


@NEEDS_PY_SPY
def test_a_dump_answers_for_every_rank_that_was_asked(home, script):
    with two_ranks(script) as (zero, one), watching(zero, one) as source:
        look, said = until(
            source,
            lambda look: look.dump is not None and look.dump.done,
            lambda: source.ask_stacks(()),
        )

    assert said is None
    assert (look.dump.expected, look.dump.answered) == (2, 2)
    taken = [rank.dump.stacks.taken_unix_ns for rank in look.snapshot.ranks]
    assert min(taken) >= look.dump.asked_unix_ns


def test_what_py_spy_left_out_is_noted_below():
    frames = (ThreadStack((StackFrame("f", "a.py", 1),), main=True),)
    told = [
        Stacks("r", 0, 11, 1, "py-spy", frames, "without frames of C code"),
        Stacks("r", 1, 2**30, 1, why="gone"),
    ]

    assert outside.closing_lines(told) == ["note: pid 11: without frames of C code"]


class AsksNccl:
    """Its NCCL answers at the sixth look, which is judged three looks later."""

    over = False

    def judged(self, _look):
        return True

    def __init__(self):
        job = trained(2)
        self.snapshot, self.looks = job.snapshot(), 0
        self.shared = Finding(
            Kind.GPU_SHARED, WARNING, (0, 1), (), 0, "ranks 0,1 share GPU 0 of vm", (), ""
        )
        self.named = Finding(
            Kind.NOT_IN_COLLECTIVE, CRITICAL, (1,), (0,), 0, "rank 1 is asleep", (), ""
        )

    @property
    def asks(self):
        return self.looks < 6

    async def run(self):
        await asyncio.Event().wait()

    def look(self):
        self.looks += 1
        found = (self.shared,) if self.looks < 9 else (self.named, self.shared)
        snapshot = replace(self.snapshot, time_unix_ns=time.time_ns())
        return Look(snapshot, Verdict("warning", found, ""))


def test_a_finding_that_explains_no_wait_does_not_end_the_look():
    """Seen on an H100: three ranks shared a GPU, so the command did not wait for NCCL's answer."""
    look = asyncio.run(settle(asks := AsksNccl(), asks, 0.0))

    assert [one.kind for one in look.verdict.findings] == [Kind.NOT_IN_COLLECTIVE, Kind.GPU_SHARED]


class WaitsFor(AsksNccl):
    """A rank has waited for another so long at the first look. The third look says why."""

    asks = False

    def __init__(self, seconds):
        super().__init__()
        self.since_unix_ns = time.time_ns() - int(seconds * 1e9)

    def look(self):
        look = super().look()
        wait = PeerWait(0, "recv", 1, None, self.since_unix_ns, (1,))
        found = (self.named,) if self.looks == 3 else ()
        return Look(replace(look.snapshot, peer_waits=(wait,)), Verdict("ok", found, ""))


@pytest.mark.parametrize(("own", "looks"), [({}, 1), ({"deadlock.wait_s": 10.0}, 3)])
def test_a_wait_is_looked_at_until_every_rule_has_judged_it(monkeypatch, own, looks):
    monkeypatch.setattr(thresholds, "_chosen", POLICY.with_limits(own))
    source = WaitsFor(8.0)
    asyncio.run(settle(source, source, 0.0))

    assert source.looks == looks


class Stands(AsksNccl):
    """No rank has moved for so long at the first look; at the third they have, or it is judged."""

    asks = False

    def __init__(self, seconds, then):
        super().__init__()
        self.since_unix_ns, self.then = time.time_ns() - int(seconds * 1e9), then

    def look(self):
        look = super().look()
        since = None if self.looks >= 3 and self.then == "moves" else self.since_unix_ns
        found = (self.named,) if self.looks >= 3 and self.then == "judged" else ()
        snapshot = replace(look.snapshot, still_since_unix_ns=since)
        return Look(snapshot, Verdict("ok", found, ""))


@pytest.mark.parametrize(
    ("stood_s", "then", "looks"),
    [(8.0, "moves", 3), (8.0, "judged", 3), (21.6, "nothing", 1), (21.2, "nothing", 3)],
)
def test_a_job_in_which_no_rank_moves_is_looked_at_until_it_moves_or_is_judged(
    stood_s, then, looks
):
    """MPI ranks that spin: `diagnose --pid` said "judged after 20 s" at each call, for ever."""
    source = Stands(stood_s, then)
    asyncio.run(settle(source, source, 0.0, on_stand=lambda: None))

    assert source.looks == looks


def test_that_a_standing_job_is_looked_at_for_longer_is_said_once(monkeypatch):
    monkeypatch.setattr(looks, "TOLD_S", 0.2)
    said, source = [], Stands(20.5, "nothing")
    asyncio.run(settle(source, source, 0.0, on_stand=lambda: said.append(source.looks)))

    assert said == [2]


def test_a_command_that_shows_a_state_does_not_wait_for_the_verdict_on_a_standing_job():
    source = Stands(8.0, "nothing")
    asyncio.run(settle(source, source, 0.0))

    assert source.looks == 1
