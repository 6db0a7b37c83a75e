"""All ranks of a job save, validate or compile at the same time."""

from ddtop.wire.records import TrainingProgress
from tests.jobs import FakeJob
from tests.ranks import unix_ns


def test_ranks_that_all_save_are_said_to_save_and_for_how_long_that_takes():
    job = FakeJob(2).trains(8)
    for rank in job.ranks:
        rank.stands_at("_save")
        rank.says["progress"] = TrainingProgress(
            "hf-trainer", step=60, phase="checkpoint", since_unix_ns=unix_ns(8), usual_s=45.0
        )

    calm = job.passes(10).verdict().calm

    assert calm.startswith("quiet: no rank has moved for 10 s; ranks 0,1 are saving a checkpoint (")
    assert calm.endswith("; usually 45 s")
