"""One relay with real sockets and real processes, and with ranks and viewers played by the test."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

from ddtop import registry
from ddtop.follow.engine import last_state
from ddtop.relay import server as viewers_module
from ddtop.wire import frames
from ddtop.wire.records import Command, Exit, Hello, HostState, RankState, Reply
from tests.relay.stage import DEADLINE_S, Stage, is_a, is_reply, sees_ranks
from tests.waiting import until


def test_a_relay_whose_rank_and_launcher_went_before_a_word_was_said_ends_soon(home, monkeypatch):
    monkeypatch.setattr("ddtop.relay.server.ORPHANED_S", 0.1)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with closing(Stage(home, launcher=child.pid)) as stage:
        stage.thread.join(DEADLINE_S)

        assert not stage.thread.is_alive()


def test_an_order_to_stop_that_comes_during_a_look_is_obeyed(home, monkeypatch):
    def look(server):
        server.stopping = True
        return False

    stage = Stage(home)
    monkeypatch.setattr(stage.server._waiting_parent, "look", lambda: look(stage.server))
    try:
        stage.thread.join(DEADLINE_S)

        assert not stage.thread.is_alive()
    finally:
        stage.close()


def test_a_viewer_that_joins_gets_the_latest_of_each_rank_then_what_is_live(stage):
    link, pid = stage.rank()
    stage.says(link, RankState("running", iteration=7))
    early = stage.viewer()
    stage.heard(early, lambda record: isinstance(record, RankState))
    late = stage.viewer()
    history = stage.heard(late, is_reply("live"))
    stage.says(link, RankState("running", iteration=8))
    live = stage.heard(late, is_a(RankState))

    assert history[0].name == "joined"
    assert history[0].count == len(history) - 2
    assert [record.pid for record in history if isinstance(record, Hello)] == [pid]
    assert [record.iteration for record in history if isinstance(record, RankState)] == [7]
    assert live[-1].iteration == 8


def test_the_exit_of_a_rank_is_reported_with_code_and_order(stage):
    _, pid = stage.rank(1, code="import sys; sys.stdin.readline(); sys.exit(7)")
    viewer = stage.viewer()
    stage.heard(viewer, sees_ranks)
    stage.children[0].stdin.write(b"\n")
    stage.children[0].stdin.flush()

    found = stage.heard(viewer, is_a(Exit))[-1]

    assert (found.rank, found.pid, found.order, found.signal) == (1, pid, 0, None)
    assert found.code in (7, None)
    assert found.code == 7 or found.how == "unknown"


def test_the_host_is_reported_once_a_second_with_its_ranks(stage):
    _, pid = stage.rank()
    viewer = stage.viewer()

    host = stage.heard(viewer, sees_ranks)[-1]

    assert [(one.pid, one.rank) for one in host.processes] == [(pid, 0)]
    assert host.cores >= 1
    assert host.memory_total_bytes > host.memory_available_bytes > 0


def test_the_agent_is_told_that_the_relay_lives(stage):
    link, _ = stage.rank()
    data = until(link.receive)

    command = frames.open_record(frames.open_envelope(data))

    assert (command.name, command.instance) == ("alive", stage.server.instance)


def test_what_a_rank_must_not_say_is_not_forwarded(stage):
    """A rank cannot report its neighbour's death."""
    link, _ = stage.rank()
    stage.says(link, Exit(1, 1, 0, None, False, 0, "pidfd"))
    stage.says(link, Reply("joined"))
    stage.says(link, HostState("theirs", 1))
    stage.says(link, Command("join"))
    viewer = stage.viewer()

    found = stage.heard(
        viewer, lambda record: isinstance(record, HostState) and record.garbled == 4
    )

    assert not [record for record in found if isinstance(record, Exit)]
    assert not [record for record in found if getattr(record, "host", None) == "theirs"]


def test_a_viewer_that_pings_without_having_joined_is_told_to_join_again(stage):
    """The relay was killed and another one took its port."""
    viewer = stage.viewer(Command("ping"))

    assert stage.heard(viewer, is_reply("rejoin"))[-1].instance == stage.server.instance


