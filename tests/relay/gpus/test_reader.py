"""The relay's reader of GPUs: a driver that does not answer blocks nothing."""

import os
import threading

import pytest

from ddtop.relay.gpus import reader as room
from ddtop.relay.gpus.nvml import NvidiaDriver, NvmlError
from ddtop.relay.gpus.reader import GpuReader, Xids, describe
from tests.nvml import GIB, TIMEOUT, FakeCard
from tests.nvml_library import fake_nvml
from tests.waiting import until


@pytest.fixture
def watching(monkeypatch):
    """Makes a `GpuReader` over a double, and ends it after the test."""
    monkeypatch.setattr(room, "SAMPLE_EVERY_S", 0.01)
    monkeypatch.setattr(room, "AGAIN_S", 0.01)
    made = []

    def make(nv, opened=None):
        found = GpuReader((NvidiaDriver(lambda: True, opened or (lambda: nv)),))
        made.append((found, nv))
        return found

    yield make
    for found, nv in made:
        found.close()
        nv.answers.set()
        if found._thread is not None:
            found._thread.join(20)


def test_a_process_of_a_rank_is_ours_and_any_other_is_not(watching):
    nv = fake_nvml(FakeCard(processes={os.getpid(): 2 * GIB, os.getppid(): GIB}))
    gpus = watching(nv)
    gpus.look({os.getpid(): 3})

    cards, watch = until(lambda: (found := gpus.look({os.getpid(): 3}))[0] and found)
    mine, other = cards[0].processes

    assert (mine.pid, mine.rank, mine.used_bytes, mine.local) == (os.getpid(), 3, 2 * GIB, True)
    assert (other.rank, bool(other.command)) == (None, True)
    assert watch.why is None


def test_what_the_launcher_has_started_besides_its_ranks_is_reported_as_the_job_s(watching):
    nv = fake_nvml(FakeCard(processes={os.getpid(): 2 * GIB, 1: GIB}))
    gpus = watching(nv)
    cards, _ = until(lambda: (found := gpus.look({}, os.getpid()))[0] and found)

    assert [(one.pid, one.ours) for one in cards[0].processes] == [(os.getpid(), True), (1, False)]


def test_a_driver_that_hangs_blocks_no_look_and_its_numbers_grow_old(watching):
    """Xid 79 on another GPU: nvidia-smi is in state D for minutes."""
    nv = fake_nvml(FakeCard())
    gpus = watching(nv)
    until(lambda: gpus.look({})[0])
    nv.answers.clear()
    asked = dict(nv.calls)
    until(lambda: nv.calls != asked)

    first = gpus.look({})
    later = until(lambda: (found := gpus.look({})[1].age_ms) > first[1].age_ms + 50 and found)

    assert first[0][0].util_ratio == 0.97
    assert later >= 50


def test_a_driver_that_has_never_answered_is_told_by_its_age(watching):
    nv = fake_nvml(FakeCard())
    nv.answers.clear()
    gpus = watching(nv)
    gpus.look({})

    cards, _ = until(lambda: (found := gpus.look({}))[1].age_ms > 20 and found)

    assert cards == ()


def test_a_driver_that_cannot_be_asked_says_why_and_is_asked_again(watching):
    nv = fake_nvml(FakeCard())
    tries = []

    def opened():
        tries.append(1)
        if len(tries) < 3:
            raise NvmlError("Driver/library version mismatch")
        return nv

    gpus = watching(nv, opened)
    gpus.look({})

    assert until(lambda: gpus.look({})[1].why) == "Driver/library version mismatch"
    assert until(lambda: gpus.look({})[0])[0].uuid == nv.cards[0].uuid
    assert gpus.look({})[1].why is None


def test_without_a_driver_there_is_no_thread():
    before = set(threading.enumerate())
    gpus = GpuReader((NvidiaDriver(lambda: False, lambda: pytest.fail("asked for")),))

    assert gpus.look({}) == ((), None)
    assert set(threading.enumerate()) <= before


def test_a_driver_that_comes_later_is_found(watching):
    """CUDA loads the kernel module at its first use, long after the relay has started."""
    there = []
    nv = fake_nvml(FakeCard())
    gpus = watching(nv)
    gpus._drivers = (NvidiaDriver(lambda: bool(there), lambda: nv),)
    assert gpus.look({}) == ((), None)
    there.append(1)

    assert until(lambda: gpus.look({})[0])


def test_once_no_rank_lives_the_session_ends_and_the_last_numbers_remain(watching):
    """A relay that kept the driver open would prevent a reset of the GPU."""
    nv = fake_nvml(FakeCard())
    gpus = watching(nv)
    until(lambda: gpus.look({})[0])
    thread = gpus._thread
    gpus.look({}, wanted=False)
    thread.join(20)

    until(lambda: nv.nvmlLib.sessions == 0)
    asked = dict(nv.calls)
    cards, watch = gpus.look({}, wanted=False)
    assert cards[0].uuid == nv.cards[0].uuid
    assert until(lambda: gpus.look({}, wanted=False)[1]) == watch
    assert nv.calls == asked


def test_ranks_that_are_started_again_have_their_gpus_watched_again(watching):
    nv = fake_nvml(FakeCard(util=10))
    gpus = watching(nv)
    until(lambda: gpus.look({})[0])
    gpus.look({}, wanted=False)
    nv.cards[0].util = 90

    assert until(lambda: gpus.look({})[0][0].util_ratio == 0.9)


def test_an_xid_is_kept_with_its_gpu_and_a_pause_ends_nothing():
    nv = fake_nvml(FakeCard(uuid="GPU-a"), FakeCard(uuid="GPU-b"))
    nv.xids += [(nv.cards[1], 79), (nv.cards[0], -TIMEOUT), (nv.cards[1], 48)]
    xids = Xids()
    xids.listen(nv)

    assert until(lambda: [one.code for one in xids.last_events("GPU-b")] == [79, 48])
    assert xids.last_events("GPU-a") == ()
    xids.stop.set()
    xids._thread.join(20)


def test_in_a_container_a_pid_of_the_host_is_nobody_known():
    """NVML reports pids of the host: pid 1 there is not pid 1 here."""
    assert describe(1, own_namespace=True).local is False
    assert describe(os.getpid(), own_namespace=True).local is False
    assert describe(os.getpid()).local is True


def test_of_a_command_only_program_and_script_are_reported():
    """The arguments may contain a token, and belong to another user."""
    words = (describe(os.getpid()).command or "").split()

    assert 0 < len(words) <= 3
