"""A second fault does not hide the first, and a consequence is not called a cause."""

from tests.diagnosis.earlier import hangs


def test_who_comes_later_sees_both_too():
    """`ddtop diagnose` looks for two seconds, long after both faults."""
    job = hangs()
    job.ranks[0].is_stopped()
    job.passes(20)

    late = job.verdicts(joined_s=job.now - 2)[-1]

    assert [one.ranks for one in late.findings] == [(2,), (0,)]
