"""GPUs that a rank cannot get or that have failed come before their consequences."""

import msgspec
import pytest

from ddtop.wire.records import CudaState, Gpu, GpuProcess, Xid
from tests.gpu_jobs import GIB, GpuJob, card, free, stranger
from tests.jobs import FakeJob, unix_ns

# -- gpu-unavailable

BUSY = (
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable. CUDA kernel errors might be"
    " asynchronously reported"
)
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of"
    " which 1.00 GiB is free."
)


def dies_with(job, number, text, kind="RuntimeError"):
    for rank in job.ranks:
        rank.iteration = None
    job.trains(1)
    job.ranks[number].raises(kind, text)
    job.ranks[number].ends(1)
    job.others_wait(number)
    job.passes(5)
    return next(finding for finding in job.verdict().findings if number in finding.ranks)


@pytest.mark.parametrize(
    "text", [BUSY, "CUDA error: all CUDA-capable devices are busy or unavailable", OOM]
)
def test_a_gpu_that_is_taken_says_by_whom_and_which_are_free(text):
    """A worker of yesterday's run still holds 60 GB."""
    taken = card(1, processes=(stranger(used=60 * GIB, orphan=True),))
    job = GpuJob(card(0, 0), taken, card(2, 2), card(3, 3), free(4), free(5))
    job.ranks[1].told |= {"backend": "nccl", "local_rank": 1}
    job.greet(job.ranks[1])
    finding = dies_with(job, 1, text)

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "gpu-unavailable", (1,))
    assert (
        "GPU 1 of node0 is held by pid 3310 (bob, python sample.py, 60.0 GiB, its parent has ended)"
        in finding.summary
    )
    assert "GPUs 4,5 are free" in finding.summary
    assert finding.summary.endswith("ranks 0,2,3 wait for it in all_reduce #11 of default_pg")
    assert finding.advice == (
        "start it on a free one: CUDA_VISIBLE_DEVICES=4,5; or end the process that holds it, if"
        " it is yours: kill 3310"
    )


def test_nobody_is_told_to_end_the_display_server():
    job = GpuJob(
        card(0, 0),
        card(1, processes=(stranger(used=60 * GIB), stranger(900, used=300 << 20))),
        world_size=2,
    )
    job.ranks[1].told |= {"backend": "nccl", "local_rank": 1}
    job.greet(job.ranks[1])

    assert dies_with(job, 1, BUSY).advice.endswith("kill 3310")


def test_a_rank_that_has_died_of_it_does_not_hold_its_gpu_itself():
    """The driver's list of processes is five seconds old by then."""
    job = GpuJob(card(0, 0), card(1, processes=(GpuProcess(4801, 9 * GIB),)), world_size=2)
    job.ranks[1].told |= {"backend": "nccl", "local_rank": 1}
    job.greet(job.ranks[1])

    assert "held" not in dies_with(job, 1, BUSY).summary


def test_where_gpus_are_of_several_kinds_their_numbers_are_given_an_order():
    """CUDA numbers the fastest first."""
    taken = card(1, processes=(stranger(used=60 * GIB),))
    job = GpuJob(card(0, 0), taken, msgspec.structs.replace(free(2), name="T400"), world_size=2)
    job.ranks[1].told |= {
        "backend": "nccl",
        "local_rank": 1,
        "environment": {"CUDA_VISIBLE_DEVICES": "GPU-1"},
    }
    job.greet(job.ranks[1])

    advice = dies_with(job, 1, BUSY).advice
    assert advice.startswith(
        "start it on a free one: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2; "
    )


def test_exclusive_mode_is_reported():
    job = GpuJob(card(0, 0), card(1, processes=(stranger(),), exclusive=True), world_size=2)
    job.ranks[1].told |= {"backend": "nccl", "local_rank": 1}
    job.greet(job.ranks[1])

    assert "(exclusive mode: one process only)" in dies_with(job, 1, BUSY).summary


def test_a_rank_that_needs_more_than_the_gpu_has_crashed_by_itself():
    """No other process uses it: the batch is too large."""
    job = GpuJob()
    job.ranks[2].says["cuda"] = CudaState(
        2, "2", None, 80 * GIB, 70 * GIB, 76 * GIB, 78 * GIB, 12, 1
    )
    finding = dies_with(job, 2, OOM, "OutOfMemoryError")

    assert (finding.kind, finding.ranks) == ("rank-crashed", (2,))
    assert finding.evidence[-1] == (
        "GPU 2 of node0: 40.0 GiB of 80.0 GiB used; rank 2 has 70.0 GiB allocated, 76.0 GiB"
        " reserved, 12 allocations retried"
    )
    assert "smaller batch" in finding.advice


