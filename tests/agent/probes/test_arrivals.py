"""One read of torch's recorder gives every collective of the rank with its time."""

import json

import pytest

from tests.recorders import records_gloo
from tests.running import python

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROGRAM = """
import json, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
began = time.time_ns()
for _ in range(20):
    dist.all_reduce(torch.zeros(4))
    dist.broadcast(torch.zeros(4), src=0)
    dist.barrier()
ended = time.time_ns()
from ddtop.agent.probes.collectives import take
from ddtop.agent.probes.collectives import Collectives
from tests.agent.probing import fake_rank
probe = Collectives(fake_rank())
for tick in range(4):
    probe.look(time.monotonic_ns(), 0, False)
(group,) = take([probe], "r1", 7).groups
times = group.times()
print(json.dumps({"bytes": group.call_bytes, "seqs": sorted(times),
    "kinds": [times[seq][1] for seq in sorted(times)],
    "inside": all(began // 1000 <= us <= ended // 1000 for us, _ in times.values()),
    "ordered": [times[seq][0] for seq in sorted(times)] == sorted(us for us, _ in times.values())}))
dist.destroy_process_group()
"""


def test_every_collective_is_reported_with_its_time_and_kind(tmp_path):
    if not records_gloo():
        pytest.skip("this torch records no collectives of gloo")
    done = python("-c", PROGRAM, f"file://{tmp_path}/store")
    said = json.loads(done.stdout)

    assert said["seqs"] == list(range(1, 61))
    assert said["kinds"] == [3, 2, 3] * 20
    assert said["bytes"] == pytest.approx(2 * 16 / 3)
    assert said["inside"]
    assert said["ordered"]
