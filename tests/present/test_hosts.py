"""Hosts: the reports of their relays, and the worst of their ranks."""

import pytest

from ddtop.model.facts import HostSeen, State
from ddtop.present.findings import banner_lines, header_line
from ddtop.present.hosts import clock_words, host_row, hosts_table
from ddtop.present.now import now_age_s, now_text
from ddtop.present.text import ASCII, UNICODE, line_width, plain
from ddtop.wire.records import Exit, HostState, HubLink
from tests.present.reports import REPORT, facts, reported
from tests.ui import builders
from tests.ui.changed import replace


def rows(snapshot, width=130, relay=0.012, glyphs=UNICODE, at_fault=(13,)):
    found, codes = facts(snapshot, at_fault)
    return [
        plain(host_row(host, codes, relay, hosts_table(width, found), glyphs)) for host in found
    ]


def test_a_row_has_the_load_the_memory_and_what_ddtop_itself_costs():
    assert " ".join(rows(reported())[0].split()) == (
        "node001 8-15 ✖ culprit 13 40% 0.1 ━━━━━━━ 384G/512G ━ 56.0G/256G 1.2% 30.0M 3 0.4s"
    )


def test_a_host_of_which_no_relay_reports_still_has_its_ranks():
    assert " ".join(rows(reported())[1].split()) == "node000 0-7 ■ blocked - 0.1 - - - - -"


def test_a_host_with_a_rank_at_fault_stands_first():
    worst_first = ["node001", "node000", "node002"]

    assert [host.name for host in facts(reported(24), (13,))[0]] == worst_first
    assert [host.name for host in facts(reported(24))[0]] == worst_first


def test_a_host_without_ranks_stands_last():
    found, _ = facts(replace(builders.healthy(8), hosts=(REPORT,), host_ages_s=(9.0,)))

    assert [(host.name, host.ranks) for host in found] == [
        ("node000", tuple(range(8))),
        ("node001", ()),
    ]


def test_a_report_that_is_old_says_so():
    found, codes = facts(replace(reported(), host_ages_s=(12.0,)), (13,))

    assert ("  12s", "warning") in host_row(found[0], codes, None, hosts_table(100, found))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_no_row_is_wider_than_its_table(glyphs):
    for width in range(60, 220, 5):
        assert all(
            line_width(((row, ""),)) <= width for row in rows(reported(), width, glyphs=glyphs)
        )


# -- several hosts, heard by a hub


def seen(sender, host, **more):
    given = {
        "role": "leaf",
        "offset_ns": 200_000,
        "error_ns": 150_000,
        "heard_unix_ns": builders.NOW,
    } | more
    return HostSeen(sender, host, **given)


