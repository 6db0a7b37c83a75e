"""Stacks of real ranks that answer, that cannot, and that must not be disturbed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ddtop.procfs import descendants, stat_fields
from ddtop.relay.dumps import collect
from ddtop.relay.dumps import signal as dump_signal
from ddtop.relay.processes import pyspy
from ddtop.relay.processes.pyspy import find
from ddtop.wire.page import OWING_PID_AT
from ddtop.wire.records import BY_SIGNAL, Hello, Stacks
from tests.relay.dumps.ranks import DEADLINE_S, Ranks
from tests.waiting import until


class PySpyThatFindsNothing:
    """A py-spy that has tried and could not read."""

    note = None

    def __init__(self, pid, **how):
        self.pid = pid

    def poll(self):
        return "nothing was found"

    def kill(self):
        """Its process has ended."""


@pytest.fixture
def no_py_spy(monkeypatch):
    """py-spy is not installed."""
    monkeypatch.setattr(pyspy, "find", lambda: None)


@pytest.fixture
def ranks():
    found = Ranks()
    yield found
    found.close()


def functions(stacks: Stacks) -> list[str]:
    (main,) = [thread for thread in stacks.threads if thread.main]
    return [frame.function for frame in main.frames]


def test_a_rank_that_holds_the_gil_in_c_is_read_by_signal(ranks):
    one = ranks.start("hold_the_gil")
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert (found.method, found.request, found.of_rank) == ("signal", "q", 0)
    assert found.pid == one.hello.pid
    assert functions(found) == ["hold_the_gil", "<module>"]
    assert ranks.started[0].poll() is None
    assert ranks.asked == []


def test_an_agent_that_was_heard_is_asked_and_its_answer_ends_the_request(ranks):
    one = ranks.start("sleep_in_python", silent=False)
    ranks.dumps.ask("q", [one])
    ranks.dumps.on_agent_answer(one.hello.pid, "q")

    assert ranks.finish() == []
    assert ranks.asked == [(one.hello.pid, "q", False)]


def test_an_agent_that_falls_silent_is_followed_by_the_signal(ranks):
    one = ranks.start("hold_the_gil", silent=False)
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert (found.method, functions(found)[0]) == ("signal", "hold_the_gil")


def test_two_viewers_that_ask_at_the_same_time_are_both_answered(ranks):
    one = ranks.start("hold_the_gil")
    ranks.dumps.ask("first", [one], how=BY_SIGNAL)
    ranks.dumps.ask("second", [one], how=BY_SIGNAL)

    assert sorted(found.request for found in ranks.finish()) == ["first", "second"]


def test_a_stopped_rank_gets_no_signal(ranks):
    """The rank would handle the signal when it continues, long after the request."""
    one = ranks.start("sleep_in_python")
    os.kill(one.hello.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, one.hello.pid, os.WSTOPPED | os.WNOWAIT)
    found = ranks.stacks_of(one, automatic=True)

    assert found.automatic
    assert found.method == "py-spy" or (found.why or "").startswith("stopped")
    assert dump_signal.read_written(one.hello) == b""
    assert stat_fields(one.hello.pid)[0] == "T"


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("block_the_signal", "blocks signal"),
        ("take_the_signal_away", "does not catch signal"),
        ("close_its_files", "has closed its dump file"),
        ("reopen_the_number", "has closed its dump file"),
        ("wait_for_signals", "waits for signals itself"),
        ("agent_ended", "its agent has ended"),
        ("leaves", "in interpreter exit"),
        ("steps_on", "is stuck while Python runs"),
    ],
)
def test_a_rank_that_cannot_take_the_signal_is_not_sent_it(ranks, what, why, no_py_spy):
    """The default action is to kill; a closed descriptor may belong to another file."""
    one = ranks.start(what)
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert found.method == ""
    assert why in (found.why or "")
    assert ranks.started[0].poll() is None


@pytest.mark.parametrize("automatic", [True, False])
def test_two_requests_at_once_are_as_gentle_as_each_of_them(ranks, monkeypatch, automatic):
    """The looks of the hub and of the relay itself met: the second counted as that of a person."""
    begun = []
    monkeypatch.setattr(
        collect, "PySpy", lambda pid, **how: begun.append(how) or PySpyThatFindsNothing(pid)
    )
    one = ranks.start("hold_the_gil")
    ranks.dumps.ask("one", [one], automatic=True)
    ranks.dumps.ask("two", [one], automatic=automatic)

    found = ranks.finish()

    assert {(stacks.method, stacks.automatic) for stacks in found} == {("", automatic)}
    assert begun[-1]["nonblocking"] is automatic
    assert dump_signal.read_written(one.hello) == b""


@pytest.mark.parametrize("what", ["hold_the_gil", "spin"])
def test_a_request_for_stacks_is_no_request_for_a_signal(ranks, what, no_py_spy):
    """`d` and `ddtop stacks` may disturb nothing that their user was not told about."""
    one = ranks.start(what)
    found = ranks.stacks_of(one)

    assert (found.method, found.automatic) == ("", False)
    assert "F9, or ddtop stacks --signal" in (found.why or "")
    assert dump_signal.read_written(one.hello) == b""


@pytest.mark.parametrize("what", ["hold_the_gil", "spin"])
def test_nobody_is_signalled_by_an_automatic_dump(ranks, what, no_py_spy):
    """An automatic dump must not change the job, and a signal ends a sleep in C."""
    one = ranks.start(what)
    found = ranks.stacks_of(one, automatic=True)

    assert (found.method, found.automatic) == ("", True)
    assert "only for a person who asks" in (found.why or "")
    assert dump_signal.read_written(one.hello) == b""


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
def test_an_automatic_dump_reads_a_frozen_rank_without_stopping_it(ranks):
    one = ranks.start("hold_the_gil")
    found = ranks.stacks_of(one, automatic=True)

    assert (found.method, found.why) == (
        "py-spy",
        "read without pausing the process",
    ) or "ptrace" in (found.why or "")
    if found.method:
        assert "hold_the_gil" in functions(found)
    assert dump_signal.read_written(one.hello) == b""


def test_a_person_who_asks_while_an_automatic_dump_is_under_way_gets_all_that_can_be_had(
    ranks, monkeypatch
):
    """The relay's own look gets no result. For a person's request the signal may be sent."""
    monkeypatch.setattr(collect, "PySpy", PySpyThatFindsNothing)
    one = ranks.start("hold_the_gil")
    ranks.dumps.ask("auto", [one], automatic=True)
    ranks.dumps.on_time()
    ranks.dumps.ask("q", [one], how=BY_SIGNAL)

    found = ranks.finish()

    assert {(stacks.request, stacks.method, stacks.automatic) for stacks in found} == {
        ("auto", "signal", False),
        ("q", "signal", False),
    }


def test_a_person_may_have_a_silent_rank_that_works_signalled(ranks, no_py_spy):
    one = ranks.start("spin_in_c")
    one.cpu_ratio = 0.97
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    # On a crowded host it cannot be known that it has held the GIL all the time.
    assert found.method == "signal" or "Python may run" in (found.why or "")
    if found.method:
        assert "spin_in_c" in functions(found)


@pytest.mark.parametrize("what", ["spin", "sleep_in_python"])
def test_a_rank_in_which_python_may_run_gets_no_signal_however_long_its_agent_is_silent(
    ranks, what, no_py_spy
):
    """On a crowded host faulthandler walked frames that changed: SIGSEGV."""
    one = ranks.start(what)
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert found.method == ""
    assert "Python may run" in (found.why or "")
    assert dump_signal.read_written(one.hello) == b""


def test_a_rank_whose_agent_cannot_be_asked_now_gets_no_signal(ranks, no_py_spy):
    """The relay is new. The ranks have not connected to it yet, and are healthy."""
    ranks.agents_answer = False
    one = ranks.start("hold_the_gil", silent=False)
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert found.method == ""
    assert "its agent was heard" in (found.why or "")


def test_an_agent_that_reports_but_does_not_answer_is_not_followed_by_the_signal(
    ranks, monkeypatch, agents_count_as_heard, no_py_spy
):
    """It gets the GIL, so Python runs: faulthandler would walk frames that change."""
    monkeypatch.setattr(collect, "AGENT_S", 0.3)
    one = ranks.start("sleep_in_python", silent=False)
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert found.method == ""
    assert "gave no stacks" in (found.why or "")
    assert ranks.asked == [(one.hello.pid, "q", False)]
    assert dump_signal.read_written(one.hello) == b""


def test_a_forked_child_that_makes_no_progress_is_read_after_its_rank(ranks):
    """The DataLoader worker that must deliver the next batch."""
    one = ranks.start("fork_a_worker")
    until(lambda: "pipe" in Path(f"/proc/{ranks.children[0]}/wchan").read_text())
    ranks.dumps.ask("q", [one], how=BY_SIGNAL)

    rank, worker = ranks.finish()

    assert (rank.worker, worker.worker) == (False, True)
    assert (worker.of_rank, worker.pid, worker.method) == (0, ranks.children[0], "signal")
    assert functions(worker)[0] == "stuck_worker"
    assert [latest for _, latest in ranks.found] == [True, False]


def with_a_worker(ranks, method):
    """A rank with one worker that uses this start method, both asleep; its pid too."""
    one = ranks.start("start_a_worker", words=(method,))
    worker = ranks.children[0]
    until_asleep_in("nanosleep", worker)
    one.children = descendants(one.hello.pid)
    ranks.children[:] = one.children
    return one, worker


def owes(one, pid):
    """The rank's page names this worker."""
    with Path(one.hello.page_path).open("r+b") as page:
        page.seek(8 * OWING_PID_AT)
        page.write(pid.to_bytes(8, sys.byteorder))


