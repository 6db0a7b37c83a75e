"""How a GPU is marked follows the policy that is passed in."""

from dataclasses import replace

from ddtop.model.facts import Device
from ddtop.policy import POLICY
from ddtop.present.gpus import trouble_of
from tests.gpu_jobs import card
from tests.jobs import unix_ns


def test_the_policy_says_from_how_many_refused_allocations_on_a_gpu_is_marked():
    device = Device("node0", card(0, 0), (0,), refused_lately=2)

    assert trouble_of(device, unix_ns(0.0), POLICY) == "warning"
    assert trouble_of(device, unix_ns(0.0), replace(POLICY, gpu_refused_shown=3)) == ""
