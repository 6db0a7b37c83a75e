"""On NCCL a slow GPU shows in no time of arrival: it is told by what the cards draw, and only where nothing else explains that."""

from __future__ import annotations

import msgspec
import pytest

from ddtop.model.facts import State
from ddtop.wire.gpu import GpuProcess, GpuWatch
from ddtop.wire.records import Arrivals, Group
from ddtop.wire.samples import arrivals_of
from tests.arriving import entered
from tests.gpu_jobs import GIB, GpuJob, card, stranger
from tests.jobs import WORLD, brief

COMPUTES, WAITS = (
    {"util_ratio": 1.0, "power_watts": 620.0, "sm_mhz": 1755},
    {"util_ratio": 1.0, "power_watts": 180.0, "sm_mhz": 1980},
)
HOT = {
    "util_ratio": 1.0,
    "power_watts": 310.0,
    "sm_mhz": 1005,
    "throttle": ("hw_thermal", "hw_slowdown"),
    "celsius": 91,
}
WARM_S = 70


class NcclJob(GpuJob):
    """Eight ranks that train on NCCL, a card each; they synchronise at each step, so no host is late."""

    def __init__(self, world_size=8, **job):
        super().__init__(world_size=world_size, **job)
        self.groups = {WORLD: Group(WORLD, "default_pg", tuple(range(world_size)), "nccl")}
        for rank in self.ranks:
            rank.told["backend"] = "nccl"
            self.greet(rank)

    def new_nccl_group(self, name, *members):
        self.new_group(name, *members)
        self.groups[name] = msgspec.structs.replace(self.groups[name], backend="nccl")
        for number in members:
            self.greet(self.ranks[number])

    def runs(self, seconds, does):
        """`does(second, rank)`: what its card shows then."""
        for second in range(seconds):
            for number in range(self.world_size):
                self.change(number, **does(second, number))
            self.trains(1)

    def warms_up(self, seconds=WARM_S):
        self.runs(seconds, lambda second, rank: COMPUTES)

    def stood(self):
        """(severity, kind, ranks) of everything that stood at any time."""
        return list(dict.fromkeys(brief(one) for verdict in self.verdicts(every_s=1.0) for one in verdict.findings))


def one_computes(*late, others=WAITS):
    return lambda second, rank: COMPUTES if rank in late else others


def test_the_card_that_computes_while_the_others_spin_is_the_one_that_comes_last():
    job = NcclJob()
    for rank in job.ranks:
        # The host is ahead of its card: something of NCCL is always open.
        rank.waits_share = 0.95
    job.warms_up()
    job.runs(60, one_computes(5))

    finding = job.finding()
    assert (finding.severity, finding.kind, finding.ranks, finding.victims) == (
        "warning",
        "straggler",
        (5,),
        (0, 1, 2, 3, 4, 6, 7),
    )
    assert finding.summary == (
        "rank 5 comes last: its GPU computes while those of ranks 0-4,6,7 wait in NCCL, 100% busy at 29% of its power"
    )
    assert "620 W" in finding.evidence[0]
    assert "180 W" in finding.evidence[0]
    assert "ms" not in finding.summary
    assert "longer sequences" in finding.advice
    snapshot = job.snapshot()
    assert [rank.state is State.STRAGGLER for rank in snapshot.ranks] == [number == 5 for number in range(8)]
    assert [rank.gpu_waits for rank in snapshot.ranks] == [number != 5 for number in range(8)]


def test_cards_that_draw_even_less_than_the_waiting_ones_wait_too():
    job = NcclJob()
    job.warms_up()
    job.runs(60, lambda second, rank: COMPUTES if rank == 5 else WAITS | ({"power_watts": 45.0} if rank < 2 else {}))

    assert job.kinds() == [("warning", "straggler", (5,))]


def test_it_is_not_said_before_it_has_lasted_and_is_over_when_it_is_over():
    job = NcclJob()
    job.warms_up()
    job.runs(35, one_computes(5))
    early = job.kinds()
    job.runs(30, one_computes(5))
    then = job.kinds()
    job.runs(15, lambda second, rank: COMPUTES)

    assert (early, then, job.kinds()) == ([], [("warning", "straggler", (5,))], [])


