"""Hosts: what their relays report, and the worst of their ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop.ui.present.classes import codes_of
from ddtop.ui.present.glyphs import ASCII, UNICODE
from ddtop.ui.present.grid import hosts_of_ranks
from ddtop.ui.present.hosts import hosts_facts, names_of
from ddtop.ui.present.text import line_width, plain
from ddtop.ui.render.hosts import host_row, hosts_table
from ddtop.wire.records import HostState

from . import builders

GIB = 1 << 30
REPORT = HostState(
    host="node001",
    cores=64,
    cpu_ratio=0.4,
    memory_total_bytes=512 * GIB,
    memory_available_bytes=128 * GIB,
    shm_total_bytes=256 * GIB,
    shm_free_bytes=200 * GIB,
    relay_rss_bytes=30 << 20,
    dropped=2,
    garbled=1,
)


def facts(snapshot, at_fault=()):
    codes = codes_of(snapshot, at_fault)
    return hosts_facts(snapshot, hosts_of_ranks(names_of(snapshot.ranks)), codes), codes


def reported(world_size=16, culprit=13):
    snapshot, _ = builders.hang(world_size, culprit)
    return replace(snapshot, hosts=(REPORT,), host_ages_s=(0.4,))


def rows(snapshot, width=130, relay=0.012, glyphs=UNICODE, at_fault=(13,)):
    found, codes = facts(snapshot, at_fault)
    return [plain(host_row(host, codes, relay, hosts_table(width, 7), glyphs)) for host in found]


def test_a_row_has_the_load_the_memory_and_what_ddtop_itself_costs():
    assert rows(reported())[0].split() == (
        [
            "node001",
            "8-15",
            "✖",
            "culprit",
            "13",
            "40%",
            "0.1",
            "███████▌",
            "384G/512G",
            "▉",
            "56.0G/256G",
            "1.2%",
            "30.0M",
            "3",
            "0.4s",
        ]
    )


def test_a_host_of_which_no_relay_reports_still_has_its_ranks():
    assert rows(reported())[1].split() == ["node000", "0-7", "■", "blocked", "-", "0.1", "-", "-", "-", "-", "-"]


def test_a_host_with_a_rank_at_fault_stands_first():
    assert [host.name for host in facts(reported(24), (13,))[0]] == ["node001", "node000", "node002"]
    assert [host.name for host in facts(reported(24))[0]] == ["node000", "node001", "node002"]


def test_a_host_without_ranks_stands_last():
    found, _ = facts(replace(builders.healthy(8), hosts=(REPORT,), host_ages_s=(9.0,)))

    assert [(host.name, host.ranks) for host in found] == [("node000", tuple(range(8))), ("node001", ())]


def test_a_report_that_is_old_says_so():
    found, codes = facts(replace(reported(), host_ages_s=(12.0,)), (13,))

    assert (" 12s", "warning") in host_row(found[0], codes, None, hosts_table(100, 7))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_no_row_is_wider_than_its_table(glyphs):
    for width in range(60, 220, 5):
        assert all(line_width(((row, ""),)) <= width for row in rows(reported(), width, glyphs=glyphs))
