"""The screens as pictures. Look at a changed one before accepting it with --snapshot-update."""

import dataclasses

import pytest

from ddtop.follow.history import JobHistory
from ddtop.follow.look import Look
from ddtop.policy import POLICY
from ddtop.present.text import UNICODE
from ddtop.ui.app import DdtopApp
from ddtop.wire.records import Group, HostState
from tests.ui import builders, gpus, lived
from tests.ui.builders import JOB, NOW, FakeSource, live
from tests.ui.changed import replace

GIB = 1 << 30
SIZES = [(80, 24), (120, 40)]


def lost():
    snapshot = builders.healthy()
    look = Look(snapshot, builders.calm(snapshot), "relay not heard for 8 s, trying again", 8.0)
    return FakeSource(look)


def with_hosts():
    snapshot, verdict = builders.hang(64, 13)
    hosts = tuple(
        HostState(
            host=host.host,
            cores=64,
            cpu_ratio=0.4 + number % 5 * 0.1,
            memory_total_bytes=512 * GIB,
            memory_available_bytes=(300 - number * 20) * GIB,
            shm_total_bytes=256 * GIB,
            shm_free_bytes=200 * GIB,
            relay_pid=100 + number,
            relay_cpu_ns=1_000_000_000,
            relay_rss_bytes=30 << 20,
            dropped=number // 7,
        )
        for number, host in enumerate(snapshot.hosts)
    )
    ages = tuple(0.3 + number * 0.1 for number in range(len(hosts)))
    return live(replace(snapshot, hosts=hosts, host_ages_s=ages), verdict)


def with_groups():
    snapshot, verdict = builders.hang(64, 13)
    parts = [
        Group(str(at + 1), f"tp_{at}", tuple(range(at * 4, at * 4 + 4)), "nccl") for at in range(16)
    ]
    return live(replace(snapshot, groups=(*snapshot.groups, *parts)), verdict)


SOURCES = {
    "healthy": lambda: live(builders.healthy()),
    "hang": lambda: live(*builders.hang()),
    "straggler": lambda: live(*builders.straggling()),
    "empty": lambda: FakeSource(builders.EMPTY),
    "512-ranks": lambda: live(*builders.hang(512, 300)),
    "lost-contact": lost,
}


def lived_in(snapshot, verdict=None):
    """The same job, with the numbers of its last minutes."""
    source = live(snapshot, verdict)
    source.shown = dataclasses.replace(source.shown, job_past=lived.history_of(snapshot))
    return source


def app_of(source):
    app = DdtopApp(source, JOB, clock=lambda: NOW, glyphs=UNICODE)
    snapshot = source.shown.snapshot
    if snapshot is not None and len(snapshot.ranks) <= 512:
        app.session.remember(JobHistory(POLICY), lived.series_of(snapshot))
    return app


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SOURCES)
def test_main_screen(snap_compare, name, size):
    assert snap_compare(app_of(SOURCES[name]()), terminal_size=size)


@pytest.mark.parametrize(
    ("name", "source", "size", "keys"),
    [
        ("hang", SOURCES["hang"], (200, 50), []),
        ("map-512-ranks", SOURCES["512-ranks"], (80, 24), ["2"]),
        ("map-512-ranks", SOURCES["512-ranks"], (120, 40), ["2"]),
        ("map-4096-ranks", lambda: live(*builders.hang(4096, 2731)), (200, 50), ["2"]),
        ("map-without-colours", SOURCES["512-ranks"], (80, 24), ["2", "t", "t", "t"]),
        ("strip", lambda: lived_in(builders.healthy()), (80, 24), []),
        ("strip-64-ranks", lambda: lived_in(builders.healthy(64)), (80, 24), []),
        ("strip-gpus", lambda: lived_in(gpus.on_gpus()), (120, 40), []),
        ("strip-hang", lambda: lived_in(*builders.hang()), (120, 40), []),
        ("groups", with_groups, (80, 24), ["3"]),
        ("group", with_groups, (80, 24), ["3", "enter"]),
        ("hosts", with_hosts, (120, 24), ["5"]),
        ("events", SOURCES["hang"], (80, 24), ["6"]),
        ("rank", SOURCES["hang"], (80, 24), ["enter"]),
        ("why", SOURCES["hang"], (80, 24), ["e"]),
        ("start-up", lambda: live(*builders.starting_up()), (80, 24), []),
        ("light", SOURCES["hang"], (80, 24), ["t"]),
        ("without-colours", SOURCES["hang"], (80, 24), ["t", "t", "t"]),
    ],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else f"{value[0]}x{value[1]}"
        if isinstance(value, tuple)
        else ""
    ),
)
def test_other_screens(snap_compare, name, source, size, keys):
    del name
    assert snap_compare(app_of(source()), terminal_size=size, press=keys)
