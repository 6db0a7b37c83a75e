"""What is said of GPUs: only with evidence, never where there are none, and a failed card before what follows from it."""

from __future__ import annotations

import msgspec
import pytest

from ddtop.wire.gpu import CudaState, Gpu, GpuProcess, GpuWatch, Xid
from tests.jobs import FakeJob, unix_ns

GIB = 1 << 30


def card(index, *ranks, **more):
    """One card with these ranks on it."""
    given = {
        "util_ratio": 0.9, "used_bytes": 40 * GIB, "total_bytes": 80 * GIB, "name": "H100",
        "processes": tuple(GpuProcess(4800 + rank, 20 * GIB, rank=rank) for rank in ranks),
        "sm_mhz": 1755, "sm_max_mhz": 1980, "celsius": 60, "power_watts": 600.0, "power_cap_watts": 700.0, "throttle": (),
    }  # fmt: skip
    return Gpu(index, f"GPU-{index}", **(given | more))


def free(index):
    return card(index, used_bytes=GIB // 4, util_ratio=0.0)


def stranger(pid=3310, used=31 * GIB, **more):
    return GpuProcess(pid, used, user="bob", command="python sample.py", **more)


def holding(one, *processes, **more):
    """The card with these processes besides its ranks'."""
    return msgspec.structs.replace(one, processes=(*one.processes, *processes), **more)


class GpuJob(FakeJob):
    """A job on one host with GPUs, one a rank where nothing else is said."""

    def __init__(self, *cards, world_size=4):
        super().__init__(world_size)
        self.has(*(cards or [card(number, number) for number in range(world_size)]))

    def has(self, *cards):
        self.host_says = {"gpus": cards, "gpu_watch": GpuWatch(300, "580")}

    def change(self, index, **more):
        cards = list(self.host_says["gpus"])
        cards[index] = msgspec.structs.replace(cards[index], **more)
        self.has(*cards)


def test_a_healthy_job_on_gpus_says_nothing():
    """Full cards, all at their power cap, a display server on the first: so it looks everywhere."""
    job = GpuJob()
    for number in range(4):
        job.change(number, used_bytes=79 * GIB, throttle=("sw_power_cap",))
        job.ranks[number].says["cuda"] = CudaState(number, None, None, 80 * GIB, 70 * GIB, 76 * GIB, 76 * GIB, 1, 0)
    job.has(
        holding(job.host_says["gpus"][0], GpuProcess(900, 300 << 20, user="root", command="/usr/bin/Xorg")),
        *job.host_says["gpus"][1:],
    )
    job.trains(20)

    assert job.ever() == []


# -- gpu-busy


def test_a_process_of_somebody_else_on_a_rank_s_card_is_named():
    """A colleague's inference server from last week: rank 1 is the slowest in every step."""
    job = GpuJob()
    job.has(card(0, 0), holding(card(1, 1), stranger()), card(2, 2), card(3, 3))
    job.trains(5)

    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "gpu-busy", (1,))
    assert (
        finding.summary == "GPU 1 of node0 of rank 1 is used by others too: pid 3310 (bob, python sample.py, 31.0 GiB)"
    )
    assert "kill 3310" in finding.advice
    assert "no GPU of that host is free" in finding.advice


@pytest.mark.parametrize("used", [300 << 20, 3 * GIB, None])
def test_a_display_server_or_an_idle_notebook_is_no_news(used):
    job = GpuJob()
    job.has(card(0, 0), holding(card(1, 1), stranger(used=used)), card(2, 2), card(3, 3))
    job.trains(5)

    assert job.ever() == []


def test_in_a_container_a_pid_of_the_host_is_not_called_a_stranger():
    """It is most probably the rank itself, by the number that the host gives it."""
    job = GpuJob()
    job.has(*[card(number, processes=(GpuProcess(99_000 + number, 40 * GIB, local=False),)) for number in range(4)])
    for number, rank in enumerate(job.ranks):
        rank.says["cuda"] = CudaState(number, str(number))
    job.trains(5)

    assert job.snapshot().devices[2].ranks == (2,)
    assert job.ever() == []


def test_a_stranger_on_a_card_that_is_not_the_job_s_is_not_the_job_s_affair():
    job = GpuJob(card(0, 0), card(1, 1), holding(card(2), stranger()), world_size=2)
    job.trains(5)

    assert job.ever() == []


# -- gpu-shared


def test_two_ranks_on_one_card_while_another_is_empty():
    """model.to("cuda") on every rank: all on card 0."""
    job = GpuJob(card(0, 0, 1), free(1), world_size=2)
    job.trains(5)

    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "gpu-shared", (0, 1))
    assert finding.summary == "ranks 0,1 share GPU 0 of node0; GPU 1 is free"
    assert "LOCAL_RANK" in finding.advice