def spread(*hosts, names=("node000", "node001")):
    """A job of 16 ranks on two hosts, from which a hub gets these reports."""
    snapshot = builders.healthy(16)
    ranks = tuple(
        replace(
            rank,
            agent={"sender": hosts[rank.rank // 8].sender},
            hello=builders.hello(rank.rank, 16, names[rank.rank // 8]),
        )
        for rank in snapshot.ranks
    )
    states = tuple(
        HostState(one.host, 64, hub=HubLink(one.role, "node000:29600", True), clock=None)
        for one in hosts
    )
    return replace(snapshot, ranks=ranks, hosts=states, host_ages_s=(0.4,) * len(hosts), seen=hosts)


HUB = seen("aa01", "node000", role="hub", offset_ns=0, error_ns=0)


def row_of(snapshot, name, width=130):
    (found,) = [text for text in rows(snapshot, width, at_fault=()) if text.startswith(name)]
    return found.split()


def titles(snapshot, width=130):
    found, _ = facts(snapshot)
    return plain(hosts_table(width, found).titles()).split()


def test_clocks_that_are_nearly_right_take_no_room():
    snapshot = spread(HUB, seen("bb02", "node001"))

    assert "CLOCK" not in titles(snapshot)
    assert "REPORTS" not in titles(snapshot)


def test_a_host_that_is_cut_off_says_so_and_the_others_that_their_reports_arrive():
    snapshot = spread(HUB, seen("bb02", "node001"))
    first, second = snapshot.hosts
    cut = HostState("node001", 64, hub=HubLink("leaf", "node000:29600", False), clock=None)
    snapshot = replace(snapshot, hosts=(first, cut))

    assert second.hub.connected
    assert "REPORTS" in titles(snapshot)
    assert row_of(snapshot, "node000")[4] == "ok"
    assert row_of(snapshot, "node001")[4:6] == ["cut", "off"]


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        ({"offset_ns": -12_300_000_000}, "+12.3 s"),
        ({"offset_ns": 2_000_000_000}, "-2.0 s"),
        ({"error_ns": 80_000_000}, "±80 ms"),
        ({"offset_ns": 90_000_000_000, "error_ns": 80_000_000}, "-90.0 s ±80 ms"),
        ({"offset_ns": None, "error_ns": None}, "unknown"),
    ],
)
def test_a_clock_that_is_wrong_or_not_known_is_reported(clock, said):
    snapshot = spread(HUB, seen("bb02", "node001", **clock))
    found, codes = facts(snapshot)

    assert "CLOCK" in titles(snapshot)
    lines = [host_row(host, codes, None, hosts_table(130, found)) for host in found]
    assert [
        [span for span in line if span[1] == "warning" and span[0].strip()] for line in lines
    ] == [
        [],
        [(said.rjust(max(len(said), 7)), "warning")],
    ]


def test_a_host_that_is_lost_says_so_and_since_when():
    lost = seen(
        "bb02", "node001", quiet=True, lost_since_unix_ns=builders.NOW - 31 * builders.SECOND
    )
    snapshot = replace(spread(HUB, lost), host_ages_s=(0.4, 31.0))
    ranks = tuple(
        replace(rank, state=State.LOST, agent={"unheard": True}) if rank.rank >= 8 else rank
        for rank in snapshot.ranks
    )

    found = row_of(replace(snapshot, ranks=ranks), "node001")

    assert found[2:5] == ["⊘", "lost", "lost"]
    assert found[-1] == "31s"


def test_two_containers_of_one_name_are_two_rows():
    one, other = seen("aa01", "worker", role="hub"), seen("bb02", "worker")
    snapshot = spread(one, other, names=("worker", "worker"))
    found, _ = facts(snapshot)

    assert [(host.name, host.ranks) for host in found] == [
        ("worker aa01", tuple(range(8))),
        ("worker bb02", tuple(range(8, 16))),
    ]
    assert [host.state is state for host, state in zip(found, snapshot.hosts, strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_row_is_wider_than_the_terminal(width):
    snapshot = spread(HUB, seen("bb02", "node001", offset_ns=90_000_000_000, error_ns=80_000_000))

    assert all(len(text) <= width for text in rows(snapshot, width, at_fault=()))


def test_1250_hosts_are_made_into_facts():
    hosts = tuple(seen(f"{number:012x}", f"node{number:04d}") for number in range(1250))
    snapshot = builders.healthy(10_000)
    ranks = tuple(
        replace(
            rank,
            agent={"sender": hosts[rank.rank // 8].sender},
            hello=builders.hello(rank.rank, 10_000, hosts[rank.rank // 8].host),
        )
        for rank in snapshot.ranks
    )
    found, _ = facts(
        replace(
            snapshot, ranks=ranks, hosts=tuple(HostState(one.host, 64) for one in hosts), seen=hosts
        )
    )

    assert len(found) == 1250
    assert all(host.seen is one for host, one in zip(found, hosts, strict=True))


def head(snapshot, width=120):
    return plain(header_line(snapshot, width))


def test_the_head_line_says_how_many_hosts_answer():
    quiet = seen("bb02", "node001", quiet=True)

    assert "  2/2 hosts  " in head(spread(HUB, seen("bb02", "node001")))
    assert "  1/2 hosts  " in head(spread(HUB, quiet))
    assert "  1 host  " in head(builders.healthy(8))


def test_a_host_that_has_ended_with_its_ranks_is_not_missed():
    snapshot = spread(HUB, seen("bb02", "node001", quiet=True))
    gone = Exit(0, 1, 0, None, False, 0, "pidfd")
    ranks = tuple(
        replace(rank, process={"exit": gone}) if rank.rank >= 8 else rank for rank in snapshot.ranks
    )

    assert "  2 hosts  " in head(replace(snapshot, ranks=ranks))


def test_a_viewer_at_one_host_of_several_says_so_at_the_top():
    snapshot = replace(
        builders.healthy(8), apart="this host only: hub not reached: connection refused"
    )

    lines = [plain(line) for line in banner_lines(snapshot, builders.calm(snapshot), 80)]

    assert lines[1].strip() == "this host only: hub not reached: connection refused"


def test_a_rank_of_a_lost_host_says_what_it_was_in():
    rank = replace(builders.healthy_rank(1), state=State.LOST, agent={"report_age_s": 31.0})

    assert (now_text(rank), now_age_s(rank, builders.NOW)) == ("was in all_reduce #74892", 31.0)


@pytest.mark.parametrize(
    ("offset_ns", "words"),
    [
        (300_000, "0.3 ms behind the hub's, ±0.1 ms"),
        (-2_500_000_000, "2.5 s ahead of the hub's, ±0.1 ms"),
        (None, "not compared with the hub's clock; its times are used as they are"),
    ],
)
def test_the_page_of_a_rank_tells_its_hosts_clock_in_full(offset_ns, words):
    error_ns = None if offset_ns is None else 100_000

    assert clock_words(seen("bb02", "node001", offset_ns=offset_ns, error_ns=error_ns)) == words
    assert clock_words(HUB) == clock_words(None) == ""
