"""`attach --ssh` end to end: a relay on the other host, a dashboard here, ssh between them."""

import os
import shlex
import signal
import sys
from contextlib import ExitStack, closing

import msgspec
import psutil
import pytest

from ddtop import registry
from ddtop.feeds.route import request
from ddtop.link.ssh_pipe import Pipe
from ddtop.wire import bridge, frames
from ddtop.wire.records import Command, Reply
from tests import hosts
from tests.cli.commands import ddtop_process, finished, killed
from tests.cli.elsewhere import attach, over
from tests.relay.stage import DEADLINE_S, Stage, sees_ranks
from tests.ui.terminals import Terminal
from tests.waiting import until

STOPPED = "rank 0 has been stopped"
THERE = "stopped"
"""On the screen until rank 0 has been stopped for two seconds."""


@pytest.fixture
def stage(home):
    """A job on the other host with a stopped rank 0."""
    found = Stage(home)
    found.rank()
    found.heard(found.viewer(), sees_ranks)
    found.children[-1].send_signal(signal.SIGSTOP)
    until(registry.read_entries)
    yield found
    found.close()


@pytest.fixture
def dashboard(there):
    """Starts the command on a terminal, and ends it."""

    def start(*words):
        program = f"import sys; sys.argv = {['ddtop', 'attach', *words]!r}\n"
        program += "from ddtop.cli import main\nmain()"
        one = Terminal(program, size=(100, 24), TERM="xterm-256color", **there.environment)
        return ends.enter_context(closing(one))

    with ExitStack() as ends:
        yield start


def its_ssh(terminal):
    """The ssh processes of a dashboard."""
    (found,) = psutil.Process(terminal.process.pid).children()
    return found


def gone(pids):
    """Wait until all of them have ended."""
    until(lambda: not any(registry.start_ticks(pid) is not None for pid in pids))
    return True


def test_a_dashboard_that_loses_its_ssh_reports_it_connects_again_and_ends_it(
    there, stage, dashboard
):
    terminal = dashboard("--ssh", "there")
    terminal.until(STOPPED)
    there.down()
    there.cut(its_ssh(terminal))
    terminal.until("Connection refused; trying again")
    lines = terminal.until(STOPPED)
    there.up()
    terminal.when(
        lambda: (
            not any("trying again" in line for line in terminal.screen.display)
            and any(STOPPED in line for line in terminal.screen.display)
        ),
        "the verdict, live again",
    )
    second = its_ssh(terminal).pid
    terminal.press("\x03")

    assert "silent for " in lines[0]
    assert terminal.ended() == 0
    assert len(there.bridges) == 2
    assert gone([second, *there.bridges])


def test_a_dashboard_that_is_killed_leaves_nothing_behind_on_either_side(there, stage, dashboard):
    terminal = dashboard("--ssh", "there", "train")
    terminal.until(STOPPED)
    ssh = its_ssh(terminal).pid
    terminal.signal(signal.SIGKILL)

    assert terminal.ended() == -signal.SIGKILL
    assert gone([ssh, *there.bridges])


@pytest.mark.parametrize("there", [hosts.FAKE], indirect=True)
def test_several_live_jobs_there_are_listed_and_the_list_returns(there, stage, dashboard):
    entry = registry.read_entries()[0]
    registry.write_entry(msgspec.structs.replace(entry, job="another", run="r2", started_unix_ns=0))
    terminal = dashboard("--ssh", "there")
    terminal.until("2 live jobs")

    def asked():
        shown = "\n".join(terminal.screen.display)
        return "another" in shown and "asking" not in shown

    lines = terminal.when(asked, "how they are doing")
    terminal.until(STOPPED)
    terminal.press("\r")
    terminal.when(lambda: "live jobs" not in terminal.screen.display[0], "the dashboard")
    terminal.until(STOPPED)
    terminal.press("J")
    terminal.until("2 live jobs")
    terminal.press("q")

    assert {line.split()[0] for line in lines[3:5]} == {"train", "another"}
    assert not any("no answer" in line for line in lines)
    assert terminal.ended() == 0
    assert len(there.bridges) == 1
    assert gone(there.bridges)


def test_without_a_terminal_the_status_table_comes_over_ssh(there, stage):
    found = attach(there, "--ssh", "there")

    assert found.returncode == 0
    assert THERE in found.stdout
    assert gone(there.bridges)


