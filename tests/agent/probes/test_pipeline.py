"""The stage and microbatch of a rank, read from the attributes of torch's stages."""

from types import SimpleNamespace

import pytest

from ddtop.agent.probe import Tick
from ddtop.agent.probes import parallel
from ddtop.agent.probes.parallel import PipelineProbe
from ddtop.wire.records import Stage


class FakeStage:
    """A stage as torch/distributed/pipelining/stage.py has it."""

    def __init__(self, index=0, stages=2, cache=(), outputs=0, chunks=4):
        self.stage_index, self.num_stages, self.chunks = index, stages, chunks
        self.fwd_cache = dict.fromkeys(cache)
        self.output_chunks = [None] * outputs


def seen(monkeypatch, stage, in_schedule=True, passes=None):
    monkeypatch.setattr(parallel, "running_pass", lambda *_: (in_schedule, passes))
    probe = PipelineProbe(SimpleNamespace(lead_id=0, frames=None))
    probe.add(stage)
    (found,) = probe.fields(Tick()).keywords["pipeline"]
    return found


@pytest.mark.parametrize(
    ("stage", "passes", "microbatch"),
    [
        (FakeStage(cache=()), "forward", 0),
        (FakeStage(cache=(0, 1)), "forward", 2),
        (FakeStage(cache=(2, 3)), "backward", 1),
        (FakeStage(index=1, outputs=2), "forward", 2),
        (FakeStage(index=1, outputs=2), "backward", 1),
        # Looped BFS goes backwards from the last: the number of a backward would be a guess.
        (FakeStage(cache=(0, 1)), "backward", None),
        (FakeStage(index=1, outputs=4), "backward", None),
        # The last stage may have been told not to keep its outputs.
        (FakeStage(index=1), "forward", None),
    ],
)
def test_the_microbatch_follows_from_what_the_stage_keeps(monkeypatch, stage, passes, microbatch):
    found = seen(monkeypatch, stage, passes=passes)

    assert (found.pass_, found.microbatch) == (passes, microbatch)


def test_a_rank_that_waits_for_its_neighbour_says_what_is_in_flight(monkeypatch):
    assert seen(monkeypatch, FakeStage(cache=(2, 1))) == Stage(0, 2, 4, (1, 2))


def test_between_two_steps_only_the_stage_is_reported(monkeypatch):
    assert seen(monkeypatch, FakeStage(cache=(1,)), in_schedule=False) == Stage(0, 2, 4)


def test_of_several_stages_none_is_said_to_run(monkeypatch):
    monkeypatch.setattr(parallel, "running_pass", lambda *_: (True, "forward"))
    probe = PipelineProbe(SimpleNamespace(lead_id=0, frames=None))
    stages = [FakeStage(0, 4), FakeStage(2, 4)]
    for stage in stages:
        probe.add(stage)

    assert [one.pass_ for one in probe.fields(Tick()).keywords["pipeline"]] == [None, None]
    del stage, stages[1]
    assert [one.index for one in probe.fields(Tick()).keywords["pipeline"]] == [0]
