"""Two threads of a rank use one group: only collectives open at the same time count."""

import pytest

from tests.diagnosis.rules.threads import both_wait

KIND = "threads-share-group"


def kinds(job):
    return {kind for _, kind, _ in job.ever()}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((7, "MainThread"), (7, "MainThread")),
        ((7, "MainThread"), (9, "pt_autograd_0")),
        ((9, "pt_autograd_0"), (10, "pt_autograd_1")),
        ((7, "MainThread"), (11, "native")),
        ((7, "MainThread"), (11, None)),
        (None, None),
    ],
    ids=[
        "one thread",
        "forward and backward",
        "two devices",
        "a hook in C++",
        "a thread without a name",
        "an old torch",
    ],
)
def test_other_thread_ids_mean_nothing(first, second):
    """DDP broadcasts from the thread of forward, and reduces from autograd's."""
    assert KIND not in kinds(both_wait(first, second))
