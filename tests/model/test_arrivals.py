"""Exact arrivals: a rank that is late in most steps is named with its cost, and no other is."""

import random
from copy import copy

import pytest

from ddtop.model.arrivals import Straggler, findings_of
from ddtop.model.memory import Rounds
from ddtop.policy import POLICY
from ddtop.wire.records import Group
from tests.arriving import BASE, answers, but, entered, in_bursts, late, looked_at, noisy


def test_200_ms_in_backward_on_one_of_four_ranks_are_found_within_20_steps():
    """As in traceml#252: the steps of all ranks are equally long."""
    (found,) = late(4, 20, but(noisy(1, 15.0), 1, 200.0))

    assert (found.ranks, found.waiters) == ((1,), (0, 2, 3))
    assert found.cost_ms == pytest.approx(200, abs=5)
    assert found.share_ratio == pytest.approx(0.92, abs=0.03)


def test_20_percent_of_a_50_ms_step_on_one_rank_are_found():
    (found,) = late(2, 400, but(noisy(2, 50.0, 3.0), 0, 10.0))

    assert found.ranks == (0,)
    assert found.cost_ms == pytest.approx(10, abs=2)


@pytest.mark.parametrize("extra", [0.0, 1.0, 3.0])
def test_what_costs_less_than_a_tenth_of_the_step_is_no_finding(extra):
    assert late(4, 400, but(noisy(3), 2, extra)) == ()


@pytest.mark.parametrize(("extra", "ranks"), [(0.8, []), (1.5, [(2,)])])
def test_of_short_steps_less_than_a_millisecond_is_no_finding(extra, ranks):
    takes = but(noisy(4, 4.0, 0.05), 2, extra)

    assert [found.ranks for found in late(4, 400, takes)] == ranks


def test_two_slow_ranks_are_named_together():
    takes = but(but(noisy(4), 1, 60.0), 3, 55.0)

    assert [found.ranks for found in late(4, 60, takes)] == [(1, 3)]


def test_where_most_ranks_are_slow_there_is_no_straggler():
    takes = but(but(but(noisy(4), 1, 60.0), 3, 60.0), 2, 60.0)

    assert late(4, 60, takes) == ()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [2, 4])
def test_with_varying_lengths_no_rank_is_a_straggler(seed, ranks):
    rng = random.Random(seed)

    assert late(ranks, 300, lambda rank, number: 20 * rng.paretovariate(1.5)) == ()
    assert late(ranks, 17, lambda rank, number: rng.uniform(100, 1200)) == ()


def test_one_slow_step_makes_no_straggler():
    assert late(3, 60, but(noisy(5), 1, lambda number: 4000.0 if number == 30 else 0.0)) == ()


def test_rank_0_that_validates_every_fifty_steps_is_no_straggler():
    """The others wait for it for a third of the time, as the program intends."""
    assert late(4, 500, but(noisy(6), 0, lambda number: 1000.0 if number % 50 == 0 else 0.0)) == ()


def test_a_rank_that_collects_its_garbage_every_third_step_is_late():
    (found,) = late(3, 300, but(noisy(7), 2, lambda number: 90.0 if number % 3 == 0 else 0.0))

    assert found.ranks == (2,)
    assert found.cost_ms == pytest.approx(30, abs=8)


def test_a_new_straggler_is_found_in_the_last_steps():
    takes = noisy(8)

    def changing(rank, number):
        return takes(rank, number) + (60.0 if rank == (0 if number <= 200 else 2) else 0.0)

    assert [found.ranks for found in late(3, 240, changing)] == [(2,)]


def test_too_few_steps_are_no_evidence():
    assert late(4, POLICY.of(Straggler).few_steps - 1, but(noisy(9), 1, 200.0)) == ()


def test_few_long_steps_are_reported_as_few():
    (found,) = late(4, POLICY.of(Straggler).few_steps + 2, but(noisy(9), 1, 200.0))

    assert found.few


def test_steps_of_many_collectives_that_wait_each_for_the_same_rank_add_up():
    """Tensor parallel: 4 ms late at each of six collectives of a step."""
    (found,) = late(2, 300, but(noisy(10, 8.0, 0.5), 1, 4.0), per_step=6)

    assert found.ranks == (1,)
    assert found.cost_ms == pytest.approx(24, abs=4)