def until_asleep_in(part, pid):
    end = time.monotonic() + DEADLINE_S
    # Before 3.11 time.sleep waits in select.
    parts = (part, "poll_schedule_timeout", "do_select") if part == "nanosleep" else (part,)
    while not any(one in Path(f"/proc/{pid}/wchan").read_text() for one in parts):
        assert time.monotonic() < end
        time.sleep(0.005)


def may_be_read(stacks, worker):
    """Where this user may not trace processes, py-spy can read none."""
    if not [one for one in stacks if one.worker]:
        (rank,) = stacks
        assert "ptrace" in (rank.why or "")
        pytest.skip("py-spy may not read other processes here")
    return [(one.pid, one.method) for one in stacks if one.worker] == [(worker, "py-spy")]


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_person_gets_the_stack_of_a_worker_that_was_not_forked_and_of_no_server(ranks, method):
    """The worker does not catch the signal; the fork server does not report."""
    one, worker = with_a_worker(ranks, method)
    ranks.dumps.ask("q", [one])

    assert may_be_read(ranks.finish(), worker)


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_by_itself_the_relay_reads_the_worker_that_owes_without_a_signal(ranks, method):
    one, worker = with_a_worker(ranks, method)
    owes(one, worker)
    ranks.dumps.ask("q", [one], automatic=True)

    assert may_be_read(ranks.finish(), worker)
    assert dump_signal.read_written(one.hello) == b""


