"""All ranks were ended from outside, so no rank is at fault. And jobs that only look like that."""

import pytest

from ddtop.wire.records import HelperEnd
from tests.diagnosis.rules.cancelled import ended_by_sigterm, raised

# -- a process that is not a rank failed


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
