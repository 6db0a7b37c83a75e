"""The real rules reach the right verdict about every simulated incident. The records do not contain
the incident's name.
"""

from __future__ import annotations

import re

import pytest

from ddtop.model.facts import State
from ddtop.sim.incidents import SCENARIOS, Incident
from tests.sim.watching import Watcher, simulated

CULPRIT = 5
SIZES = [8, 128]


@pytest.mark.parametrize("world", SIZES)
@pytest.mark.parametrize(
    "kind", ["loader-stuck", "not-in-collective", "rank-stopped", "rank-killed"]
)
def test_who_holds_everybody_up_is_named_and_all_others_are_its_victims(
    kind: str, world: int
) -> None:
    watcher = Watcher(simulated(world, Incident(kind, 3.0, rank=CULPRIT)))

    _, verdict = watcher.until(12.0)

    assert [(one.kind, one.severity, one.ranks) for one in verdict.findings] == [
        (kind, "critical", (CULPRIT,))
    ]
    assert verdict.findings[0].victims == tuple(rank for rank in range(world) if rank != CULPRIT)


@pytest.mark.parametrize("kind", ["loader-stuck", "rank-stopped", "rank-killed"])
def test_only_members_are_said_to_wait_in_a_group(kind: str) -> None:
    """Most ranks wait for ranks of their own groups, and those wait too."""
    watcher = Watcher(simulated(256, Incident(kind, 3.0, rank=13)))

    snapshot, verdict = watcher.until(12.0)

    pattern = r"(\d+) ranks (?:wait for \S+ )?in \w+ #\d+ of (\w+)"
    said = re.findall(pattern, verdict.headline)
    sizes = {group.description: len(group.ranks) for group in snapshot.groups}
    assert said
    assert [(count, name) for count, name in said if int(count) >= sizes[name]] == []
    assert verdict.headline.endswith("ranks wait for those ranks")


def test_who_waits_for_a_lost_host_is_counted_over_all_its_groups() -> None:
    """Its 8 ranks are in 8 groups of 64 ranks: to name three of them hides most that wait."""
    watcher = Watcher(simulated(512, Incident("host-lost", 3.0, rank=13)), from_s=25.0)

    _, verdict = watcher.until(40.0)

    assert "; 504 ranks wait for it in 8 groups (dp_0 … dp_7)" in verdict.headline


@pytest.mark.parametrize("world", SIZES)
@pytest.mark.parametrize("kind", ["loader-stuck", "not-in-collective", "rank-stopped"])
def test_what_is_over_is_healthy_again(kind: str, world: int) -> None:
    watcher = Watcher(simulated(world, Incident(kind, 3.0, 10.0, rank=CULPRIT)), from_s=8.0)

    snapshot, verdict = watcher.until(15.0)

    assert verdict.findings == ()
    assert snapshot.moving == world


@pytest.mark.parametrize("world", SIZES)
def test_who_is_slow_is_named_with_what_it_does_more_than_the_others_until_it_is_over(
    world: int,
) -> None:
    watcher = Watcher(simulated(world, Incident("straggler", 1.0, 16.0, rank=CULPRIT)))

    _, verdict = watcher.until(13.0)
    assert [(one.kind, one.severity, one.ranks) for one in verdict.findings] == [
        ("straggler", "warning", (CULPRIT,))
    ]
    assert "rotary_cache" in verdict.findings[0].summary

    _, verdict = watcher.until(30.0)
    assert verdict.findings == ()


@pytest.mark.parametrize("world", SIZES)
def test_loaders_that_cannot_keep_up_are_a_warning(world: int) -> None:
    watcher = Watcher(simulated(world, Incident("input-bound", 0.5)))

    _, verdict = watcher.until(13.0)

    assert [(one.kind, one.severity) for one in verdict.findings] == [("input-bound", "warning")]
    assert verdict.findings[0].ranks == tuple(range(world))


@pytest.mark.parametrize("world", SIZES)
def test_a_rank_that_never_came_is_missing_until_it_comes(world: int) -> None:
    watcher = Watcher(simulated(world, Incident("rank-missing", 0.0, 14.0, rank=CULPRIT)))

    _, verdict = watcher.until(13.0)
    assert [(one.kind, one.severity, one.ranks) for one in verdict.findings] == [
        ("rank-missing", "critical", (CULPRIT,))
    ]

    snapshot, verdict = watcher.until(22.0)
    assert verdict.findings == ()
    assert snapshot.moving == world


@pytest.mark.parametrize("world", [*SIZES, 1100])
def test_a_healthy_job_is_never_spoken_of(world: int) -> None:
    watcher = Watcher(simulated(world))

    seen = [watcher.until(seconds) for seconds in (0.5, 2.0, 4.0)]

    assert [verdict.findings for _, verdict in seen] == [()] * 3
    assert [snapshot.moving for snapshot, _ in seen] == [world] * 3


def test_who_joins_late_reads_the_same_verdict() -> None:
    job = simulated(64, Incident("rank-killed", 3.0, rank=CULPRIT))

    early, late = Watcher(job).until(34.0)[1], Watcher(job, from_s=30.0).until(34.0)[1]

    assert [one.identity for one in early.findings] == [one.identity for one in late.findings]
    assert early.findings[0].kind == "rank-killed"


def test_the_tour_shows_a_hang_its_end_a_warning_and_a_death_and_begins_again() -> None:
    tour = SCENARIOS["tour"]
    watcher = Watcher(simulated(8, *tour.incidents, restarts_s=tour.restarts_s))
    kinds: list[tuple[str, ...]] = []

    for seconds in range(5, 240, 5):
        _, verdict = watcher.until(float(seconds))
        found = tuple(sorted(one.kind for one in verdict.findings))
        if not kinds or kinds[-1] != found:
            kinds.append(found)

    calm: tuple[str, ...] = ()
    assert kinds == [
        calm,
        ("loader-stuck",),
        calm,
        ("straggler",),
        calm,
        # A finding about a loader stays for 30 s. In the tour a rank is killed before that.
        ("input-bound",),
        ("rank-killed",),
        calm,
        ("loader-stuck",),
    ]


@pytest.mark.parametrize("skew_s", [0.0, 90.0])
def test_a_host_that_is_down_is_named_whatever_the_clocks_and_is_well_when_it_is_back(
    skew_s: float,
) -> None:
    watcher = Watcher(simulated(64, Incident("host-lost", 3.0, 22.0, rank=21), skew_s=skew_s))

    snapshot, verdict = watcher.until(16.0)
    assert [(one.kind, one.severity, one.ranks) for one in verdict.findings] == [
        ("host-lost", "critical", tuple(range(16, 24)))
    ]
    assert set(verdict.findings[0].victims) == set(range(64)) - set(range(16, 24))
    assert {snapshot.ranks[rank].state for rank in range(16, 24)} == {State.LOST}

    snapshot, verdict = watcher.until(28.0)
    assert verdict.findings == ()
    assert snapshot.moving == 64


def test_a_host_whose_link_is_cut_goes_on_and_is_no_alarm() -> None:
    watcher = Watcher(simulated(64, Incident("link-cut", 3.0, 22.0, rank=21)))

    _, verdict = watcher.until(16.0)
    assert [(one.kind, one.severity) for one in verdict.findings] == [("host-lost", "info")]
    assert verdict.health == "ok"

    _, verdict = watcher.until(28.0)
    assert verdict.findings == ()
