"""Findings about GPUs that do less than they could: only with evidence, and never without GPUs."""

import msgspec
import pytest

from ddtop.wire.records import CudaState, Gpu, GpuProcess
from tests.diagnosis.rules.gpus import memory, refuses
from tests.gpu_jobs import GIB, GpuJob, card, free, holding, stranger
from tests.jobs import FakeJob


def test_a_healthy_job_on_gpus_says_nothing():
    """Full GPUs at their power cap, and a display server: every healthy host looks like that."""
    job = GpuJob()
    for number in range(4):
        job.change(number, used_bytes=79 * GIB, throttle=("sw_power_cap",))
        job.ranks[number].says["cuda"] = CudaState(
            number, None, None, 80 * GIB, 70 * GIB, 76 * GIB, 76 * GIB, 1, 0
        )
    job.has(
        holding(
            job.host_says["gpus"][0],
            GpuProcess(900, 300 << 20, user="root", command="/usr/bin/Xorg"),
        ),
        *job.host_says["gpus"][1:],
    )

    assert job.trains(20).ever() == []


# -- gpu-busy


def test_a_process_of_somebody_else_on_a_rank_s_gpu_is_named():
    """A colleague's server still runs from last week, and rank 1 is the slowest."""
    job = GpuJob()
    job.has(card(0, 0), holding(card(1, 1), stranger()), card(2, 2), card(3, 3))
    finding = job.trains(14).finds("warning", "gpu-busy", 1)

    assert finding.summary == (
        "GPU 1 of node0 (rank 1) is also used by other processes: pid 3310 (bob, python"
        " sample.py, 31.0 GiB)"
    )
    assert "kill 3310" in finding.advice
    assert "no GPU of that host is free" in finding.advice


def test_who_came_a_moment_ago_may_be_a_child_of_a_rank_and_who_goes_was_one():
    """The relay looks for children every few seconds, and the driver's list is seconds old."""
    job = GpuJob().trains(5)
    job.has(card(0, 0), holding(card(1, 1), stranger()), card(2, 2), card(3, 3))
    job.trains(8)
    job.has(*[card(number, number) for number in range(4)])

    assert job.trains(5).ever() == []


def test_the_list_has_a_rank_for_a_while_after_it_has_ended():
    """The next attempt must not take the processes of the last attempt for foreign ones."""
    job = GpuJob(card(0, 0), card(1, 1), world_size=2).trains(5)
    job.has(card(0, 0), holding(card(1), GpuProcess(4801, 40 * GIB)))
    job.ranks[1].ends(0)

    assert "gpu-busy" not in [kind for _, kind, _ in job.trains(15).ever()]


def test_what_the_launcher_has_started_besides_the_ranks_is_no_stranger():
    """An inference engine beside its workers."""
    job = GpuJob()
    job.has(card(0, 0), holding(card(1, 1), stranger(ours=True)), card(2, 2), card(3, 3))

    assert job.trains(20).ever() == []


MPS = GpuProcess(777, 31 * GIB, user="root", command="nvidia-cuda-mps-server")


def test_ranks_that_share_a_gpu_by_mps_were_meant_to():
    assert GpuJob(holding(card(0, 0, 1), MPS), free(1), world_size=2).trains(20).ever() == []

    told = GpuJob(card(0, 0, 1), free(1), world_size=2)
    for rank in told.ranks:
        rank.told["environment"] = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}
        told.greet(rank)
    told.trains(20)
    assert told.ever() == []


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


