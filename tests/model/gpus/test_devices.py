"""What is remembered of cards from report to report: means, spans, and nothing that a copy shares with its original."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.gpus.devices import devices_of, take
from ddtop.model.job import Job
from ddtop.model.state.gpu_facts import Done, Own
from ddtop.model.state.gpu_memory import SPANS, Gpus, Load, done
from ddtop.policy import POLICY
from ddtop.viewer.tape import Tape
from ddtop.wire import frames
from ddtop.wire.gpu import CudaState, Gpu, GpuProcess, GpuWatch
from ddtop.wire.records import GroupProgress, HostClock, HostState, RankState
from tests.gpu_jobs import GIB, GpuJob, card
from tests.jobs import SECOND, FakeJob, unix_ns

START = 1_700_000_000 * SECOND


def said(steps=None, calls=0, refused=0):
    """What the only rank on a card has said last: how far it is."""
    groups, cuda = (GroupProgress("0", calls, calls),), CudaState(0, retries=refused)
    return (RankState("running", iteration=steps, groups=groups, cuda=cuda),)


def loaded(*values, start=START, load=None):
    """A card that reports these (util, watts) a second apart."""
    load = load or Load()
    for second, (util, watts) in enumerate(values):
        gpu = Gpu(0, "GPU-0", util, power_watts=watts, sm_mhz=1500)
        load.add(start + second * SECOND, gpu, said(second, 10 * second), POLICY)
    return load


def test_a_mean_follows_what_the_card_does_within_some_ten_seconds():
    load = loaded(*[(1.0, 600.0)] * 30)
    assert (load.util_ratio, load.power_watts, load.peak_watts) == (
        1.0,
        pytest.approx(600.0),
        pytest.approx(600.0),
    )

    loaded(*[(0.5, 200.0)] * 25, start=START + 30 * SECOND, load=load)
    assert load.util_ratio == pytest.approx(0.5, abs=0.05)
    assert load.power_watts == pytest.approx(200.0, abs=35.0)
    assert load.peak_watts == pytest.approx(600.0)


def test_spans_are_the_same_pieces_of_time_for_all_cards_with_what_the_rank_had_done():
    load = loaded(*[(0.9, 100.0 * (second // 10 + 1)) for second in range(61)])

    assert [span.power_watts for span in load.spans] == pytest.approx([300.0, 400.0, 500.0, 600.0])
    assert [span.number for span in load.spans] == [
        START // SECOND // 10 + at for at in range(2, 6)
    ]
    assert [span.done.calls for span in load.spans] == [300, 400, 500, 600]
    assert len(load.spans) == SPANS


def test_a_gap_begins_anew_and_too_few_reports_are_no_span():
    load = loaded(*[(0.9, 100.0)] * 31)
    loaded(*[(0.9, 100.0)] * 12, start=START + 60 * SECOND, load=load)
    assert [span.number - START // SECOND // 10 for span in load.spans] == [6]

    sparse = Load()
    for second in range(0, 60, 3):
        sparse.add(START + second * SECOND, Gpu(0, "GPU-0", 1.0, power_watts=1.0), (), POLICY)
    assert sparse.spans == ()


def test_a_card_that_does_not_tell_its_power_has_spans_without_it():
    load = loaded(*[(0.9, None)] * 31)

    assert (load.util_ratio, load.power_watts, load.peak_watts) == (pytest.approx(0.9), None, None)
    assert {span.power_watts for span in load.spans} == {None}


def test_allocations_that_did_not_fit_long_ago_are_forgotten():
    load = Load()
    for second in range(70):
        load.add(
            START + second * SECOND, Gpu(0, "GPU-0", 1.0), said(refused=5 + min(second, 8)), POLICY
        )
        if second == 9:
            assert load.refused_lately == 8
    assert load.refused_lately == 0


@given(
    st.lists(
        st.tuples(
            st.integers(-40, 40), st.none() | st.floats(0, 1), st.none() | st.floats(0, 1000)
        ),
        max_size=80,
    )
)
def test_reports_in_any_order_and_with_any_gaps_give_means_within_what_was_told(reports):
    load, at = Load(), START
    for step, util, watts in reports:
        at += step * SECOND
        load.add(at, Gpu(0, "GPU-0", util, power_watts=watts), (), POLICY)
        assert load.util_ratio is None or -1e-9 <= load.util_ratio <= 1 + 1e-9
        assert load.peak_watts is None or -1e-9 <= load.peak_watts <= 1000 + 1e-9
        numbers = [span.number for span in load.spans]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True


def test_how_far_a_card_is_counts_all_its_ranks_but_steps_of_only_one():
    one, two = said(7, 100, 2), said(8, 50, 1)

    assert done(one) == Done(7, 100, 2)
    assert done(one + two) == done((*one, None, *two)) == Done(None, 150, 3)
    assert done((None,)) == done(()) == Done()


def looked_at(gpus, host, owns, second):
    """The host's devices after this report."""
    take(gpus, host, owns, START + second * SECOND, POLICY, {0: said(second)[0]}, host.host)
    return devices_of(gpus, POLICY)[host.host]


