"""Whether a main thread moves on, over several looks at it."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ddtop.feeds.outside import rank
from ddtop.feeds.outside.rank import (
    Surroundings,
    ThreadMoment,
    Track,
    asleep_since_unix_ns,
    moment_of,
)
from ddtop.feeds.outside.stacks import StackReading
from ddtop.wire.records import COLLECTIVE, INIT, StackFrame

S = 1_000_000_000
REDUCE = (StackFrame("all_reduce", "/c10d.py", 1), StackFrame("step", "/train.py", 4))
LOAD = (StackFrame("load", "/train.py", 9),)
IN_CALL = StackReading(None, COLLECTIVE, "all_reduce", "collective", "running")
APART = StackReading(None, None, None, None, "running")


def moment(at_s, switches, *, state="S", asleep_s=None, works=None):
    asleep = None if asleep_s is None else asleep_s * S
    return ThreadMoment(at_s * S, state, "futex_do_wait", switches, asleep, works)


def tracked(*looks):
    track = Track()
    for frames, reading, before, now in looks:
        track.take(frames, reading, before, now)
    return track.look()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("while not exists(path):\n  sleep(0.25)", ("loop", "not exists(path)", "")),
        ("n = 7\nstore.wait(['eval/ready'])", ("store key", "'eval/ready'", "")),
        ("while store.add('turn', 1) > 1:\n  sleep(1)", ("store key", "'turn'", "takes")),
    ],
)
def test_what_a_thread_waits_for_is_told_by_its_text(tmp_path, text, told):
    file = tmp_path / "wait.py"
    file.write_text(text)
    os.utime(file, (1, 1))
    around, own = Surroundings(os.getpid()), StackFrame("wait", str(file), 2, user=True)
    (link,) = around.loop((own,))

    assert (link.resource, link.named, link.does) == told
    assert around.loop((StackFrame("get", "/usr/lib/python3.11/queue.py", 9), own)) == ()
    assert around.loop(()) == ()


def test_one_sleep_began_when_the_thread_ran_last():
    """The first look already shows it: a hang is minutes old when a person starts to look."""
    found = tracked((REDUCE, IN_CALL, 7, moment(100, 7, asleep_s=40)))

    assert found.kind == COLLECTIVE
    assert found.call == "all_reduce"
    assert found.since_unix_ns == 40 * S
    assert found.asleep is True


def test_a_wait_that_wakes_for_its_timeout_goes_on():
    """A DataLoader polls every five seconds. Its wait began anew each time, and the verdict came
    after ten seconds.
    """
    track = Track()
    for at_s, switches in ((100, 7), (101, 8), (102, 8), (103, 9)):
        track.take(LOAD, APART, switches, moment(at_s, switches))
    polled = track.there_since_unix_ns
    track.take(LOAD, APART, 14, moment(104, 14))

    assert (polled, track.there_since_unix_ns) == (100 * S, 104 * S)


def test_a_thread_that_spins_at_one_line_is_there_though_it_slept_for_a_moment():
    """Seen on an H200: a rank that waits for its GPU for ever slept once in two seconds."""
    track = Track()
    for at_s, switches in ((100, 7), (101, 8), (102, 8)):
        track.take(REDUCE, IN_CALL, switches, moment(at_s, switches, state="R"))
    spins = track.same_since_unix_ns
    track.take(LOAD, APART, 9, moment(103, 9))

    assert (spins, track.same_since_unix_ns) == (100 * S, 103 * S)


def test_without_the_kernels_word_it_began_at_the_first_look():
    found = tracked((REDUCE, IN_CALL, 7, moment(100, 7)), (REDUCE, IN_CALL, 7, moment(101, 7)))

    assert (found.since_unix_ns, found.asleep, found.communicated_unix_ns) == (100 * S, True, None)


def test_the_same_frames_in_another_sleep_are_another_call():
    """A healthy loop is in all_reduce at each look."""
    found = tracked((REDUCE, IN_CALL, 7, moment(100, 7)), (REDUCE, IN_CALL, 9, moment(101, 9)))

    assert (found.since_unix_ns, found.communicated_unix_ns) == (101 * S, 101 * S)


def test_a_thread_that_ran_during_the_look_is_not_asleep():
    assert not tracked((REDUCE, IN_CALL, 7, moment(100, 8))).asleep


def test_one_line_that_runs_without_sleeping_stays_one_place():
    looks = [(LOAD, APART, 7, moment(100 + at, 7, state="R")) for at in range(3)]

    found = tracked(*looks)
    assert (found.since_unix_ns, found.asleep, found.apart_looks) == (100 * S, False, 3)


def test_a_rank_that_left_its_call_between_two_looks_is_known_to_have_been_in_it_until_the_first():
    """A hang that began while a dashboard was open had no culprit: the others went on to the next
    collective between the same two looks.
    """
    found = tracked(
        (REDUCE, IN_CALL, 7, moment(100, 7)),
        (LOAD, APART, 9, moment(102, 9)),
        (LOAD, APART, 11, moment(104, 11)),
    )

    assert (found.communicated_unix_ns, found.apart_looks) == (100 * S, 2)


def test_collectives_that_gloo_ran_between_two_looks_are_communication():
    """They are too short to be seen in the frames."""
    found = tracked(
        (LOAD, APART, 7, moment(100, 7, works=5)), (LOAD, APART, 9, moment(101, 9, works=8))
    )

    assert (found.communicated_unix_ns, found.apart_looks) == (100 * S, 0)
    assert found.quiet_since_unix_ns == 101 * S


def test_a_rank_without_collectives_is_quiet_since_the_first_look():
    looks = [(LOAD, APART, 7 + at, moment(100 + at, 7 + at, works=5)) for at in range(3)]

    found = tracked(*looks)
    assert (found.quiet_since_unix_ns, found.communicated_unix_ns) == (100 * S, None)


def test_the_scheduler_says_since_when_a_process_sleeps():
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        began = time.time()
        while time.time() < began + 0.5:
            pass
        since = asleep_since_unix_ns(process.pid)
        if since is None:
            pytest.skip("this kernel has no /proc/PID/sched")
        assert began - 0.2 < since / 1e9 < time.time() - 0.2
        now = moment_of(process.pid, time.time_ns())
        assert (now.state, now.works) == ("S", None)
    assert asleep_since_unix_ns(process.pid) is None


def test_a_thread_that_the_kernel_moves_to_another_cpu_has_not_slept_since_boot(monkeypatch):
    """Its time is 0 for a moment. The last state that was read may be that of its sleep."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        own = rank.read
        monkeypatch.setattr(
            rank,
            "read",
            lambda task, name: own(task, name) if task[0] == "s" else b"se.exec_start : 0.000\n",
        )
        end = time.monotonic() + 10
        while moment_of(process.pid, 0).state != "S" and time.monotonic() < end:
            pass
        assert asleep_since_unix_ns(process.pid) is None


