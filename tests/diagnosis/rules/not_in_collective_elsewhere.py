"""Jobs of `test_not_in_collective_elsewhere.py` and of the pages of findings."""

from tests.jobs import trained


def hang():
    """Four ranks train. Then rank 2 is stuck in user code and the others wait for it."""
    job = trained()
    job.ranks[2].stands_at("wait_for_licence", "/home/ada/train.py", 53)
    job.others_wait(2)
    return job
