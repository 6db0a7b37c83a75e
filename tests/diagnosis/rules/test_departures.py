"""Ranks that are gone: which ended first, which were a consequence, and which were no fault."""

import pytest

from tests.jobs import trained

# -- rank-crashed


def test_a_crash_is_one_finding_before_and_after_others_wait_for_the_rank():
    """The exception is reported before the others reach the collective."""
    job = trained()
    job.ranks[1].raises("ValueError", "bad sample 7")
    job.passes(2)
    job.others_wait(1)
    seen = []
    for _ in range(8):
        job.passes(0.5)
        seen.append([finding.kind for finding in job.verdict().findings])

    assert job.finding().group is not None
    assert seen == [["rank-crashed"]] * 8


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        ("MemoryError", "", "rank 2 asked for more memory than it may have"),
        ("OutOfMemoryError", "CUDA out of memory", "the rank itself uses the memory"),
        ("OSError", "[Errno 28] No space left on device", "rank 2 found its disk full"),
        ("OSError", "[Errno 27] File too large", "rank 2 wrote a larger file than it may"),
        ("OSError", "[Errno 24] Too many open files: 'a.pt'", "rank 2 has more files open"),
        (
            "RuntimeError",
            "Expected to have finished reduction in the prior iteration before starting a new one.",
            "some parameters had no part in the loss of rank 2",
        ),
        ("RuntimeError", "stack expects each tensor to be equal size, but got [3]", "the samples"),
    ],
)
def test_a_rank_that_lacks_something_is_told_what(kind, text, advice):
    job = trained()
    job.ranks[2].raises(kind, text)
    job.ranks[2].ends(1)

    assert job.passes(3).finding().advice.startswith(advice)


# -- rank-killed


@pytest.mark.parametrize(
    ("ending", "ours"),
    [
        ({"signal": 11, "walking": True}, True),
        ({"signal": 6, "walking": True}, True),
        ({"signal": 11}, False),
        # Somebody else ended it in that moment.
        ({"signal": 9, "walking": True}, False),
        ({"signal": 15, "walking": True}, False),
    ],
)
def test_a_rank_that_dies_while_ddtop_reads_its_frames_was_crashed_by_ddtop(ending, ours):
    job = trained()
    job.ranks[3].ends(**ending)
    job.others_wait(3)
    finding = job.passes(3).finds("critical", "rank-killed", 3)

    assert finding.summary.startswith("ddtop's own thread crashed rank 3 (pid 4803): SIG") is ours
    assert finding.summary.startswith("rank 3 (pid 4803) was killed by SIG") is not ours
    assert ("DDTOP_FRAMES=off" in finding.advice) is ours


# -- left-early


def test_an_early_finisher_whose_peers_need_nothing_more_is_silent():
    job = trained()
    job.ranks[3].ends(0)
    job.trains(10)

    assert job.ever() == []
    assert job.verdict().calm == "ok: 3/4 moving, rank 3 finished, watched 20 s"