def test_a_card_that_heat_holds_is_told_once_with_its_clock_and_who_waits():
    """It draws little itself: that the others wait follows from what they drew before."""
    job = NcclJob()
    job.warms_up()
    job.runs(60, lambda second, rank: HOT if rank == 5 else COMPUTES | {"power_watts": 410.0, "sm_mhz": 1800})

    finding = job.finding()
    assert (finding.kind, finding.ranks, finding.victims) == ("straggler", (5,), (0, 1, 2, 3, 4, 6, 7))
    assert finding.summary == (
        "rank 5 comes last: its GPU is held at 1005 MHz by heat and the hardware, the others run at 1800; "
        "ranks 0-4,6,7 wait for it in NCCL"
    )
    assert "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i 5" in finding.advice


def test_a_held_card_of_which_it_is_not_known_that_others_wait_is_throttled_and_no_more():
    """Held since the job began: what the others draw is all that they ever drew."""
    job = NcclJob()
    job.runs(110, lambda second, rank: HOT if rank == 5 else COMPUTES)

    assert job.stood() == [("warning", "gpu-throttled", (5,))]


def test_two_ranks_that_are_held_are_told_of_beside_two_that_wait_only_as_throttled():
    """Nobody is the majority of two."""
    job = NcclJob(world_size=2)
    job.warms_up()
    job.runs(60, one_computes(1))

    assert job.stood() == []


def test_a_stranger_on_the_card_is_the_finding_and_the_waiting_is_told_there():
    job = NcclJob()
    job.warms_up()
    both = (GpuProcess(4805, 20 * GIB, rank=5), stranger())
    job.runs(60, lambda second, rank: COMPUTES | {"processes": both} if rank == 5 else WAITS)

    finding = job.finding()
    assert (finding.kind, finding.ranks, finding.victims) == ("gpu-busy", (5,), (0, 1, 2, 3, 4, 6, 7))
    assert finding.summary.endswith("pid 3310 (bob, python sample.py, 31.0 GiB); ranks 0-4,6,7 wait for it in NCCL")


# -- healthy, and other rules' business


def near(second, rank):
    """Alike cards under one load differ by a tenth, and each by as much from second to second."""
    return COMPUTES | {"power_watts": 600.0 + 60 * ((rank * 7 + second * 3) % 3 - 1), "sm_mhz": 1700 + 30 * (rank % 4)}


def rotating(second, rank):
    return COMPUTES if rank == second // 4 % 8 else WAITS


def half_and_half(second, rank):
    return COMPUTES if rank % 2 else WAITS


def memory_bound(second, rank):
    """All at little power, one a bit above: reading memory draws hardly more than waiting."""
    return WAITS | {"power_watts": 260.0 if rank == 3 else 200.0}


def untold(second, rank):
    return one_computes(5)(second, rank) | {"power_watts": None}


def two_kinds(second, rank):
    return COMPUTES | {"name": "H100"} if rank == 5 else WAITS | {"name": "L40S"}


def two_caps(second, rank):
    return COMPUTES if rank == 5 else WAITS | {"power_cap_watts": 350.0}


def above_half_of_the_cap(second, rank):
    """Decoding beside prefilling: 55 % of the cap is no waiting kernel."""
    return COMPUTES | {"power_watts": 690.0} if rank == 5 else COMPUTES | {"power_watts": 380.0}


def idle(second, rank):
    """They wait for data, not in NCCL."""
    return COMPUTES if rank == 5 else {"util_ratio": 0.3, "power_watts": 150.0, "sm_mhz": 1980}


def ten_seconds_each(second, rank):
    return COMPUTES if rank == second // 10 % 8 else WAITS


def cut_in_instances(second, rank):
    return one_computes(5)(second, rank) | {"mig": True}


@pytest.mark.parametrize(
    "does",
    [
        near,
        rotating,
        ten_seconds_each,
        half_and_half,
        memory_bound,
        untold,
        two_kinds,
        two_caps,
        above_half_of_the_cap,
        idle,
        cut_in_instances,
    ],
)
def test_what_looks_like_it_and_is_something_else_is_not_told(does):
    job = NcclJob()
    job.warms_up()
    job.runs(70, does)

    assert job.stood() == []