@pytest.mark.parametrize("named", ["nobody", "a stranger"])
def test_by_itself_the_relay_reads_no_worker_that_the_page_does_not_name(ranks, named):
    one, _ = with_a_worker(ranks, "fork")
    if named == "a stranger":
        owes(one, os.getpid())
    ranks.dumps.ask("q", [one], automatic=True)

    assert [stacks.worker for stacks in ranks.finish()] == [False]


def test_a_forked_worker_that_is_stopped_gets_no_signal(ranks):
    one, worker = with_a_worker(ranks, "fork")
    os.kill(worker, signal.SIGSTOP)
    until(lambda: stat_fields(worker)[0] == "T")
    ranks.dumps.ask("q", [one], how=BY_SIGNAL)

    methods = {stacks.method for stacks in ranks.finish() if stacks.worker}

    assert methods <= {"py-spy"}
    pending = Path(f"/proc/{worker}/status").read_text().partition("ShdPnd:")[2].split()[0]
    assert int(pending, 16) == 0


def test_a_rank_that_ended_is_said_to_be_gone(ranks):
    one = ranks.start("sleep_in_python")
    ranks.started[0].kill()
    ranks.started[0].wait()
    found = ranks.stacks_of(one)

    assert (found.method, found.why) == ("", "gone")


def test_a_rank_that_ends_while_it_is_asked_is_said_to_be_gone(ranks):
    one = ranks.start("sleep_in_python", silent=False)
    ranks.dumps.ask("q", [one])
    ranks.dumps.on_gone(one.hello.pid)

    (found,) = ranks.finish()

    assert (found.method, found.why) == ("", "gone")


@pytest.mark.skipif(find() is None, reason="py-spy is not installed")
def test_what_no_signal_reaches_is_left_to_py_spy(ranks):
    one = ranks.start("block_the_signal")
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert found.method == "py-spy" or "ptrace" in (found.why or "")
    if found.method:
        assert "block_the_signal" in functions(found)


@pytest.mark.parametrize(("automatic", "nonblocking"), [(True, True), (False, False)])
def test_py_spy_stops_a_process_only_for_a_person(ranks, monkeypatch, automatic, nonblocking):
    begun = []
    monkeypatch.setattr(
        collect, "PySpy", lambda pid, **how: begun.append(how) or PySpyThatFindsNothing(pid)
    )
    one = ranks.start("block_the_signal")
    ranks.dumps.ask("q", [one], automatic=automatic)

    assert [found.method for found in ranks.finish()] == [""]
    assert begun == [{"native": False, "nonblocking": nonblocking}]


def test_a_foreign_path_in_a_hello_is_neither_emptied_nor_read(ranks, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("x")
    hello = Hello(
        "j", "r", 0, 0, 0, 1, "h", 1, 1, dump_signal=39, dump_path=str(precious), dump_fd=3
    )

    assert dump_signal.dump_path(hello) is None
    assert dump_signal.why_not(hello, 1, 1) is not None
    assert dump_signal.read_written(hello) == b""
    assert precious.read_text() == "x"


def test_a_link_in_the_place_of_the_dump_file_is_not_followed(ranks, tmp_path, no_py_spy):
    one = ranks.start("sleep_in_python")
    precious = tmp_path / "precious"
    precious.write_text("x")
    path = Path(one.hello.dump_path or "")
    path.unlink()
    path.symlink_to(precious)
    found = ranks.stacks_of(one, how=BY_SIGNAL)

    assert found.method == ""
    assert precious.read_text() == "x"