def test_a_source_file_that_changed_after_the_start_says_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(1, flush=True)\nsys.stdin.read()\n")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        frames = (StackFrame("<module>", str(script), 3),)
        now = moment_of(process.pid, time.time_ns())
        assert Surroundings(process.pid).thread(frames, now).line == "sys.stdin.read()"
        script.write_text("#\n#\nwork.wait()\n")
        assert Surroundings(process.pid).thread(frames, now).line is None


def test_looks_are_counted_a_tenth_of_a_second_apart_and_waits_by_their_beginning():
    """A rank that runs is looked at more often for a while. These looks must not weigh more."""
    track = Track()
    for number in range(41):
        in_call = number % 4 == 0
        frames, reading = (REDUCE, IN_CALL) if in_call else (LOAD, APART)
        at = ThreadMoment(100 * S + number * S // 20, "S", "futex_do_wait", 3 * number, None)
        track.take(frames, reading, 3 * number, at)
    look = track.look()

    assert (look.looks, look.looks_s) == (21, 2.0)
    assert (look.call_looks, look.wait_looks, look.one_wait_looks) == (11, 11, 1)


@pytest.mark.parametrize(("call", "waits"), [("all_reduce", 4), ("broadcast_object_list", 0)])
def test_a_wait_for_the_data_of_one_rank_makes_no_straggler_of_it(call, waits):
    """Rank 0 collects samples for three seconds and broadcasts them, as a master does by design."""
    reading = replace(IN_CALL, call=call)
    look = tracked(*((REDUCE, reading, 7, moment(100 + at, 7)) for at in range(4)))

    assert (look.looks, look.call_looks, look.wait_looks) == (4, 4, waits)


def test_the_start_of_a_job_is_not_counted():
    joining = StackReading(None, INIT, "init_process_group", "collective", "joining")
    look = tracked((REDUCE, IN_CALL, 7, moment(100, 7)), (REDUCE, joining, 9, moment(101, 9)))

    assert look.looks == 0


@pytest.mark.parametrize(
    ("state", "asleep", "then"),
    [("S", None, "S"), ("R", True, "S"), ("S", False, "R"), ("D", True, "D"), ("R", False, "R")],
)
def test_the_state_is_that_of_the_time_at_which_the_frames_were_read(state, asleep, then):
    """On a busy host the answer of py-spy is old when it comes. In DDP a thread in backward either
    computes or waits for the others."""
    now = moment(100, 7, state=state)

    thread = Surroundings(os.getpid()).thread(REDUCE, now, asleep)

    assert thread.state == then
    assert thread.wchan == ("futex_do_wait" if state in "SD" else None)