def test_text_of_the_login_before_the_greeting_is_ignored(there, stage, dashboard):
    noise = "echo 'Welcome to ddtop-bridge {'; printf 'No end of line'; echo 'a warning' >&2"
    terminal = dashboard("--ssh", "there", "--remote", there.says(noise))

    assert "Welcome" not in "\n".join(terminal.until(STOPPED))


def test_a_host_behind_a_jump_host_is_reached(there, stage):
    """ssh itself handles ProxyJump. This checks that ddtop does not get in its way."""
    if not isinstance(there, hosts.Sshd):
        pytest.skip("a stand-in does not jump")
    found = attach(there, "--ssh", "far")

    assert (found.returncode, THERE in found.stdout) == (0, True), found.stdout


def test_a_job_that_is_over_is_shown_from_its_journal_there(there, home):
    entry, last = over(killed())
    last.rename(registry.journal_path(entry.job, entry.run, entry.sender))
    found = attach(there, "--ssh", "there", "train")

    assert found.returncode == 0, found.stderr
    assert "was killed by SIGKILL" in found.stdout
    assert gone(there.bridges)


@pytest.mark.parametrize("there", [hosts.FAKE], indirect=True)
def test_the_user_can_go_back_in_the_journal_of_a_job_that_is_over(there, home, dashboard):
    entry, last = over(killed())
    last.rename(registry.journal_path(entry.job, entry.run, entry.sender))
    terminal = dashboard("--ssh", "there", "train-47")
    terminal.until("was killed by SIGKILL")
    ended = there.bridges
    assert gone(ended)
    terminal.press("[")
    terminal.until("running")
    terminal.press("q")

    assert terminal.ended() == 0


def test_a_job_that_left_only_its_last_state_is_shown_too(attached, home):
    over(finished())
    found = attached("--ssh", "there", "train-47")

    assert (found.returncode, "all ranks finished" in found.stdout) == (0, True)


def test_a_login_shell_finds_ddtop_if_it_is_not_on_the_path(stand_in, stage, tmp_path):
    """A command over ssh runs without the login files, so its PATH is short."""
    folder = tmp_path / "venv"
    folder.mkdir()
    os.symlink(stand_in.environment["DDTOP_REMOTE"], folder / "ddtop")
    (tmp_path / ".profile").write_text(
        f"echo 'loading modules'\nPATH={shlex.quote(str(folder))}:$PATH\n"
    )
    path = os.pathsep.join(
        one for one in os.environ["PATH"].split(os.pathsep) if not os.path.exists(f"{one}/ddtop")
    )
    found = attach(
        stand_in,
        "--ssh",
        "there",
        DDTOP_REMOTE="",
        HOME=str(tmp_path),
        PATH=path,
        SHELL="/bin/sh",
        PYTHONSAFEPATH="",
    )

    assert (found.returncode, THERE in found.stdout) == (0, True), found.stderr


def test_a_hub_is_joined_at_its_port_with_the_key_of_the_user(stage, home):
    here = hosts.There.__new__(hosts.There)
    here.environment = {}
    found = attach(here, "--hub", f"localhost:{registry.read_entries()[0].port}")

    assert (found.returncode, THERE in found.stdout) == (0, True), found.stderr


def test_a_bridge_refuses_a_terminal(home):
    found = ddtop_process("bridge")

    assert found.returncode == 2
    assert "starts it there" in found.stderr


@pytest.mark.parametrize(("words", "sent"), [([], True), (["--readonly"], False)])
async def test_a_readonly_bridge_refuses_signals(stage, words, sent):
    """`command="ddtop bridge --readonly"` in authorized_keys limits the dashboard, which cannot
    undo that.
    """
    pid = stage.children[-1].pid
    with closing(Pipe([sys.executable, "-m", "ddtop", "bridge", *words], asks=False)) as pipe:
        await pipe.wait_for_greeting(DEADLINE_S)
        assert await pipe.ask(bridge.Open("train", "r1", True), DEADLINE_S) == bridge.Opened()
        for command in (
            Command("join", history_s=0.0),
            Command("signal", arguments=("0", str(pid), "0")),
        ):
            pipe.send(bridge.BridgeFrame(request(command)))
        reply = await signal_reply(pipe)

    assert ("may not" not in reply.text and "only" not in reply.text) is sent, reply


async def signal_reply(pipe):
    async for data in pipe.frames(DEADLINE_S):
        record = frames.open_record(frames.open_envelope(data))
        if isinstance(record, Reply) and record.name == "signal":
            return record
    raise AssertionError("no reply")
