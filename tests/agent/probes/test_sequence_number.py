"""How many collectives a group has counted: itself, or its backends."""

from types import SimpleNamespace

import pytest

from ddtop.agent.probes.groups import number_of
from tests.running import python

REAL = """
import os, torch, torch.distributed as dist
dist.Backend.register_backend("other", lambda *_: None, devices=["cpu"])
dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(1))
group = dist.distributed_c10d._world.default_pg
try:
    group._get_sequence_number_for_group()
    print("says it")
except RuntimeError:
    print("does not")
from ddtop.agent.probes.groups import number_of
print(number_of(group), flush=True)
# Threads of gloo that still run at the end of the interpreter abort it now and then.
os._exit(0)
"""


def of_no_default(**numbers):
    """For each device it has the count of that device's backend, or None without one."""

    def ask(group_number=None):
        if group_number is None:
            raise RuntimeError("ProcessGroup undefined does not yet support sequence numbers.")
        return group_number

    def backend(device):
        return SimpleNamespace(_get_sequence_number_for_group=lambda: ask(numbers[device]))

    return SimpleNamespace(
        _get_sequence_number_for_group=ask,
        _device_types=list(numbers),
        _get_backend=backend,
        numbers=numbers,
    )


@pytest.mark.parametrize(
    ("group", "number"),
    [
        (SimpleNamespace(_get_sequence_number_for_group=lambda: 7), 7),
        (of_no_default(cpu=12), 12),
        (of_no_default(cpu=12, cuda=None), 12),
        (of_no_default(cpu=None), None),
        (of_no_default(), None),
        (SimpleNamespace(), None),
    ],
)
def test_where_the_group_has_no_default_backend_those_of_its_devices_are_asked(group, number):
    """init_process_group("cpu:gloo") in a program that has imported FSDP."""
    assert number_of(group) == number


def test_torch_leaves_a_group_of_named_devices_without_a_default_backend():
    """If torch ever counts in the group itself, the answer must stay the same."""
    pytest.importorskip("torch")

    told = python("-c", REAL).stdout

    assert told.split("\n")[1] == "3"