def test_in_a_batch_job_only_the_gpus_that_it_was_given_are_offered():
    job = GpuJob(card(0, 0, 1), free(1), free(2), world_size=2)
    for rank in job.ranks:
        rank.told["environment"] = {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1"}
        job.greet(rank)

    assert job.trains(5).finding().summary == "ranks 0,1 share GPU 0 of node0; GPU 1 is free"


@pytest.mark.parametrize("used", [300 << 20, 3 * GIB, None])
def test_a_display_server_or_an_idle_notebook_is_no_news(used):
    job = GpuJob()
    job.has(card(0, 0), holding(card(1, 1), stranger(used=used)), card(2, 2), card(3, 3))

    assert job.trains(5).ever() == []


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


def test_a_stranger_on_a_gpu_that_is_not_the_job_s_is_not_the_job_s_affair():
    job = GpuJob(card(0, 0), card(1, 1), holding(card(2), stranger()), world_size=2)

    assert job.trains(5).ever() == []


# -- gpu-shared


def test_two_ranks_on_one_gpu_while_another_is_empty():
    """model.to("cuda") on every rank puts all of them on GPU 0."""
    job = GpuJob(card(0, 0, 1), free(1), world_size=2)
    finding = job.trains(5).finds("warning", "gpu-shared", 0, 1)

    assert finding.summary == "ranks 0,1 share GPU 0 of node0; GPU 1 is free"
    assert "LOCAL_RANK" in finding.advice


def test_more_ranks_than_gpus_get_another_advice():
    job = GpuJob(card(0, 0, 1), world_size=2)

    assert "set_per_process_memory_fraction" in job.trains(5).finding().advice


def test_a_context_on_the_first_gpu_is_not_sharing():
    """torch.load without map_location left half a gigabyte of each rank on GPU 0."""
    job = GpuJob(card(0, 0, 1), card(1, 1), world_size=2)
    for number, rank in enumerate(job.ranks):
        rank.says["cuda"] = CudaState(number, str(number))

    assert job.trains(5).ever() == []


@pytest.mark.parametrize(
    "text",
    [
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
        # NCCL 2.30.7.
        (
            "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to"
            " enable this configuration."
        ),
    ],
)
def test_nccl_refuses_two_ranks_on_one_gpu(text):
    job = GpuJob(card(0, 0, 1), world_size=2).trains(1)
    job.ranks[1].raises(
        "DistBackendError",
        f"NCCL error in: NCCLUtils.cpp:94, invalid usage, ncclInvalidUsage: Last error: {text}",
    )
    job.ranks[1].ends(1)
    job.ranks[0].stands_at("train_step")

    kinds = job.passes(3).kinds()
    assert ("critical", "gpu-shared", (0, 1)) in kinds
    assert not [kind for _, kind, _ in kinds if kind == "rank-crashed"]


def test_where_nothing_is_known_of_the_gpus_the_rank_that_was_refused_is_named():
    job = FakeJob(2).trains(1)
    job.ranks[1].raises("DistBackendError", "Multiple Ranks are using the same GPU/Partition.")
    job.ranks[1].ends(1)
    job.passes(3)

    assert ("critical", "gpu-shared", (1,)) in job.kinds()
    assert "rank 1 is on the GPU of another rank" in job.finding().summary


# -- gpu-memory-low


def test_a_full_gpu_whose_allocations_fail_at_first_is_low_on_memory():
    job = GpuJob(card(0, 0, used_bytes=79 * GIB), card(1, 1), world_size=2)
    refuses(job, memory())
    finding = job.finds("warning", "gpu-memory-low", 0)

    assert (
        "1.0 GiB of 80.0 GiB left, 8 torch allocations had to be retried recently"
        in finding.summary
    )


@pytest.mark.parametrize(
    ("cuda", "advice"),
    [
        (memory(12, allocated=50), "expandable_segments"),
        (memory(12), "smaller batch"),
        (memory(0, 1), "smaller batch"),
    ],
)
def test_the_advice_follows_from_what_torch_has(cuda, advice):
    job = GpuJob(card(0, 0, used_bytes=79 * GIB), card(1, 1), world_size=2)
    refuses(job, cuda)

    assert advice in job.finding().advice


@pytest.mark.parametrize(
    ("used", "cuda"),
    [
        (79, memory()),
        (79, memory(retries=2)),
        (79, memory(retries=900, ooms=4)),
        (76, memory(retries=50)),
        (79, None),
    ],
)
def test_a_full_gpu_alone_is_how_torch_works(used, cuda):
    job = GpuJob(card(0, 0, used_bytes=used * GIB), card(1, 1), world_size=2)
    if cuda is not None:
        job.ranks[0].says["cuda"] = cuda

    assert job.trains(5).ever() == []


# -- gpu-throttled


def test_a_gpu_that_heat_holds_below_the_others_is_throttled():
    job = GpuJob()
    job.change(2, throttle=("hw_thermal", "hw_slowdown"), sm_mhz=1005, celsius=91)
    finding = job.trains(10).finds("warning", "gpu-throttled", 2)

    assert finding.summary == (
        "GPU 2 of node0 (rank 2) is held at 1005 MHz by heat and the hardware; the job's other"
        " GPUs of this model run at 1755"
    )
    assert finding.evidence[0].startswith("91 C, 600 of 700 W")


@pytest.mark.parametrize(
    "change",
    [
        {"throttle": ("hw_thermal",), "sm_mhz": 1600},
        {"throttle": (), "sm_mhz": 900},
        {"throttle": ("app_clocks",), "sm_mhz": 900},
    ],
)
def test_slower_for_no_such_reason_or_by_little_is_not_throttled(change):
    job = GpuJob()
    job.change(2, **change)

    assert job.trains(10).ever() == []


def test_a_moment_at_the_power_cap_is_not_throttled():
    job = GpuJob()
    job.change(2, throttle=("sw_power_cap",), sm_mhz=1100)
    job.trains(4)
    job.change(2, throttle=(), sm_mhz=1755)

    assert job.trains(6).ever() == []


def test_the_only_gpu_that_computes_runs_at_its_power_cap_and_the_others_wait_at_full_clock():
    """Rank 2 evaluates while the others spin: it is the only one that works."""
    job = GpuJob()
    for number in range(4):
        job.change(number, power_watts=180.0, sm_mhz=1980)
    job.change(2, throttle=("sw_power_cap",), sm_mhz=1400, power_watts=695.0)

    assert job.trains(20).ever() == []


def test_a_gpu_at_its_power_cap_below_others_that_draw_as_much_is_throttled():
    job = GpuJob()
    job.change(2, throttle=("sw_power_cap",), sm_mhz=1100)

    assert (
        "held at 1100 MHz by its power cap; the job's other GPUs of this model run at 1755"
        in job.trains(10).finding().summary
    )


def test_a_gpu_at_rest_is_not_throttled():
    job = GpuJob()
    job.change(2, throttle=("hw_slowdown",), sm_mhz=345, util_ratio=0.0, power_watts=80.0)

    assert job.trains(20).ever() == []


def test_a_single_gpu_is_compared_with_what_it_could_do():
    job = GpuJob(card(0, 0, throttle=("sw_thermal",), sm_mhz=900), world_size=1)
    assert [kind for _, kind, _ in job.trains(10).kinds()] == ["gpu-throttled"]

    capped = GpuJob(card(0, 0, throttle=("sw_power_cap",), sm_mhz=900), world_size=1)
    capped.trains(10)
    assert capped.ever() == []
