"""What the list of a GPU's processes, and its memory, say of its ranks."""

import msgspec

from ddtop.wire.records import CudaState, Gpu, GpuProcess
from tests.gpu_jobs import GIB, GpuJob, card


def test_two_instances_of_one_gpu_are_two_gpus():
    """The GPU's own list has both processes, and each MIG instance's list has its own."""
    whole = card(0, 0, 1, mig=True)
    parts = [
        Gpu(0, f"MIG-{number}", None, 5 * GIB, 10 * GIB, "H100 MIG 1g.10gb", parent="GPU-0")
        for number in range(2)
    ]
    named = [
        msgspec.structs.replace(one, processes=(GpuProcess(4800 + number, 5 * GIB, rank=number),))
        for number, one in enumerate(parts)
    ]
    for instances in (named, parts):
        job = GpuJob(whole, *instances, world_size=2).trains(15)

        assert job.ever() == []


def test_in_a_container_a_pid_of_the_host_is_not_called_a_stranger():
    """The unknown pid is most probably the rank itself, as the host's namespace sees it."""
    job = GpuJob()
    job.has(
        *[
            card(number, processes=(GpuProcess(99_000 + number, 40 * GIB, local=False),))
            for number in range(4)
        ]
    )
    for number, rank in enumerate(job.ranks):
        rank.says["cuda"] = CudaState(number, str(number))
    job.trains(5)

    assert job.snapshot().devices[2].ranks == (2,)
    assert job.ever() == []
