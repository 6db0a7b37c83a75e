"""All ranks were ended from outside, so no rank is at fault. And jobs that only look like that."""

import pytest

from ddtop.wire.records import HelperEnd, LastException
from tests.diagnosis.rules.cancelled import ended_by_sigterm
from tests.jobs import hung, place, trained
from tests.spread import SpreadJob


@pytest.mark.parametrize(("number", "name"), [(10, "SIGUSR1"), (12, "SIGUSR2"), (3, "SIGQUIT")])
def test_a_signal_of_the_batch_system_to_all_is_a_cancellation(number, name):
    """`sbatch --signal=USR1@300`, and a program that has no handler for it."""
    job = trained()
    for rank in job.ranks:
        rank.ends(signal=number, later_s=rank.number * 0.005)
    finding = job.passes(3).finds("info", "cancelled")

    assert finding.summary == f"the job was cancelled: ranks 0-3 ended together ({name})"
    assert f"at {name}, the program needs a handler" in finding.advice


@pytest.mark.parametrize(("later_s", "found"), [(0.24, "cancelled"), (1.0, "rank-killed")])
def test_two_ranks_that_sigkill_ends_one_after_the_other_were_ended_by_one_act(later_s, found):
    """kill -9 -PGID: large processes end 0.08 to 0.24 s apart."""
    job = trained(2)
    for rank in job.ranks:
        rank.told["environment"] = {"TORCHELASTIC_RUN_ID": "none"}
        job.greet(rank)
        rank.ends(signal=9, later_s=later_s * rank.number)

    assert [kind for _, kind, _ in job.passes(4).kinds()] == [found]


@pytest.mark.parametrize(("gap_s", "kind"), [(0.01, "cancelled"), (0.2, "rank-killed")])
def test_a_signal_that_reaches_one_host_after_the_other_is_a_cancellation(gap_s, kind):
    """A launcher that cleans up after a death does so later, and only on its own host."""
    job = SpreadJob(6, hosts=3).trains(10)
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.3 * (rank.number // 2) + gap_s * (rank.number % 2))

    assert [finding.kind for finding in job.passes(4).verdict().findings] == [kind]


@pytest.mark.parametrize(
    ("later_s", "kind"),
    [((0, 0.07, 0.1, 0.12), "cancelled"), ((0, 0.107, 0.109, 0.11), "rank-killed")],
)
def test_on_a_busy_host_the_ends_of_one_signal_are_spread(later_s, kind):
    """Ends that follow the first one together are a launcher's."""
    job = trained()
    for rank, after_s in zip(job.ranks, later_s, strict=True):
        rank.ends(signal=15, later_s=after_s)

    assert [finding.kind for finding in job.passes(4).verdict().findings] == [kind]


@pytest.mark.parametrize("code", [143, 130])
def test_a_handler_that_turns_the_signal_into_an_exit_code_is_a_cancellation(code):
    job = trained()
    for rank in job.ranks:
        rank.ends(code, later_s=0.01 * rank.number)

    assert job.passes(3).kinds() == [("info", "cancelled", ())]


def test_sigterm_to_the_last_rank_at_work_is_a_cancellation():
    """It uploads after the training; the others have finished, and it needs none of them."""
    job = trained()
    for rank in job.ranks[1:]:
        rank.ends(0)
    job.ranks[0].works_at("upload")
    job.passes(20)
    job.ranks[0].ends(signal=15)
    job.passes(3)

    assert job.ever() == [("info", "cancelled", ())]
    assert job.finding().summary == "the job was cancelled: rank 0 ended (SIGTERM)"
    assert job.snapshot().ended.reason == "cancelled"


# -- a process that is not a rank failed


def raised(at_unix_ns, kind="RuntimeError"):
    where = place("serve", "/home/ada/server.py", 12)
    return HelperEnd(
        4990,
        at_unix_ns,
        1,
        None,
        LastException(kind, "no such table", at_unix_ns, where),
        "python train.py",
    )


def test_a_helper_that_raised_is_named_and_nothing_was_cancelled():
    """A parameter server raised. The verdict was `cancelled`, with exit code 0."""
    job = ended_by_sigterm(raised)
    finding = job.finds("critical", "helper-crashed")

    assert finding.victims == (0, 1, 2, 3)
    assert finding.summary == (
        "a helper process (pid 4990) raised RuntimeError: no such table at server.py:12 serve; "
        "ranks 0-3 were ended because of it"
    )
    assert job.snapshot().ended.reason == "a helper process failed first: RuntimeError"
    assert job.verdict().calm.startswith("ended: ")


@pytest.mark.parametrize(
    ("helper", "text"),
    [
        (
            lambda at: HelperEnd(4990, at, None, 9),
            "a helper process (pid 4990) was killed by SIGKILL",
        ),
        (lambda at: HelperEnd(4990, at, 3), "a helper process (pid 4990) ended with exit code 3"),
        (
            lambda at: HelperEnd(4700, at + 10**9, 1, launcher=True),
            "the program that started the ranks (pid 4700) ended with exit code 1",
        ),
    ],
)
def test_a_helper_without_an_exception_is_named_by_its_end(helper, text):
    job = ended_by_sigterm(helper)

    assert job.finding().kind == "helper-crashed"
    assert job.finding().summary.startswith(text)


@pytest.mark.parametrize(
    "helper",
    [
        lambda at: HelperEnd(4990, at, None, 15),
        lambda at: HelperEnd(4700, at, None, 15, launcher=True),
        lambda at: HelperEnd(4700, at, 143, launcher=True),
        lambda at: HelperEnd(4990, at),
        lambda at: raised(at, "KeyboardInterrupt"),
        lambda at: raised(at + 10**9),
    ],
)
def test_a_helper_that_was_ended_with_the_ranks_changes_nothing(helper):
    assert ended_by_sigterm(helper).kinds() == [("info", "cancelled", ())]


@pytest.mark.parametrize(
    ("signals", "kinds"),
    [
        ((9, 9, 9, 9), ["cancelled"]),
        ((9, 15, 15, 15), ["not-in-collective", "rank-killed"]),
        ((9, None, None, None), ["not-in-collective", "rank-killed"]),
    ],
)
def test_torchrun_kills_all_ranks_that_do_not_end_at_ctrl_c(signals, kinds):
    """They wait in C code. Thirty seconds later they got SIGKILL, and rank 0 was "killed"."""
    job = hung(10, joined_s=0.0)
    for rank, number in zip(job.ranks, signals, strict=True):
        rank.told["environment"] = {"TORCHELASTIC_RUN_ID": "none"}
        job.greet(rank)
        if number is not None:
            rank.ends(signal=number, later_s=0.01 * rank.number)
    found = job.passes(5).verdict().findings

    assert [finding.kind for finding in found] == kinds
    assert "in fetch_labels (data.py:40)" in found[0].summary