REPORTED = st.fixed_dictionaries(
    {
        "step": st.integers(0, 12),
        "cards": st.lists(
            st.fixed_dictionaries(
                {
                    "util_ratio": st.none() | st.sampled_from((0.2, 0.9, 1.0)),
                    "power_watts": st.none() | st.sampled_from((90.0, 300.0, 600.0)),
                    "throttle": st.sampled_from((None, (), ("hw_thermal",))),
                    "ecc_uncorrected": st.none() | st.integers(0, 3),
                    "lost": st.booleans(),
                    "processes": st.none()
                    | st.lists(st.sampled_from((0, 1, 77, 78)), unique=True, max_size=3).map(
                        lambda pids: tuple(
                            GpuProcess(pid, GIB, rank=pid if pid < 2 else None) for pid in pids
                        )
                    ),
                }
            ),
            max_size=2,
        ),
        "owned": st.sampled_from(((), (0,), (0, 1))),
        "age_ms": st.sampled_from((300, 5000)),
        "node": st.sampled_from(("node0", "node1")),
        "what": st.sampled_from(("report", "report", "report", "look", "move", "copy")),
    }
)


@given(st.lists(REPORTED, max_size=40))
def test_devices_that_are_made_when_somebody_looks_are_those_that_each_report_would_have_made(
    reports,
):
    """What is asked for at the end alone is what was asked for after each step, whatever happened in between."""
    lazy, eager, at = Gpus(), Gpus(), START
    for one in reports:
        at += one["step"] * SECOND
        gpus = tuple(
            Gpu(number, f"GPU-{number}", **values) for number, values in enumerate(one["cards"])
        )
        host = HostState(one["node"], 4, 0.5, gpus=gpus, gpu_watch=GpuWatch(one["age_ms"], "580"))
        owns = {rank: Own(gpus[rank % len(gpus)], "torch") for rank in one["owned"]} if gpus else {}
        for cards in (lazy, eager):
            if one["what"] == "report":
                take(
                    cards,
                    host,
                    owns,
                    at,
                    POLICY,
                    {0: said(one["step"], at)[0]},
                    one["node"],
                    (0, 1),
                )
            elif one["what"] == "move":
                cards.move(one["node"], SECOND)
        if one["what"] == "look":
            devices_of(lazy, POLICY)
        elif one["what"] == "copy":
            lazy = copy.copy(lazy)
        devices_of(eager, POLICY)

    fresh = copy.copy(eager)
    fresh.devices.clear()
    assert devices_of(lazy, POLICY) == devices_of(eager, POLICY) == devices_of(fresh, POLICY)


def test_a_copy_and_its_original_go_their_own_ways():
    gpu = card(0, 0, throttle=("hw_thermal",), ecc_uncorrected=1)
    host, owns, cards = HostState("node0", 4, 0.5, gpus=(gpu,)), {0: Own(gpu, "torch")}, Gpus()
    for second in range(25):
        looked_at(cards, host, owns, second)
    twin = copy.copy(cards)
    then = looked_at(twin, host, owns, 25)
    for second in range(25, 60):
        cooler = HostState("node0", 4, 0.5, gpus=(card(0, 0, ecc_uncorrected=9),))
        now = looked_at(cards, cooler, owns, second)
    again = looked_at(twin, host, owns, 25)

    assert (then[0].throttled_since_unix_ns, again[0].throttled_since_unix_ns) == (START, START)
    assert (now[0].throttled_since_unix_ns, now[0].ecc_new, again[0].ecc_new) == (None, 8, 0)
    assert again[0].spans == then[0].spans != now[0].spans


def test_who_goes_back_in_time_finds_the_cards_as_they_were():
    """Held by heat at first, and then at more power than before: the copy that the past begins from must not know what came."""
    job = GpuJob(world_size=2)
    job.change(1, throttle=("hw_thermal",))
    job.trains(30)
    job.change(1, throttle=(), power_watts=690.0)
    job.trains(40)
    tape, model = Tape(), Job(job.name, POLICY)
    for data in job.frames:
        envelope = frames.open_envelope(data)
        model.apply(envelope, frames.open_record(envelope))
        tape.add(envelope, data, model)

    tape.at(unix_ns(job.now))
    past, _ = tape.at(unix_ns(25.0))

    live = FakeJob.model(_until(job, 25.0)).snapshot(unix_ns(25.0))
    assert past.devices == live.devices
    assert past.devices[1].throttled_since_unix_ns is not None
    assert past.devices[1].power_peak_watts == pytest.approx(600.0)