def test_in_its_first_minute_a_job_compiles_and_loads():
    job = NcclJob()
    job.runs(58, one_computes(0))

    assert job.stood() == []


def test_a_rank_that_evaluates_while_the_others_wait_at_a_barrier_is_no_straggler():
    """The job does not move meanwhile: that is for the rules about waiting."""
    job = NcclJob()
    job.warms_up()
    job.ranks[0].works_at("evaluate")
    job.others_wait(0, op="barrier")
    job.runs(60, one_computes(0))

    assert "straggler" not in [kind for _, kind, _ in job.stood()]


def test_a_job_that_makes_its_steps_in_bursts_waits_for_something_between_them():
    job = NcclJob()
    job.warms_up()
    for second in range(70):
        for rank in job.ranks:
            rank.trains = second % 40 < 20
        job.runs(1, one_computes(0))

    assert job.stood() == []


def test_steps_that_nothing_counts_prove_no_work_alike():
    """Rollouts, servers: each rank has its own."""
    job = NcclJob()
    for rank in job.ranks:
        rank.iteration = None
    job.warms_up()
    job.runs(60, one_computes(5))

    assert job.stood() == []


def test_ranks_that_make_fewer_steps_have_another_part_in_the_job():
    job = NcclJob()
    job.warms_up()
    for second in range(60):
        for number in range(8):
            job.change(number, **one_computes(5)(second, number))
        job.trains(1)
        job.ranks[5].iteration -= 8

    assert job.stood() == []


def test_stages_of_a_pipeline_wait_for_the_heavy_one_by_design():
    """Four stages that send to each other, and sum the norm of their gradients at each step."""
    job = NcclJob(world_size=4)
    for rank in job.ranks:
        state = rank.state
        rank.state = lambda state=state: _sending(state())
    job.warms_up()
    job.runs(60, one_computes(2))

    assert job.stood() == []


def _sending(state):
    groups = tuple(msgspec.structs.replace(one, p2p_calls=4 * one.enqueued) for one in state.groups)
    return msgspec.structs.replace(state, groups=groups)


def test_who_exchanges_most_in_a_smaller_group_is_not_compared_in_the_large_one():
    """Two replicas of a model of four stages, one of them heavy: each gradient goes to the other replica's same stage."""
    job = NcclJob()
    for number in range(4):
        job.new_nccl_group(f"dp{number}", number, number + 4)
    for rank in job.ranks:
        state = rank.state
        rank.state = lambda state=state: _mostly(state(), "dp")
    job.warms_up()
    job.runs(60, one_computes(2, 6))

    assert job.stood() == []


def _mostly(state, prefix):
    groups = tuple(
        msgspec.structs.replace(one, enqueued=3 * one.enqueued, completed=3 * one.enqueued)
        if one.group.startswith(prefix)
        else one
        for one in state.groups
    )
    return msgspec.structs.replace(state, groups=groups)


def test_in_a_group_of_four_of_a_larger_job_the_late_one_is_told_among_its_own():
    job = NcclJob()
    job.new_nccl_group("tp0", 0, 1, 2, 3)
    job.new_nccl_group("tp1", 4, 5, 6, 7)
    for rank in job.ranks:
        state = rank.state
        rank.state = lambda state=state: _mostly(state(), "tp")
    job.warms_up()
    job.runs(60, lambda second, rank: COMPUTES if rank in (1, 4, 5, 6, 7) else WAITS)

    finding = job.finding()
    assert (finding.ranks, finding.victims, finding.group) == ((1,), (0, 2, 3), "tp0")


def test_numbers_that_the_relay_repeats_while_the_driver_is_silent_prove_nothing():
    job = NcclJob()
    job.warms_up()
    job.runs(4, one_computes(5))
    for second in range(60):
        job.host_says["gpu_watch"] = GpuWatch(4000 + second % 5 * 1000, "580")
        job.trains(1)

    assert job.stood() == []


