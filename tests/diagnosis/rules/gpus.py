"""Jobs for the tests of `gpus` and of the policy."""

import msgspec

from ddtop.wire.records import CudaState
from tests.gpu_jobs import GIB


def refuses(job, cuda, retries=2):
    """Torch's allocator has freed cached memory this often. The count grows each second."""
    for second in range(5):
        job.ranks[0].says["cuda"] = msgspec.structs.replace(
            cuda, retries=cuda.retries + retries * second
        )
        job.trains(1)


def memory(retries=0, ooms=0, allocated=70, reserved=78):
    return CudaState(0, "0", None, allocated * GIB, reserved * GIB, reserved * GIB, retries, ooms)