def test_more_ranks_than_cards_get_another_advice():
    job = GpuJob(card(0, 0, 1), world_size=2)
    job.trains(5)

    assert "set_per_process_memory_fraction" in job.finding().advice


def test_a_context_on_the_first_card_is_not_sharing():
    """Seven ranks with half a gigabyte each on card 0, from a torch.load without map_location; each computes on its own."""
    job = GpuJob(card(0, 0, 1), card(1, 1), world_size=2)
    for number, rank in enumerate(job.ranks):
        rank.says["cuda"] = CudaState(number, str(number))
    job.trains(5)

    assert job.ever() == []


def test_nccl_refuses_two_ranks_on_one_card():
    job = GpuJob(card(0, 0, 1), world_size=2)
    job.trains(1)
    job.ranks[1].raises(
        "DistBackendError",
        "NCCL error in: NCCLUtils.cpp:94, invalid usage, ncclInvalidUsage: Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
    )
    job.ranks[1].ends(1)
    job.ranks[0].stands_at("train_step")
    job.passes(3)

    kinds = job.kinds()
    assert ("critical", "gpu-shared", (0, 1)) in kinds
    assert not [kind for _, kind, _ in kinds if kind == "rank-crashed"]


# -- gpu-unavailable

BUSY = (
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable. CUDA kernel errors might be asynchronously reported"
)
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."
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


@pytest.mark.parametrize("text", [BUSY, "CUDA error: all CUDA-capable devices are busy or unavailable", OOM])
def test_a_card_that_is_taken_says_by_whom_and_which_are_free(text):
    """Yesterday's run left a worker behind that holds 60 GB."""
    taken = card(1, processes=(stranger(used=60 * GIB, orphan=True),))
    job = GpuJob(card(0, 0), taken, card(2, 2), card(3, 3), free(4), free(5))
    job.ranks[1].told |= {"backend": "nccl", "local_rank": 1}
    job.greet(job.ranks[1])
    finding = dies_with(job, 1, text)

    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "gpu-unavailable", (1,))
    assert (
        "GPU 1 of node0 is held by pid 3310 (bob, python sample.py, 60.0 GiB, its parent has ended)" in finding.summary
    )
    assert "GPUs 4,5 are free" in finding.summary
    assert finding.summary.endswith("ranks 0,2,3 wait for it in all_reduce #11 of default_pg")
    assert (
        finding.advice
        == "start it on a free one: CUDA_VISIBLE_DEVICES=4,5; or end what holds it, if it is yours: kill 3310"
    )


def test_exclusive_mode_is_said():
    job = GpuJob(card(0, 0), card(1, processes=(stranger(),), exclusive=True), world_size=2)
    job.ranks[1].told |= {"backend": "nccl", "local_rank": 1}
    job.greet(job.ranks[1])

    assert "(exclusive mode: one process only)" in dies_with(job, 1, BUSY).summary


def test_a_rank_that_needs_more_than_the_card_has_crashed_by_itself():
    """Nobody else is on it: the batch is too large."""
    job = GpuJob()
    job.ranks[2].says["cuda"] = CudaState(2, "2", None, 80 * GIB, 70 * GIB, 76 * GIB, 78 * GIB, 12, 1)
    finding = dies_with(job, 2, OOM, "OutOfMemoryError")

    assert (finding.kind, finding.ranks) == ("rank-crashed", (2,))
    assert finding.evidence[-1] == (
        "GPU 2 of node0: 40.0 GiB of 80.0 GiB used; rank 2 has 70.0 GiB allocated, 76.0 GiB reserved, 12 allocations retried"
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
    assert "the driver was not asked there: who holds the GPU is not known" in finding.evidence
    assert "ddtop gpus" in finding.advice


def test_a_host_without_any_gpu():
    finding = dies_with(FakeJob(4), 1, "No CUDA GPUs are available")

    assert finding.kind == "gpu-unavailable"
    assert finding.summary.startswith("rank 1 finds no GPU: No CUDA GPUs are available")


def test_an_exception_about_something_else_stays_a_crash():
    job = GpuJob()

    assert dies_with(job, 1, "shape '[8, 4]' is invalid for input of size 31").kind == "rank-crashed"


# -- gpu-memory-low


def memory(retries=0, ooms=0, allocated=70, reserved=78):
    return CudaState(0, "0", None, 80 * GIB, allocated * GIB, reserved * GIB, reserved * GIB, retries, ooms)


def test_a_full_card_whose_allocations_fail_at_first_is_low_on_memory():
    job = GpuJob(card(0, 0, used_bytes=79 * GIB), card(1, 1), world_size=2)
    job.ranks[0].says["cuda"] = memory(retries=12)
    job.trains(5)

    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "gpu-memory-low", (0,))
    assert "1.0 GiB of 80.0 GiB left, 12 allocations of torch did not fit at once" in finding.summary


