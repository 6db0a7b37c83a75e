"""The program that asks who notices another limit: `python -m tools.limits`."""

from ddtop.model.facts import Device
from ddtop.policy import POLICY
from ddtop.present.gpus import trouble_of
from ddtop.wire.records import Gpu
from tools.limits import Reads, in_a_fork


def test_one_place_gets_another_limit_and_who_reads_it_elsewhere_gets_ours():
    """In a process of its own, because every later policy of this one would be changed."""
    device = Device("node0", Gpu(0, "GPU-a", 0.0, 1, 100), (0,), refused_lately=1)

    def said():
        reads = Reads()
        before = trouble_of(device, 0, POLICY)
        (place,) = (one for one in reads.places if one.limit == "gpu_refused_shown")
        reads.changed, reads.factor = place, 2.0
        return [before, str(place), trouble_of(device, 0, POLICY), POLICY.gpu_refused_shown]

    assert in_a_fork(said) == [
        "warning", "gpu_refused_shown in present/gpus.py: trouble_of", "", 1,
    ]  # fmt: skip