def test_a_third_of_the_cards_that_nobody_knows_could_be_the_one_that_all_wait_for():
    job = NcclJob()
    job.has(*[card(number, *([number] if number < 5 else [])) for number in range(8)])
    job.runs(WARM_S, lambda second, rank: COMPUTES)
    job.runs(60, one_computes(2))

    assert job.stood() == []


def test_a_rank_that_crashes_is_the_only_thing_that_is_said():
    job = NcclJob()
    job.warms_up()
    job.runs(50, one_computes(5))
    before = job.kinds()
    job.ranks[3].ends(1)
    job.others_wait(3)
    job.runs(10, one_computes(5))

    assert before == [("warning", "straggler", (5,))]
    assert "straggler" not in [kind for _, kind, _ in job.kinds()]


def test_what_a_relay_said_long_ago_proves_nothing_of_now():
    job = NcclJob()
    job.warms_up()
    job.runs(50, one_computes(5))
    before = job.kinds()
    job.look_at_hosts = lambda: None
    job.trains(40)

    assert (before, job.kinds()) == ([("warning", "straggler", (5,))], [])


# -- as the cause of what the times of arrival have found


def answers(job, slow, request="r1", step_ms=100.0, cost_ms=40.0):
    times = entered(
        len(job.ranks),
        100,
        lambda rank, number: step_ms - cost_ms + (cost_ms if rank == slow else 0) + (rank * 7 + number) % 5,
    )
    for rank, one in zip(job.ranks, times, strict=True):
        job.say(Arrivals(request, (arrivals_of(WORLD, one),), 100), rank)


def late_job(does):
    job = NcclJob(world_size=4)
    for rank in job.ranks:
        rank.waits_share = 0.02 if rank.number == 1 else 0.45
    job.runs(40, lambda second, rank: COMPUTES)
    job.runs(15, does)
    answers(job, 1)
    job.runs(2, does)
    return job


def test_a_card_held_by_heat_is_the_cause_of_a_late_rank_and_told_once():
    job = late_job(lambda second, rank: HOT if rank == 1 else COMPUTES)

    finding = job.finding()
    assert (finding.kind, finding.ranks) == ("straggler", (1,))
    assert finding.summary.endswith(
        "it runs on a GPU that heat and the hardware holds at 1005 MHz, those of the others run at 1755"
    )
    assert "cooling" in finding.advice


def test_who_is_named_by_the_times_of_arrival_is_not_named_a_second_time():
    job = NcclJob()
    for rank in job.ranks:
        rank.waits_share = 0.02 if rank.number == 5 else 0.45
    job.warms_up()
    job.runs(30, one_computes(5))
    answers(job, 5)
    job.runs(25, one_computes(5))

    assert [finding.kind for finding in job.verdict().findings] == ["straggler"]
    assert "of each 102 ms step" in job.finding().summary
    assert job.snapshot().ranks[5].card_late is None


def test_a_card_that_computes_while_the_others_spin_is_the_cause_of_a_late_rank():
    job = late_job(one_computes(1))

    assert "it computes longer on its GPU: those of the others are 100% busy at " in job.finding().summary


def test_a_stranger_on_the_card_is_the_cause_of_a_late_rank():
    both = (GpuProcess(4801, 20 * GIB, rank=1), stranger())
    job = late_job(lambda second, rank: COMPUTES | {"processes": both} if rank == 1 else COMPUTES)

    texts = {one.kind: one.summary for one in job.verdict().findings}
    assert "it shares its GPU with pid 3310 (bob, python sample.py, 31.0 GiB)" in texts["straggler"]


STARVED = {"util_ratio": 0.2, "power_watts": 120.0, "sm_mhz": 600, "throttle": ("hw_slowdown",)}
"""Its host feeds it slowly; at rest its clocks fall, and this driver calls that a slowdown."""


@pytest.mark.parametrize("own", [COMPUTES, STARVED, STARVED | {"sm_mhz": 1755, "throttle": ()}])
def test_cards_alike_and_a_card_that_its_host_feeds_slowly_are_no_cause(own):
    job = late_job(lambda second, rank: own if rank == 1 else COMPUTES)

    assert "GPU" not in job.finding().summary
