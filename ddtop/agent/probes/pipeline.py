"""The pipeline stages of this rank, and the microbatch that each is in.

Source: attributes of torch's `_PipelineStageBase`: `stage_index`, `num_stages`, `chunks`, the keys
of `fwd_cache` (microbatches whose forward is done and whose backward has not begun), and how many
outputs the last stage has. Whether a forward or a backward runs is seen in the frames. No tensor is
read. Caveat: microbatches go through a stage in ascending order in every schedule; backwards do so
in all but looped BFS, so the number of a backward is left out where it would be a guess.
Check: `stage.fwd_cache.keys()` in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

from ddtop.agent.notes import attribute_of, is_gone
from ddtop.agent.probe import Probe, Tick
from ddtop.agent.stacks.frames import FrameReader
from ddtop.wire.records import Stage

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

STAGES_MAX = 32
IN_FLIGHT_MAX = 64
DEPTH_MAX = 200
FORWARD, BACKWARD = "forward", "backward"
_STAGE_FILE, _SCHEDULE_FILE = "pipelining/stage.py", "pipelining/schedules.py"
_PASSES = {
    "forward_one_chunk": FORWARD,
    "backward_one_chunk": BACKWARD,
    "backward_weight_one_chunk": BACKWARD,
}


class PipelineProbe(Probe):
    """The stages that still exist, in the order in which they were made."""

    name = "pipeline"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._stages: list[ref[Any]] = []

    def add(self, stage: Any) -> None:
        """One more stage; called on the program's thread."""
        if len(self._stages) < STAGES_MAX:
            self._stages.append(ref(stage))

    def fields(self, tick: Tick) -> Mapping[str, Any]:
        """The stages now."""
        stages = [one for one in self._stages if not is_gone(one)]
        in_schedule, passes = running_pass(self._rank.frames, self._rank.lead_id)
        # With several stages the frames do not show which of them runs.
        passes = passes if len(stages) == 1 else None
        return {"pipeline": tuple(_stage(stage, in_schedule, passes) for stage in stages)}


def running_pass(frames: FrameReader, thread_id: int) -> tuple[bool, str | None]:
    """Whether the thread is inside a schedule's step, and in a forward or a backward of it."""
    passes = None
    for (file, function, _, _), _ in frames.walk.stack(thread_id, DEPTH_MAX):
        if passes is None and function in _PASSES and file.endswith(_STAGE_FILE):
            passes = _PASSES[function]
        elif file.endswith(_SCHEDULE_FILE) and function.startswith("step"):
            return True, passes
    return False, None


def _stage(stage: ref[Any], in_schedule: bool, passes: str | None) -> Stage:
    index = int(attribute_of(stage, "stage_index", 0))
    stages = int(attribute_of(stage, "num_stages", 0))
    chunks = attribute_of(stage, "chunks")
    chunks = chunks if isinstance(chunks, int) else None
    if not in_schedule:
        return Stage(index, stages, chunks)
    # The keys are numbers. They are copied in one C call, so the program cannot change them
    # meanwhile.
    in_flight = tuple(sorted(attribute_of(stage, "fwd_cache", ()))[:IN_FLIGHT_MAX])
    # The last stage keeps each output until the end of the step, unless the program has switched
    # that off.
    last = index == stages - 1
    outputs = len(attribute_of(stage, "output_chunks", ())) if last else 0
    microbatch = None
    if passes == FORWARD:
        microbatch = _next_forward(in_flight, outputs, last)
    elif passes == BACKWARD:
        microbatch = _running_backward(in_flight, outputs, chunks)
    return Stage(index, stages, chunks, in_flight, passes, microbatch)


def _next_forward(in_flight: tuple[int, ...], outputs: int, last: bool) -> int | None:
    if in_flight:
        return in_flight[-1] + 1
    # Only the last stage can have finished everything that it began and still continue.
    return (outputs or None) if last else 0


def _running_backward(in_flight: tuple[int, ...], outputs: int, chunks: int | None) -> int | None:
    if in_flight:
        return in_flight[0] - 1 if in_flight[0] > 0 else None
    return outputs - 1 if chunks is not None and 0 < outputs < chunks else None
