"""A real job in which no rank makes progress. The limits are shortened, so that the test is
short.
"""

import pytest

from ddtop import registry, thresholds
from ddtop.follow.looks import look_once
from ddtop.policy import POLICY

pytestmark = pytest.mark.torch


SOON = {"no_progress_s": 3.0, "standstill.no_progress_critical_s": 5.0}


def test_a_lock_file_that_nobody_removes_is_named_and_critical(world, monkeypatch):
    """torch.utils.cpp_extension leaves the lock file behind when a build is killed. Without the
    file the job continues to its end.
    """
    lock = world.folder / "lock"
    lock.touch()
    process = world.torchrun("baton", str(world.folder), ranks=2)
    world.until(registry.read_entries, 60.0, "a job file")
    (entry,) = registry.read_entries()
    monkeypatch.setattr(thresholds, "_chosen", POLICY.with_limits(SOON))

    def stands():
        verdict = look_once(entry, 2.5)[1]
        return next(
            (
                one
                for one in verdict.findings
                if one.kind == "no-progress" and one.severity == "critical"
            ),
            None,
        )

    finding = world.until(stands, 60.0, "a finding")

    assert finding.ranks == (0, 1)
    assert f"ranks 0,1 are waiting for the lock file {lock} (baton.py:" in finding.summary
    lock.unlink()
    assert world.done(process) == 0
