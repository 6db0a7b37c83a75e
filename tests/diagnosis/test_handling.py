"""The exception that a blamed rank handles stands in its sentence and in its evidence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddtop.wire.records import FailedSave, Handling, LastException, Place
from tests import jobs
from tests.jobs import FakeJob, unix_ns

FULL = Handling("OSError", "[Errno 28] No space left on device", Place("save", "/w/train.py", 31))
TEXT = "is handling OSError: [Errno 28] No space left on device (save, train.py:31)"


def hang(*handling: int) -> FakeJob:
    """Rank 1 stands in another group, and the others wait for it."""
    job = jobs.trained()
    job.ranks[1].stands_at("report", "train.py", 60)
    job.others_wait(1)
    for number in handling:
        job.ranks[number].says["handling"] = FULL
    return job.passes(8)


def test_the_exception_of_the_rank_at_fault_is_in_its_sentence():
    finding = hang(1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith(f"; rank 1 {TEXT}")
    assert f"rank 1 {TEXT}" in finding.evidence


@pytest.mark.parametrize(
    "numbers",
    [(), (0, 2), (0, 1, 2, 3)],
    ids=["nobody", "ranks that wait", "all: the whole program runs in a handler"],
)
def test_what_others_handle_is_not_the_reason(numbers):
    finding = hang(*numbers).finds("critical", "not-in-collective", 1)

    assert "handling" not in "".join((finding.summary, *finding.evidence))


def test_a_rank_that_has_ended_handles_nothing_any_more():
    job = hang(1)
    job.ranks[1].ends(signal=9)
    job.passes(3)

    (finding,) = [one for one in job.verdict().findings if one.kind == "rank-killed"]
    assert "handling" not in "".join((finding.summary, *finding.evidence))


def test_a_job_that_moves_is_silent_whatever_it_handles():
    job = jobs.trained()
    job.ranks[1].says["handling"] = FULL

    assert job.passes(8).ever() == []


# -- a save that has failed, and a signal


ERROR = "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed"
SIGNAL = Handling("SIGUSR1", "", Place("on_usr1", "/w/train.py", 20))


def after(what: str, record: object, *numbers: int) -> FakeJob:
    job = jobs.trained()
    job.ranks[1].stands_at("report", "train.py", 60)
    job.others_wait(1)
    for number in numbers:
        job.ranks[number].says[what] = record
    return job.passes(8)


def failed(ago_s: float) -> FailedSave:
    return FailedSave("torch.save", "/ckpt/7.pt", ERROR, unix_ns(jobs.trained().now - ago_s))


@pytest.mark.parametrize("ago_s", [0.2, -3.0], ids=["just before", "while the others wait"])
def test_the_save_that_has_failed_is_named_with_its_path(ago_s):
    finding = after("failed_save", failed(ago_s), 1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith(f"; rank 1's torch.save to /ckpt/7.pt has failed: {ERROR}")


def test_a_full_disk_is_named_where_the_error_does_not():
    """torch's writer says that it failed, and not why."""
    job = after("failed_save", replace(failed(0.2), free_bytes=0, total_bytes=1 << 30), 1)

    assert f"has failed: its disk is full: {ERROR}" in job.finding().summary


@pytest.mark.parametrize(("ago_s", "numbers"), [(9.0, (1,)), (0.2, (0, 1))], ids=["old", "all"])
def test_a_save_that_failed_long_before_or_on_others_too_is_not_the_reason(ago_s, numbers):
    finding = after("failed_save", failed(ago_s), *numbers).finds(
        "critical", "not-in-collective", 1
    )

    assert "torch.save" not in "".join((finding.summary, *finding.evidence))


def test_the_file_of_an_exception_is_in_the_sentence():
    job = after("handling", replace(FULL, path="/ckpt/7.pt"), 1)

    assert "No space left on device: /ckpt/7.pt (save, train.py:31)" in job.finding().summary


def test_a_rank_in_the_handler_of_a_signal_says_so():
    finding = after("in_handler", SIGNAL, 1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith("; rank 1 is in its handler of SIGUSR1 (on_usr1, train.py:20)")


def test_a_signal_that_the_waiting_ranks_have_got_too_is_not_the_reason():
    finding = after("in_handler", SIGNAL, 0, 1).finds("critical", "not-in-collective", 1)

    assert "SIGUSR1" not in "".join((finding.summary, *finding.evidence))


# -- a thread that has ended by an exception


def of_a_thread(ago_s: float, thread: str = "Thread-1 (fill)") -> LastException:
    at = unix_ns(jobs.trained().now - ago_s)
    return LastException("KeyError", "'shard 17'", at, Place("fill", "/w/data.py", 31), thread)


@pytest.mark.parametrize(("ago_s", "before"), [(0.3, ""), (-3.0, ""), (16.0, ", 16 s before")])
def test_the_exception_of_a_thread_is_in_the_sentence_with_its_age(ago_s, before):
    """A queue feeds the rank for some time after the thread that fills it has ended."""
    finding = after("exception", of_a_thread(ago_s), 1).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith(
        f"; rank 1's thread Thread-1 (fill) raised KeyError: 'shard 17' (fill, data.py:31){before}"
    )


def test_an_exception_that_the_waiting_ranks_had_too_is_not_the_reason():
    finding = after("exception", of_a_thread(0.3), 0, 1, 2, 3).finds(
        "critical", "not-in-collective", 1
    )

    assert "KeyError" not in "".join((finding.summary, *finding.evidence))