def _until(job, second):
    job.records = [one for one in job.records if one[0].unix_ns <= unix_ns(second)]
    return job


def test_times_of_cards_move_with_the_clock_of_their_host():
    """A leaf's clock turns out to be three seconds off: since when its card is held does not jump back with the next report."""
    job = GpuJob(world_size=2)
    job.change(1, throttle=("hw_thermal",))
    job.trains(5)
    job.host_says["clock"] = HostClock(3 * SECOND, 1_000_000)
    job.trains(5)

    assert job.snapshot().devices[1].throttled_since_unix_ns == unix_ns(1.0) + 3 * SECOND


def test_numbers_that_are_repeated_while_the_driver_is_silent_are_not_counted():
    job = GpuJob(world_size=1)
    job.trains(25)
    job.change(0, power_watts=100.0)
    job.host_says["gpu_watch"] = GpuWatch(5000, "580")
    job.trains(20)

    assert job.snapshot().devices[0].power_mean_watts == pytest.approx(600.0)


def test_cards_on_which_no_rank_is_are_not_followed():
    job = GpuJob(card(0, 0), card(1), world_size=1)
    job.trains(25)
    own, other = job.snapshot().devices

    assert (own.util_mean_ratio, len(own.spans)) == (pytest.approx(0.9), 2)
    assert (other.util_mean_ratio, other.spans) == (None, ())


def test_to_two_launchers_of_one_host_each_other_s_ranks_are_no_strangers():
    """Each has a relay of its own, which lists the ranks of the other one as anybody's processes."""
    job = FakeJob(2)
    lists = [
        (
            GpuProcess(4800, 30 * GIB, rank=0),
            GpuProcess(4801, 30 * GIB, user="ada"),
            GpuProcess(77, 9 * GIB),
        ),
        (
            GpuProcess(4800, 30 * GIB, user="ada"),
            GpuProcess(4801, 30 * GIB, rank=1),
            GpuProcess(77, 9 * GIB),
        ),
    ]
    job.host_of = lambda rank: f"node0.{rank.number}"
    job.ranks = [type(rank)(job, rank.number, rank.pid) for rank in job.ranks]
    job.records.clear()
    for rank in job.ranks:
        job.say(rank.hello(), rank, sender=f"node0.{rank.number}")
    for second in range(20):
        job.now = second + 1.0
        for rank, listed in zip(job.ranks, lists, strict=True):
            gpu = card(0, processes=listed)
            host = HostState(
                "node0", 4, 0.5, processes=(rank.process(),), gpus=(gpu,), gpu_watch=GpuWatch(300)
            )
            job.say(rank.state(), rank, sender=f"node0.{rank.number}")
            job.say(host, sender=f"node0.{rank.number}")

    (device,) = job.snapshot().devices
    assert (device.ranks, [one.pid for one in device.foreign]) == ((0, 1), [77])
    assert (device.ours_bytes, device.foreign_bytes) == (60 * GIB, 9 * GIB)
    assert {one.pid: one.rank for one in device.gpu.processes} == {4800: 0, 4801: 1, 77: None}


def test_a_card_waits_where_it_is_busy_at_a_third_of_its_power_and_nobody_else_is_there():
    job = GpuJob(world_size=1)
    job.ranks[0].told["backend"] = "nccl"
    job.greet(job.ranks[0])
    job.trains(25)
    before = job.snapshot().ranks[0].gpu_waits
    job.change(0, util_ratio=1.0, power_watts=190.0)
    job.ranks[0].waits_in()
    job.passes(25)
    waits = job.snapshot().ranks[0].gpu_waits
    job.change(0, processes=(GpuProcess(4800, 20 * GIB, rank=0), GpuProcess(5, 20 * GIB)))
    job.passes(2)

    assert (before, waits, job.snapshot().ranks[0].gpu_waits) == (False, True, None)


def test_what_waits_while_nothing_of_nccl_is_open_is_a_kernel_of_the_program():
    job = GpuJob(world_size=1)
    job.ranks[0].told["backend"] = "nccl"
    job.greet(job.ranks[0])
    job.trains(25)
    job.change(0, util_ratio=1.0, power_watts=190.0)
    job.trains(25)

    assert job.snapshot().ranks[0].gpu_waits is False


def test_a_rank_whose_card_is_a_guess_waits_for_nobody_knows_what():
    job = GpuJob(card(0), world_size=1)
    job.ranks[0].told["backend"] = "nccl"
    job.greet(job.ranks[0])
    job.trains(25)
    guessed = job.snapshot().ranks[0]
    job.ranks[0].says["cuda"] = CudaState(0, "0")
    job.trains(25)
    known = job.snapshot().ranks[0]

    assert (guessed.own.certain, guessed.gpu_waits) == (False, None)
    assert (known.own.certain, known.gpu_waits) == (True, False)