@pytest.mark.parametrize(
    ("cuda", "advice"),
    [(memory(12, allocated=50), "expandable_segments"), (memory(12), "smaller batch"), (memory(0, 1), "smaller batch")],
)
def test_the_advice_follows_from_what_torch_has(cuda, advice):
    job = GpuJob(card(0, 0, used_bytes=79 * GIB), card(1, 1), world_size=2)
    job.ranks[0].says["cuda"] = cuda
    job.trains(5)

    assert advice in job.finding().advice


@pytest.mark.parametrize(
    ("used", "cuda"), [(79, memory()), (79, memory(retries=2)), (76, memory(retries=50)), (79, None)]
)
def test_a_full_card_alone_is_how_torch_works(used, cuda):
    job = GpuJob(card(0, 0, used_bytes=used * GIB), card(1, 1), world_size=2)
    if cuda is not None:
        job.ranks[0].says["cuda"] = cuda
    job.trains(5)

    assert job.ever() == []


# -- gpu-throttled


def test_a_card_that_heat_holds_below_the_others_is_throttled():
    job = GpuJob()
    job.change(2, throttle=("hw_thermal", "hw_slowdown"), sm_mhz=1005, celsius=91)
    job.trains(10)

    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "gpu-throttled", (2,))
    assert finding.summary == (
        "GPU 2 of node0 of rank 2 is held at 1005 MHz by heat and the hardware; the job's others of its kind run at 1755"
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
    job.trains(10)

    assert job.ever() == []


def test_a_moment_at_the_power_cap_is_not_throttled():
    job = GpuJob()
    job.change(2, throttle=("sw_power_cap",), sm_mhz=1100)
    job.trains(4)
    job.change(2, throttle=(), sm_mhz=1755)
    job.trains(6)

    assert job.ever() == []


def test_a_single_card_is_compared_with_what_it_could_do():
    job = GpuJob(card(0, 0, throttle=("sw_thermal",), sm_mhz=900), world_size=1)
    job.trains(10)
    assert [kind for _, kind, _ in job.kinds()] == ["gpu-throttled"]

    capped = GpuJob(card(0, 0, throttle=("sw_power_cap",), sm_mhz=900), world_size=1)
    capped.trains(10)
    assert capped.ever() == []


# -- gpu-error


def xid(code, job):
    return (Xid(code, unix_ns(job.now)),)


def test_a_card_that_fell_off_the_bus_stands_before_its_consequences():
    """Xid 79: one rank in a plain CUDA call for ever, the others in all_reduce; nothing in the log of the program."""
    job = GpuJob()
    job.trains(10)
    job.change(1, lost=True, processes=None, util_ratio=None, used_bytes=None, xids=xid(79, job))
    job.ranks[1].stands_at("train_step", activity="cuda_sync")
    job.others_wait(1)
    job.passes(8)

    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks, finding.victims) == (
        "critical",
        "gpu-error",
        (1,),
        (0, 2, 3),
    )
    assert finding.summary == (
        "GPU 1 of node0, on which rank 1 runs, does not answer any more; ranks 0,2,3 wait for it"
    )
    assert finding.evidence == ("Xid 79: the GPU has fallen off the bus",)


def test_an_uncorrectable_memory_error_that_came_while_the_job_ran():
    job = GpuJob()
    job.change(3, ecc_uncorrected=7)
    job.trains(5)
    assert job.ever() == []

    job.change(3, ecc_uncorrected=8)
    job.trains(5)
    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks) == ("critical", "gpu-error", (3,))
    assert "has 1 uncorrectable memory error since this job began" in finding.summary


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_xid_that_a_program_causes_by_itself_is_not_the_card_s_fault(code):
    job = GpuJob()
    job.change(0, xids=xid(code, job))
    job.trains(5)

    assert job.ever() == []


def test_an_xid_of_unknown_weight_is_a_warning():
    job = GpuJob()
    job.change(0, xids=xid(63, job))
    job.trains(5)

    assert job.kinds() == [("warning", "gpu-error", (0,))]


def test_an_error_of_a_card_that_the_job_does_not_use_is_not_the_job_s_affair():
    job = GpuJob(card(0, 0), card(1, 1), card(2, lost=True, xids=(Xid(79, 1),)), world_size=2)
    job.trains(5)

    assert job.ever() == []


def test_a_rank_that_crashed_elsewhere_is_not_folded_under_a_failed_card():
    job = GpuJob()
    job.trains(3)
    job.change(1, xids=xid(79, job), lost=True)
    job.ranks[2].raises("ValueError", "bad batch")
    job.ranks[2].ends(1)
    job.passes(4)

    assert {kind for _, kind, _ in job.kinds()} >= {"gpu-error", "rank-crashed"}