def test_buckets_that_overlap_with_backward_are_waited_for_once():
    """DDP: late at the first of three buckets, which are enqueued one after the other without
    waiting."""
    times = entered(
        2,
        300,
        lambda rank, number: 30.0 if number % 3 == 1 and rank == 1 else 10.0,
        transfer_ms=0.0,
    )
    shifted = [
        {seq: (at + (15_000_000 if rank else 0), kind) for seq, (at, kind) in one.items()}
        for rank, one in enumerate(times)
    ]
    apart = looked_at(answers(shifted, per_step=3))[-1].late
    once = looked_at(answers(shifted, per_step=3, overlaps=True))[-1].late

    assert once[0].cost_ms < apart[0].cost_ms


def test_ranks_of_two_hosts_are_not_compared_by_their_clocks():
    """Their clocks are a second apart."""
    times = entered(4, 60, noisy(11))
    for one in times[2:]:
        one.update({seq: (at + 1_000_000_000, kind) for seq, (at, kind) in one.items()})

    assert looked_at(answers(times, hosts=("a", "a", "b", "b")))[-1].late == ()


def test_a_rank_without_steps_beside_ranks_with_steps_has_another_role():
    """Trainers that wait for a rank which makes rollouts."""
    takes = but(noisy(12), 0, 300.0)
    given = answers(entered(3, 60, takes))
    other = answers(entered(3, 60, takes), counts=False)[0]

    assert looked_at([other, *given[1:]])[-1].late == ()


def test_a_rank_that_is_late_because_it_waits_in_another_group_is_not_named():
    """Rank 1 waits for rank 0 in their own group, and is late for rank 2 because of that."""
    own = answers(entered(2, 100, but(noisy(13), 0, 50.0)), group="tp", members=(0, 1))
    second = answers(entered(2, 100, but(noisy(14), 0, 50.0)), group="dp", members=(1, 2))
    merged = [
        own[0],
        type(own[1])(
            1,
            "node0",
            BASE,
            type(own[1].arrivals)("r1", own[1].arrivals.groups + second[0].arrivals.groups, 100),
        ),
        second[1],
    ]
    groups = [Group("tp", "tp", (0, 1), "gloo"), Group("dp", "dp", (1, 2), "gloo")]

    assert [found.ranks for found in looked_at(merged, groups=groups)[-1].late] == [(0,)]


def test_waiting_for_each_other_is_separated_from_communication():
    rng = random.Random(15)
    waiting = looked_at(answers(entered(2, 200, lambda rank, number: rng.expovariate(1 / 20))))[
        -1
    ].balances[0]
    sending = looked_at(answers(entered(2, 200, lambda rank, number: 1.0, transfer_ms=20.0)))[
        -1
    ].balances[0]

    assert waiting.waiting_ratio > 0.25
    assert sending.waiting_ratio < 0.02


@pytest.mark.parametrize(("per_step", "collectives"), [(300, 1800), (1900, 1900), (99, 1980)])
def test_communication_is_found_in_steps_too_long_for_the_recorder(per_step, collectives):
    """The recorder keeps 2,000 collectives: six steps of 300, which were too few for a verdict."""
    (one,) = looked_at(
        answers(entered(2, collectives, lambda *_: 0.05, transfer_ms=0.5), per_step=per_step)
    )[-1].balances

    assert one.per_step == per_step
    assert one.waiting_ratio < 0.02
    assert one.step_ms == pytest.approx(0.55 * per_step, rel=0.02)


def test_waiting_for_each_other_is_found_in_long_steps_too():
    rng = random.Random(15)
    times = entered(2, 2000, lambda rank, number: rng.expovariate(1 / 20))
    (one,) = looked_at(answers(times, per_step=300))[-1].balances

    assert one.waiting_ratio > 0.25


def test_a_few_collectives_of_a_long_step_say_nothing_of_it():
    assert looked_at(answers(entered(2, 200, lambda *_: 0.05), per_step=100))[-1].balances == ()


def test_a_round_is_worked_out_again_when_another_rank_has_answered():
    first, second, third = answers(entered(3, 60, but(noisy(16), 2, 100.0)))
    rounds, groups = Rounds(), [Group("0", "default_pg", (0, 1, 2), "gloo")]
    for answer in (first, second):
        rounds.add(answer)
    before = copy(rounds)
    rounds.add(third)

    assert findings_of(before, groups, lambda _: False, POLICY)[-1].late == ()
    assert [
        found.ranks for found in findings_of(rounds, groups, lambda _: False, POLICY)[-1].late
    ] == [(2,)]


def test_the_order_of_the_answers_does_not_matter():
    given = answers(entered(4, 60, but(noisy(17), 1, 100.0)))

    assert looked_at(given)[-1].late == looked_at(given[::-1])[-1].late


