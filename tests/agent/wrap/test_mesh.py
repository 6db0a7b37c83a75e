"""What the agent keeps of meshes and pipeline stages when the program makes them."""

from types import ModuleType, SimpleNamespace

from ddtop.agent import current, notes
from ddtop.agent.notes import meshes
from ddtop.agent.probes.parallel import PipelineProbe
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.wrap import distributed
from ddtop.agent.wrap.distributed import wrap_mesh


class FakeMesh:
    """The class of torch/distributed/device_mesh.py."""

    def __init__(self, kind, *, mesh_dim_names=None):
        self.kind, self._names = kind, mesh_dim_names
        self._root_mesh = None

    @property
    def mesh_dim_names(self):
        return self._names


def module_with(**names):
    made = ModuleType("made")
    vars(made).update(names)
    return made


def test_a_mesh_is_remembered_after_it_was_made_and_is_what_the_program_asked_for():
    kind = type("DeviceMesh", (FakeMesh,), {"__init__": FakeMesh.__init__})
    module = module_with(DeviceMesh=kind)
    wrap_mesh(module)
    wrap_mesh(module)
    mesh = kind("cpu", mesh_dim_names=("dp", "tp"))

    assert (mesh.kind, mesh.mesh_dim_names) == ("cpu", ("dp", "tp"))
    assert sum(one is mesh for one in meshes()) == 1


def test_meshes_that_are_gone_make_room_and_run_no_code_when_they_go(monkeypatch):
    """A callback of a weak reference would run inside the collector."""
    known = {}
    monkeypatch.setattr(notes, "_meshes", known)
    monkeypatch.setattr(notes, "MESHES_MAX", 2)
    for number in range(2):
        notes.note_mesh(FakeMesh("cpu", mesh_dim_names=(number,)))
    kept = FakeMesh("cpu", mesh_dim_names=("dp",))
    notes.note_mesh(kept)

    assert notes.meshes() == [kept]
    assert [one.__callback__ for one in known.values()] == [None]


def test_the_stand_in_of_a_torch_without_distributed_is_left_alone():
    stub = type("_DeviceMeshStub", (), {})
    before = stub.__init__
    wrap_mesh(module_with(DeviceMesh=stub))
    wrap_mesh(module_with())

    assert stub.__init__ is before


def test_a_pipeline_stage_is_handed_to_the_probe_of_its_rank(monkeypatch):
    class Stage:
        def __init__(self, index):
            self.stage_index, self.num_stages, self.chunks = index, 2, None

    rank = SimpleNamespace(late_probes={}, lead_id=0, frames=FrameReader())
    monkeypatch.setattr(current, "_rank", rank)
    distributed.wrap_pipelining(module_with(_PipelineStageBase=Stage))
    kept = [Stage(0), Stage(1)]
    probe = rank.late_probes["pipeline"]

    assert isinstance(probe, PipelineProbe)
    assert [one.index for one in probe.fields(None).keywords["pipeline"]] == [0, 1]
    assert len(kept) == 2


def test_a_stage_in_a_process_that_is_no_rank_is_left_alone(monkeypatch):
    stage = type("Stage", (), {"__init__": lambda self: None})
    monkeypatch.setattr(current, "_rank", None)
    distributed.wrap_pipelining(module_with(_PipelineStageBase=stage))

    assert isinstance(stage(), stage)
