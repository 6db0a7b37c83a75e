"""All ranks were ended from outside, so no rank is at fault. And jobs that only look like that."""

import pytest

from ddtop.wire.records import HelperEnd, LastException
from tests.diagnosis.rules.cancelled import ended_by_sigterm
from tests.jobs import place, trained


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