def test_stages_of_a_pipeline_wait_for_each_other_by_design():
    given = answers(entered(2, 60, but(noisy(18), 1, 100.0)))
    rounds = Rounds()
    for answer in given:
        rounds.add(answer)

    assert (
        findings_of(rounds, [Group("0", "default_pg", (0, 1), "gloo")], lambda _: True, POLICY)[
            -1
        ].late
        == ()
    )


def of_two_hosts(times, errors_ms):
    """The result if the ranks are on two hosts with these clock errors; None: not measured."""
    return looked_at(answers(times, hosts=("a", "a", "b", "b"), errors_ms=errors_ms))[-1]


def test_ranks_of_hosts_whose_clocks_are_known_well_are_compared():
    times = entered(4, 60, but(but(noisy(9), 2, 60.0), 3, 60.0))

    (found,) = of_two_hosts(times, {"a": 0.0, "b": 0.4}).late

    assert (found.ranks, found.waiters) == ((2, 3), (0, 1))
    assert (found.hosts, found.hosts_apart) == (2, 0)
    assert found.error_ms == pytest.approx(0.4)


@pytest.mark.parametrize(
    "errors_ms", [{"a": 0.0, "b": 20.0}, {"a": 10.0, "b": 10.0}, {"a": 0.0}, {}]
)
def test_ranks_are_not_compared_where_the_clocks_may_be_off_by_much_of_the_cost(errors_ms):
    times = entered(4, 60, but(but(noisy(9), 2, 60.0), 3, 60.0))

    assert of_two_hosts(times, errors_ms).late == ()


def test_a_clock_that_is_off_within_its_error_accuses_nobody():
    """All ranks are equally fast. The clock of host b is as far off as its error allows, so its
    ranks look late in every step."""
    times = entered(4, 80, noisy(10))
    for one in times[2:]:
        one.update({seq: (at + 12_000_000, kind) for seq, (at, kind) in one.items()})

    assert [late.ranks for late in of_two_hosts(times, {"a": 0.0, "b": 1.0}).late] == [(2, 3)]
    assert of_two_hosts(times, {"a": 0.0, "b": 12.0}).late == ()


def test_a_straggler_on_its_own_host_is_named_with_the_number_of_hosts_left_out():
    times = entered(4, 60, but(noisy(9), 2, 60.0))

    (found,) = of_two_hosts(times, {"a": 0.0, "b": 40.0}).late

    assert (found.ranks, found.waiters, found.hosts, found.hosts_apart) == ((2,), (3,), 1, 1)


def test_several_hosts_are_balanced_together_only_if_their_clocks_agree():
    times = entered(4, 60, noisy(10))

    assert [one.ranks for one in of_two_hosts(times, {"a": 0.0, "b": 0.1}).balances] == [
        (0, 1, 2, 3)
    ]
    assert [one.ranks for one in of_two_hosts(times, {"a": 0.0, "b": 9.0}).balances] == [
        (0, 1),
        (2, 3),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_gradients_that_are_enqueued_together_are_one_piece_of_evidence(seed):
    """A loop calls all_reduce for each gradient; data takes 0 to 250 ms."""
    rng = random.Random(seed)
    times = in_bursts(3, 60, lambda rank, number: rng.uniform(0, 250))

    assert looked_at(answers(times, counts=False))[-1].late == ()


def test_a_late_rank_is_found_among_gradients_that_are_enqueued_together():
    times = in_bursts(3, 60, lambda rank, number: 140.0 if rank == 1 else 40.0 + number % 5)
    (found,) = looked_at(answers(times, counts=False))[-1].late

    assert found.ranks == (1,)


def test_the_bytes_of_a_step_are_those_of_all_its_collectives():
    times = entered(2, 200, lambda *_: 1.0, transfer_ms=20.0)
    given = answers(times, per_step=4, call_bytes=1000.0)
    (one,) = looked_at(given)[-1].balances

    assert (one.step_bytes, one.call_bytes) == (4000.0, 1000.0)
    (one,) = looked_at(answers(times, counts=False, call_bytes=1000.0))[-1].balances
    assert one.step_bytes == 1000.0


@pytest.mark.parametrize(
    ("steps", "base", "extra"),
    [
        (200, 50.0, lambda number: 10.0 if number <= 180 else 0.0),
        (20, 50.0, lambda number: 60.0 if number > 12 else 0.0),
    ],
    ids=["on time again", "late at last"],
)
def test_a_rank_that_is_late_in_a_part_of_the_steps_only_is_no_straggler(steps, base, extra):
    times = entered(4, steps, but(lambda rank, number: base, 1, extra))

    assert looked_at(answers(times))[-1].late == ()
