"""Which rank uses which GPU: by torch, by the driver's list, by the environment."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.gpus import by_environment, devices_of, own_gpu, visible_gpus
from ddtop.wire.records import CudaState, Gpu, GpuProcess, GpuWatch, Hello
from tests.jobs import FakeJob

GIB = 1 << 30
GPUS = tuple(
    Gpu(number, f"GPU-{number}aaa-bbbb", name="H100", pci=f"00000000:{number:02x}:00")
    for number in range(4)
)


def hello(local=1, rank=1, backend="nccl", **environment):
    return Hello(
        "job",
        "r1",
        0,
        rank,
        local,
        4,
        "node0",
        4800 + rank,
        1,
        environment=environment,
        backend=backend,
    )


def indices(found):
    return None if found is None else [gpu.index for gpu in found]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("0,1", [0, 1]),
        ("3,1", [3, 1]),
        ("2", [2]),
        ("", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("1,1", []),
        ("NoDevFiles", []),
        ("GPU-2aaa", [2]),
        ("GPU-2aaa-bbbb,GPU-0", [2, 0]),
        ("GPU-", []),
        ("GPU-7", []),
        (" 1 , 2 ", [1, 2]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text, seen):
    assert indices(visible_gpus({"CUDA_VISIBLE_DEVICES": text}, GPUS)) == seen


def test_indices_of_unequal_gpus_mean_nothing_without_the_pci_order():
    """CUDA puts the fastest GPU first, the driver orders by PCI address: 0 of one is 3 of the
    other."""
    mixed = (*GPUS[:3], Gpu(3, "GPU-3", name="T400"))

    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, mixed) is None
    assert indices(
        visible_gpus({"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed)
    ) == [3]
    assert indices(visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-3"}, mixed)) == [3]


def test_a_mig_instance_is_found_by_its_own_name():
    parts = (msgspec.structs.replace(GPUS[0], mig=True), Gpu(0, "MIG-77-88", parent=GPUS[0].uuid))

    assert by_environment(hello(0, CUDA_VISIBLE_DEVICES="MIG-77-88"), parts) == parts[1]
    assert visible_gpus({}, parts) is None


def test_the_local_rank_counts_among_the_visible_ones():
    assert by_environment(hello(1, CUDA_VISIBLE_DEVICES="3,2"), GPUS).index == 2
    assert by_environment(hello(1), GPUS).index == 1
    assert by_environment(hello(5), GPUS) is None


def test_where_each_rank_sees_one_gpu_the_local_rank_does_not_count():
    assert by_environment(hello(3, CUDA_VISIBLE_DEVICES="2"), GPUS).index == 2


def test_torch_precedes_the_drivers_list_and_the_list_the_environment():
    held = tuple(
        msgspec.structs.replace(
            gpu, processes=(GpuProcess(4801, GIB, rank=1),) if gpu.index == 3 else ()
        )
        for gpu in GPUS
    )

    assert (own_gpu(hello(0), CudaState(0, "2AAA-bbbb"), held).gpu.index) == 2
    assert own_gpu(hello(0), CudaState(0, None, "00000000:01:00"), held).gpu.index == 1
    assert own_gpu(hello(0), None, held).gpu.index == 3
    assert own_gpu(hello(0), None, held).by == "process"
    assert own_gpu(hello(0), None, GPUS).gpu.index == 0
    assert own_gpu(hello(0), None, GPUS).certain is False


def test_a_rank_on_gloo_that_the_driver_does_not_list_has_no_gpu():
    """A CPU job on a host with GPUs must not seem to use them."""
    assert own_gpu(hello(0, backend="gloo"), None, GPUS) is None


@given(st.text(alphabet="0123456789,-GPUMIG ab", max_size=30), st.integers(0, 9))
def test_no_environment_yields_a_gpu_twice_or_one_that_is_not_there(text, local):
    found = visible_gpus({"CUDA_VISIBLE_DEVICES": text}, GPUS)

    assert found is None or (
        len({gpu.uuid for gpu in found}) == len(found) and set(found) <= set(GPUS)
    )
    by_environment(hello(local, CUDA_VISIBLE_DEVICES=text), GPUS)


def job_on(*gpus, **more):
    job = FakeJob(2)
    job.host_says = {"gpus": gpus, "gpu_watch": GpuWatch(300)} | more
    return job


def test_the_snapshot_has_the_gpu_of_each_rank_and_the_ranks_of_each_gpu():
    gpu = Gpu(
        0,
        "GPU-a",
        0.5,
        9 * GIB,
        80 * GIB,
        processes=(GpuProcess(4800, 5 * GIB, rank=0), GpuProcess(77, 4 * GIB)),
    )
    job = job_on(gpu)
    snapshot = job.trains(3).snapshot()

    (device,) = snapshot.devices
    assert (snapshot.ranks[0].gpu.own.gpu.uuid, snapshot.ranks[1].gpu.own) == ("GPU-a", None)
    assert (device.host, device.ranks, [one.pid for one in device.foreign]) == ("node0", (0,), [77])
    assert (device.ours_bytes, device.foreign_bytes) == (5 * GIB, 4 * GIB)


def test_in_a_container_the_owner_of_gpu_memory_is_unknown():
    gpu = Gpu(0, "GPU-a", 0.5, 9 * GIB, 80 * GIB, processes=(GpuProcess(99, 9 * GIB, local=False),))
    job = job_on(gpu)
    (device,) = job.trains(3).snapshot().devices

    assert (device.foreign, device.ours_bytes, device.foreign_bytes) == ((), None, None)


def test_old_numbers_of_the_driver_are_not_shown_as_current():
    """The GPU's driver hangs: the GPU's name stays, its numbers do not."""
    gpu = Gpu(0, "GPU-a", 0.97, 9 * GIB, 80 * GIB, processes=(GpuProcess(4800, 5 * GIB, rank=0),))
    job = job_on(gpu).trains(3)
    job.host_says["gpu_watch"] = GpuWatch(60_000)
    own = job.trains(3).snapshot().ranks[0].gpu.own

    assert (own.gpu.uuid, own.gpu.util_ratio, own.gpu.used_bytes) == ("GPU-a", None, None)


def test_a_host_without_gpus_costs_the_snapshot_nothing():
    job = FakeJob(2).trains(3)
    model = job.model()

    assert (devices_of(model.gpus, model.policy), job.snapshot().devices) == ({}, ())
