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


def test_a_rank_that_needs_more_than_the_gpu_has_crashed_by_itself():
    """No other process uses it: the batch is too large."""
    job = GpuJob()
    job.ranks[2].says["cuda"] = CudaState(2, "2", None, 70 * GIB, 76 * GIB, 78 * GIB, 12, 1)
    job.trains(1)
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
    job.ranks[2].raises("OutOfMemoryError", text)
    job.ranks[2].ends(1)
    job.others_wait(2)
    finding = job.passes(5).finds("critical", "rank-crashed", 2)

    assert finding.evidence[-1] == (
        "GPU 2 of node0: 40.0 GiB of 80.0 GiB used; rank 2 has 70.0 GiB allocated, 76.0 GiB"
        " reserved, 12 allocations retried"
    )
    assert "smaller batch" in finding.advice