def test_more_viewers_than_allowed_are_told_so(stage, monkeypatch):
    monkeypatch.setattr(viewers_module, "VIEWERS_MAX", 1)
    stage.heard(stage.viewer(), is_reply("live"))

    reply = stage.heard(stage.viewer(), is_reply("joined"))[-1]

    assert (reply.ok, reply.text) == (False, "1 viewers are attached already")


def test_a_viewer_of_another_schema_is_answered_so_that_it_can_say_so(stage):
    viewer = stage.viewer(Command("ping"))
    said = bytearray(frames.seal(Command("join"), sender="viewer", unix_ns=0, mono_ns=0))
    assert said[1] == frames.SCHEMA_MAJOR
    said[1] += 1
    viewer.send(bytes(said))

    reply = stage.heard(viewer, is_reply("joined"))[-1]

    assert not reply.ok
    assert reply.text.startswith(f"the other side speaks schema {frames.SCHEMA_MAJOR + 1}, ")


def test_the_job_file_tells_where_to_ask(stage):
    _, _ = stage.rank()
    stage.heard(stage.viewer(), sees_ranks)
    entries = until(registry.read_entries)

    (entry,) = entries

    assert (entry.job, entry.run, entry.port) == ("train", "r1", stage.server._link.port)
    assert entry.world_size == 2
    assert entry.live(time.time_ns())
    assert entry.socket == str(registry.socket_path("train", "r1"))


def test_after_sigterm_it_leaves_a_last_state_and_no_socket(home):
    stage = Stage(home)
    stage.rank()
    stage.heard(stage.viewer(), sees_ranks)
    stage.close()

    assert registry.last_state_path("train", "r1").exists()
    assert not registry.socket_path("train", "r1").exists()
    assert not registry.read_entries()[0].live(time.time_ns())


def test_the_last_state_of_a_relay_that_has_ended_is_not_live(home, monkeypatch):
    """torchrun ends a second after its ranks, maybe later than a relay."""
    monkeypatch.setattr("ddtop.relay.server.JOB_OVER_S", 0.5)
    stage = Stage(home, launcher=os.getpid(), linger_s=0.1)
    link, pid = stage.rank()
    environment = {"TORCHELASTIC_RUN_ID": "none"}
    ticks = registry.start_ticks(pid)
    stage.says(link, Hello("train", "r1", 0, 0, 0, 1, "h", pid, ticks, environment=environment))
    stage.heard(
        stage.viewer(), lambda record: isinstance(record, HostState) and record.launcher_alive
    )
    # As after ten seconds of silence, and on the relay's own thread.
    monkeypatch.setattr(viewers_module.Viewers.forget_silent, "__defaults__", (0.0,))
    stage.children[0].communicate(b"\n")
    stage.thread.join(DEADLINE_S)
    gone = not stage.thread.is_alive()
    stage.close()

    snapshot, _ = last_state(registry.read_entries()[0])

    assert gone
    assert (snapshot.live, snapshot.ended.reason) == (False, "all ranks finished")


def test_a_relay_that_takes_over_knows_the_stopped_rank_of_the_one_that_was_killed(home):
    """The stopped rank is the culprit, and cannot send Hello again."""
    first = Stage(home)
    first.rank()
    child = first.children.pop()
    try:
        first.heard(first.viewer(), sees_ranks)
        until(registry.roster_path("train", "r1").exists)
        roster = registry.roster_path("train", "r1").read_bytes()
        first.close()
        registry.roster_path("train", "r1").write_bytes(roster)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        with closing(Stage(home)) as second:
            # Its first record is its predecessor's last look.
            stopped = lambda record: sees_ranks(record) and record.processes[0].state == "T"  # noqa: E731
            host = second.heard(second.viewer(), stopped)[-1]
    finally:
        child.kill()
        child.communicate()

    assert [(one.pid, one.state) for one in host.processes] == [(child.pid, "T")]
