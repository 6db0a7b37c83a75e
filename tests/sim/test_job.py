"""The frames of a simulated job: any reader accepts them, they are the same for the same time, and
their counters only grow.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddtop.sim.incidents import KINDS, RANK_KILLED, RANK_MISSING, SCENARIOS, Incident, Scenario
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import (
    AnyRecord,
    Exit,
    Groups,
    Hello,
    HostState,
    RankState,
    Stacks,
    unpack,
)
from tests.sim.watching import BEGAN, Watcher, at, simulated

WORLDS = st.integers(1, 40) | st.integers(41, 700)
MOMENTS = st.floats(0.0, 420.0)


def opened(found: Iterable[bytes]) -> list[tuple[frames.Envelope, AnyRecord]]:
    return [
        (envelope, frames.open_record(envelope)) for envelope in map(frames.open_envelope, found)
    ]


def grows(record: AnyRecord) -> dict[str, float]:
    """The numbers of a record that only grow while its process lives."""
    if isinstance(record, RankState):
        numbers: dict[str, float] = {
            "iteration": record.iteration or 0,
            "agent": record.agent_cpu_ns,
        }
        numbers |= {"waits": record.wait_samples, "all": record.all_samples}
        numbers |= {
            f"activity {index}": count for index, count in enumerate(record.activity_samples)
        }
        for group in record.groups:
            numbers |= {
                f"enqueued {group.group}": group.enqueued,
                f"completed {group.group}": group.completed or 0,
            }
        if record.cuda is not None:
            numbers |= {"retries": record.cuda.retries or 0}
        if record.loader is not None:
            numbers |= {"loader": record.loader.wait_total_ns, "batches": record.loader.batches}
        return numbers
    if isinstance(record, HostState):
        return {
            f"{name} of {process.pid}": getattr(process, name) or 0
            for process in record.processes
            for name in ("cpu_ns", "io_bytes", "switches")
        } | {"relay": record.relay_cpu_ns}
    return {}


@settings(max_examples=25)
@given(WORLDS, st.integers(0, 99), st.sampled_from(sorted(SCENARIOS)), MOMENTS)
def test_any_job_at_any_moment_says_records_that_a_viewer_takes(
    world: int, seed: int, name: str, moment_s: float
) -> None:
    job = SimulatedJob(world, seed, SCENARIOS[name], began_unix_ns=BEGAN)
    watcher = Watcher(job, moment_s)
    snapshot, _ = watcher.until(moment_s + 1.0)

    assert watcher.model.garbled == 0
    assert snapshot.world_size in (0, world)
    skew_s = SCENARIOS[name].skew_s
    for envelope, _ in opened(job.frames(at(moment_s), at(moment_s + 1.0))):
        assert at(moment_s - 0.1 - skew_s) <= envelope.unix_ns <= at(moment_s + 1.1 + skew_s)


@settings(max_examples=15)
@given(WORLDS, st.integers(0, 99), st.sampled_from(sorted(SCENARIOS)), MOMENTS)
def test_the_same_time_gives_the_same_bytes_whatever_was_asked_before(
    world: int, seed: int, name: str, moment_s: float
) -> None:
    one, other = (SimulatedJob(world, seed, SCENARIOS[name], began_unix_ns=BEGAN) for _ in range(2))
    list(one.frames(at(moment_s + 3.0), at(moment_s + 3.5)))

    found = list(one.frames(at(moment_s), at(moment_s + 1.0)))

    halves = [
        *other.frames(at(moment_s), at(moment_s + 0.5)),
        *other.frames(at(moment_s + 0.5), at(moment_s + 1.0)),
    ]
    assert found == halves
    assert list(one.joining(at(moment_s))) == list(other.joining(at(moment_s)))


@settings(max_examples=12)
@given(
    st.integers(1, 24),
    st.integers(0, 99),
    st.sampled_from(sorted(SCENARIOS)),
    st.floats(0.0, 180.0),
)
def test_counters_never_fall_while_a_process_lives(
    world: int, seed: int, name: str, moment_s: float
) -> None:
    # A job whose only rank is missing is none.
    assume(world > 1 or name != "rank-missing")
    job = SimulatedJob(world, seed, SCENARIOS[name], began_unix_ns=BEGAN)
    highest: dict[object, float] = {}

    for envelope, record in opened(job.frames(at(moment_s), at(moment_s + 30.0))):
        for what, value in grows(record).items():
            key = (envelope.sender, envelope.attempt, envelope.rank, what)
            assert value >= highest.get(key, 0), f"{key} fell"
            highest[key] = value


def test_samples_of_waits_are_never_more_than_samples() -> None:
    job = simulated(16, Incident("loader-stuck", 5.0))

    states = [
        record
        for _, record in opened(job.frames(at(0.0), at(60.0)))
        if isinstance(record, RankState)
    ]

    assert states
    assert all(state.wait_samples <= state.all_samples for state in states)


@pytest.mark.parametrize("world", [8, 2000])
def test_every_rank_reports_in_every_second_and_so_does_every_host(world: int) -> None:
    found = opened(simulated(world).frames(at(5.0), at(6.0)))

    reports = [envelope.rank for envelope, record in found if isinstance(record, RankState)]
    assert set(reports) == set(range(world))
    assert len(reports) == world * (2 if world == 8 else 1)
    assert len([record for _, record in found if isinstance(record, HostState)]) == -(-world // 8)


def test_many_hellos_make_the_groups_known_once() -> None:
    """65,536 ranks that list each other would take 13 GB. In large groups only the first member
    reports the members.
    """
    snapshot, _ = Watcher(simulated(2000)).until(1.0)

    assert {group.name: len(group.ranks) for group in snapshot.groups if len(group.ranks) > 8} == {
        "0": 2000,
        **{str(1 + local): 250 for local in range(8)},
    }
    assert all(
        len(group.ranks) == 8
        for group in snapshot.groups[9:]
        if group.description.startswith("tp_")
    )
    assert len(snapshot.groups) == 1 + 8 + 250


def test_the_largest_group_fits_a_frame() -> None:
    job = simulated(65_536)

    first = next(
        data for data in job.joining(at(0.0)) if frames.open_envelope(data).kind == "Groups"
    )

    assert len(first) < frames.FRAME_BYTES_MAX
    record = frames.open_record(frames.open_envelope(first))
    assert isinstance(record, Groups)
    assert len(unpack(record.groups[0]).ranks) == 65_536


def test_who_joins_after_a_death_learns_of_it_and_of_the_last_report() -> None:
    job = simulated(8, Incident(RANK_KILLED, 5.0, rank=3))

    found = opened(job.joining(at(60.0)))

    assert [record.rank for _, record in found if isinstance(record, Exit)] == [3]
    last = [
        record for envelope, record in found if isinstance(record, RankState) and envelope.rank == 3
    ]
    assert [state.phase for state in last] == ["running"]


def test_a_new_attempt_is_reported_with_new_processes() -> None:
    job = simulated(8, Incident(RANK_KILLED, 5.0), restarts_s=20.0)

    hellos = [
        record for _, record in opened(job.frames(at(19.0), at(24.5))) if isinstance(record, Hello)
    ]

    assert {hello.attempt for hello in hellos} == {1}
    assert {hello.rank for hello in hellos} == set(range(8))
    assert {hello.pid for hello in hellos}.isdisjoint(job.fleet.pid(rank, 0) for rank in range(8))


def test_all_that_are_there_answer_with_stacks_and_the_worker_that_owes_with_them() -> None:
    job = simulated(8, Incident("loader-stuck", 5.0, rank=3))

    answers = [
        record for _, record in opened(job.stacks(at(20.0), "r1")) if isinstance(record, Stacks)
    ]

    assert [one.of_rank for one in answers if not one.worker] == list(range(8))
    assert [one.of_rank for one in answers if one.worker] == [3]
    assert {one.request for one in answers} == {"r1"}


def test_only_the_ranks_that_were_asked_answer_and_not_one_that_is_gone() -> None:
    job = simulated(8, Incident(RANK_KILLED, 5.0, rank=3))

    asked = [envelope.rank for envelope, _ in opened(job.stacks(at(20.0), "r1", (2, 3, 99)))]

    assert asked == [2]


@pytest.mark.parametrize("world", [0, -1, 131_073])
def test_a_size_that_cannot_be_is_refused(world: int) -> None:
    with pytest.raises(ValueError, match="cannot be simulated"):
        simulated(world)


@pytest.mark.parametrize(
    ("incidents", "why"),
    [
        ((Incident("loader-stuck", 5.0, 3.0),), "too early"),
        ((Incident("loader-stuck", 5.0), Incident("straggler", 9.0)), "begins before"),
        ((Incident("loader-stuck", 5.0, 9.0), Incident("straggler", 7.0)), "begins before"),
        ((Incident("nonsense", 5.0),), "no such incident"),
        ((Incident(RANK_MISSING, 5.0, 9.0),), "must begin at 0"),
        ((Incident(RANK_KILLED, 5.0, 9.0),), "no end"),
        ((Incident("straggler", 5.0, rank=8),), "there are only 8 ranks"),
    ],
)
def test_a_script_that_cannot_happen_is_refused(incidents: tuple[Incident, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SimulatedJob(8, 0, Scenario(incidents), began_unix_ns=BEGAN)


def test_every_kind_has_a_scenario() -> None:
    assert set(KINDS) < set(SCENARIOS)


def test_while_nothing_moves_no_number_changes_but_the_counters() -> None:
    """The screen of a hang must not change: flicker draws the eye, and costs bytes on a slow
    line.
    """
    job = simulated(16, Incident("loader-stuck", 3.0, rank=5))
    found: dict[int | None, set[object]] = {}

    for envelope, record in opened(job.frames(at(10.0), at(14.0))):
        if isinstance(record, RankState) and record.loader is not None:
            told = (
                record.step_ms,
                record.activity,
                record.place,
                record.iteration,
                record.loader.depth,
                record.groups,
            )
            found.setdefault(envelope.rank, set()).add(told)

    assert {rank: len(told) for rank, told in found.items()} == dict.fromkeys(range(16), 1)