def test_a_number_that_is_not_there():
    job = GpuJob()
    job.ranks[3].told |= {"local_rank": 3, "environment": {"CUDA_VISIBLE_DEVICES": "0,1"}}
    job.greet(job.ranks[3])
    finding = dies_with(job, 3, "CUDA error: invalid device ordinal")

    assert finding.kind == "gpu-unavailable"
    assert "local rank 3, CUDA_VISIBLE_DEVICES=0,1" in finding.summary


def test_without_nvml_it_is_said_that_nothing_is_known_of_the_holder():
    finding = dies_with(FakeJob(4), 1, BUSY)

    assert finding.kind == "gpu-unavailable"
    assert (
        "it is not known which process holds the GPU: ddtop has no data from the driver of"
        " that host"
    ) in finding.evidence
    assert "ddtop gpus" in finding.advice


def test_a_host_without_any_gpu():
    finding = dies_with(FakeJob(4), 1, "No CUDA GPUs are available")

    assert finding.kind == "gpu-unavailable"
    assert finding.summary.startswith("rank 1 finds no GPU: No CUDA GPUs are available")


def test_an_exception_about_something_else_stays_a_crash():
    job = GpuJob()

    assert (
        dies_with(job, 1, "shape '[8, 4]' is invalid for input of size 31").kind == "rank-crashed"
    )


# -- gpu-error


def xid(code, job):
    return (Xid(code, unix_ns(job.now)),)


def test_a_gpu_that_fell_off_the_bus_stands_before_its_consequences():
    """Xid 79: one rank in a plain CUDA call for ever, the others in all_reduce."""
    job = GpuJob().trains(10)
    job.change(1, lost=True, processes=None, util_ratio=None, used_bytes=None, xids=xid(79, job))
    job.ranks[1].stands_at("train_step", activity="cuda_sync")
    job.others_wait(1)
    finding = job.passes(8).finds("critical", "gpu-error", 1)

    assert finding.victims == (0, 2, 3)
    assert finding.summary == "GPU 1 of node0 (rank 1) no longer answers; ranks 0,2,3 wait for it"
    assert finding.evidence == ("Xid 79: the GPU has fallen off the bus",)


def test_an_uncorrectable_memory_error_that_came_while_the_job_ran():
    job = GpuJob()
    job.change(3, ecc_uncorrected=7)
    job.trains(5)
    assert job.ever() == []

    job.change(3, ecc_uncorrected=8)
    finding = job.trains(5).finds("critical", "gpu-error", 3)

    assert "has 1 uncorrectable memory error since this job began" in finding.summary


def test_a_gpu_that_is_cut_into_instances_fails_with_the_ranks_on_these():
    parts = [
        Gpu(0, f"MIG-{number}", None, 5 * GIB, 10 * GIB, "H100 MIG 1g.10gb", parent="GPU-0")
        for number in range(2)
    ]
    parts = [
        msgspec.structs.replace(one, processes=(GpuProcess(4800 + number, GIB, rank=number),))
        for number, one in enumerate(parts)
    ]
    job = GpuJob(card(0, mig=True, processes=()), *parts, world_size=2).trains(5)
    job.change(0, xids=(Xid(79, unix_ns(job.now)),))

    assert job.trains(3).kinds() == [("critical", "gpu-error", (0, 1))]


def test_what_a_gpu_did_before_the_ranks_were_started_again_does_not_happen_to_these():
    job = GpuJob().trains(5)
    job.change(1, xids=(Xid(94, unix_ns(-30.0)),))

    assert job.trains(3).ever() == []


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_xid_that_a_program_causes_by_itself_is_not_the_gpu_s_fault(code):
    job = GpuJob()
    job.change(0, xids=xid(code, job))

    assert job.trains(5).ever() == []


def test_an_xid_of_unknown_weight_is_a_warning():
    job = GpuJob()
    job.change(0, xids=xid(63, job))

    assert job.trains(5).kinds() == [("warning", "gpu-error", (0,))]


def test_an_error_of_a_gpu_that_the_job_does_not_use_is_not_the_job_s_affair():
    job = GpuJob(card(0, 0), card(1, 1), card(2, lost=True, xids=(Xid(79, 1),)), world_size=2)

    assert job.trains(5).ever() == []


def test_a_rank_that_crashed_elsewhere_is_not_folded_under_a_failed_gpu():
    job = GpuJob().trains(3)
    job.change(1, xids=xid(79, job), lost=True)
    job.ranks[2].raises("ValueError", "bad batch")
    job.ranks[2].ends(1)

    assert {kind for _, kind, _ in job.passes(4).kinds()} >= {"gpu-error", "rank-crashed"}
