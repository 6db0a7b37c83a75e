"""Ten of the relay's own looks end no call in C early."""

import json
import time
from contextlib import closing

import pytest

from ddtop.wire.records import BY_SIGNAL
from tests.relay.dumps import ranks as ranks_room
from tests.relay.dumps.ranks import Ranks

pytestmark = pytest.mark.job
LOOKS, CALL_MS = 10, 200
LONG_CALL_MS = 3000
"""Longer than the two looks that prove who holds the GIL: else no signal is sent."""

COUNTS = (
    ranks_room.RANK[: ranks_room.RANK.index("def hold_the_gil")]
    + """
import errno, time
MS = int(sys.argv[3])
# With PyDLL the GIL is held all through the call.
libc = (ctypes.PyDLL if sys.argv[2] == "held" else ctypes.CDLL)(None, use_errno=True)

class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("part", ctypes.c_long)]

into, other = os.pipe()
poll_in = (ctypes.c_int * 2)(into, 1)
sets = (ctypes.c_ulong * 16)()
sets[into // 64] |= 1 << (into % 64)
epoll = libc.epoll_create1(0)
event = (ctypes.c_char * 12)()

def a_sleep():
    return libc.sleep(1)

def a_nanosleep():
    return libc.nanosleep(ctypes.byref(Time(0, MS * 1_000_000)), None)

def a_poll():
    return libc.poll(poll_in, 1, MS)

def a_select():
    wanted = (ctypes.c_ulong * 16)(*sets)
    return libc.select(into + 1, wanted, None, None, ctypes.byref(Time(0, MS * 1000)))

def an_epoll():
    return libc.epoll_wait(epoll, event, 1, MS)

calls = {"sleep": a_sleep, "nanosleep": a_nanosleep, "poll": a_poll, "select": a_select, "epoll_wait": an_epoll}
counts = {name: {"calls": 0, "interrupted": 0, "early": 0} for name in calls}

def count(*_):
    while not os.path.exists(sys.argv[4]):
        for name, call in calls.items():
            ctypes.set_errno(0)
            before = time.monotonic()
            result = call()
            took_ms = (time.monotonic() - before) * 1000
            told = counts[name]
            told["calls"] += 1
            told["interrupted"] += result < 0 and ctypes.get_errno() == errno.EINTR
            told["early"] += result > 0 or took_ms < (1000 if name == "sleep" else MS) - 1
    print(json.dumps(counts), flush=True)
    sys.stdin.read(1)

# As the agent of a rank, it waits for the GIL while a call holds it.
threading.Thread(target=like_an_agent, daemon=True).start()
say()
count()
"""  # noqa: E501
)


@pytest.mark.parametrize("gil", ["held", "let go"])
def test_no_call_in_c_ends_early_over_ten_automatic_looks(gil, monkeypatch, tmp_path):
    """sleep, poll and select end at a signal even with SA_RESTART; epoll_wait at a debugger."""
    monkeypatch.setattr(ranks_room, "RANK", COUNTS)
    over = tmp_path / "over"
    with closing(Ranks()) as ranks:
        one = ranks.start(
            "count", words=("held" if gil == "held" else "free", str(CALL_MS), str(over))
        )
        for look in range(LOOKS):
            ranks.dumps.ask(f"auto-{look}", [one], automatic=True)
            ranks.finish()
            time.sleep(CALL_MS / 1000)
        assert len(ranks.found) == LOOKS
        assert {stacks.method for stacks, _ in ranks.found} <= {"", "py-spy"}

        over.touch()
        told = json.loads(ranks.started[0].stdout.readline())

    assert {
        name: (one["interrupted"], one["early"]) for name, one in told.items()
    } == dict.fromkeys(told, (0, 0))
    assert sum(one["calls"] for one in told.values()) >= LOOKS


def test_the_counts_see_what_a_signal_does(monkeypatch, tmp_path):
    """By signal, which a person requests, the same program counts an interrupted call."""
    monkeypatch.setattr(ranks_room, "RANK", COUNTS)
    over = tmp_path / "over"
    with closing(Ranks()) as ranks:
        one = ranks.start("count", words=("held", str(LONG_CALL_MS), str(over)))
        # One signal may come between two calls; of several signals at least one meets a call.
        for number in range(4):
            ranks.dumps.ask(f"person {number}", [one], how=BY_SIGNAL)
            found = ranks.finish()[-1]
        over.touch()
        told = json.loads(ranks.started[0].stdout.readline())

    assert found.method == "signal"
    assert sum(one["interrupted"] + one["early"] for one in told.values()) >= 1
