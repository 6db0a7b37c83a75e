"""GPUs on the screen: columns of the table, GPUs below their hosts, the rank's page; nothing
without GPUs.
"""

import pytest

from ddtop.follow.history import SeriesHistory
from ddtop.model.facts import Device
from ddtop.policy import POLICY
from ddtop.present.documents import status_json
from ddtop.present.gpus import gpu_line, is_free, trouble_of
from ddtop.present.hosts import host_row, hosts_facts, hosts_table, names_of
from ddtop.present.map import codes_of, hosts_of_ranks
from ddtop.present.numbers import REPLACED, absent, rank_table
from ddtop.present.plain import status_text
from ddtop.present.rank import detail_lines
from ddtop.present.text import ASCII, cell_width, line_width, plain
from ddtop.wire.records import Gpu, GpuProcess, GpuWatch
from tests.nvml import GIB
from tests.ui import builders
from tests.ui.changed import replace
from tests.ui.gpus import TROUBLE, on_gpus


def status(snapshot, width=140):
    return status_text(snapshot, builders.calm(snapshot), width).splitlines()


def page(snapshot, rank, width=90):
    return [
        plain(line) for line in detail_lines(snapshot, rank, SeriesHistory().memory_of(rank), width)
    ]


def cards(snapshot, width=100, glyphs=None):
    return [
        plain(gpu_line(device, width, *([glyphs] if glyphs else []))) for device in snapshot.devices
    ]


def test_a_job_without_gpus_has_no_columns_for_them():
    snapshot = builders.healthy()

    assert absent(snapshot) >= {"gpu", "vram", "power", "nccl"}
    assert not {"GPU", "VRAM", "NCCL"} & set(status(snapshot, 200)[-9].split())
    assert "GPU" not in "\n".join(page(snapshot, 0))
    assert status_json(snapshot)["ranks"][0]["gpu"] is None


def test_use_and_memory_of_the_gpu_stand_in_the_table():
    lines = status(on_gpus(), 160)
    title, first = lines[-9], lines[-8]

    assert " GPU " in title
    assert " VRAM " in title
    assert " 97%" in first
    assert "41.0G" in first
    assert first[title.index("NCCL") :].startswith("ok")


def test_eighty_columns_have_room_for_the_gpu_before_the_cpu():
    """For a job on GPUs people look for this number."""
    keys = [column.key for column in rank_table(80, 8, 7, REPLACED).fields]

    assert {"gpu", "vram"} <= set(keys)


def test_a_lost_gpu_is_a_word_and_what_the_driver_does_not_tell_is_a_dash():
    snapshot = on_gpus(8, {0: {"lost": True}, 1: {"util_ratio": None, "used_bytes": None}})
    lines = status(snapshot)

    assert " lost " in lines[-8]
    for title in ("GPU", "VRAM"):
        at = lines[-9].index(title)
        assert lines[-7][at : at + len(title)].strip() == "-"


def test_gpus_stand_below_their_host_with_ranks_strangers_and_trouble():
    lines = cards(on_gpus(8, TROUBLE), 140)

    assert lines[0].split()[:2] == ["GPU", "0"]
    assert "rank 0" in lines[0]
    assert lines[1].endswith("91C  rank 1      slowed down by heat")
    assert lines[3].endswith("rank 3      bob 3310 python sample.py 31.0G")
    assert lines[5].split("  lost: it no longer answers ")[1].split() == ["rank", "5", "Xid", "79"]
    assert lines[6].endswith("rank 6      Xid 94, 2 uncorrectable memory errors")
    assert len({line.index("rank") for line in lines}) == 1


@pytest.mark.parametrize("width", [40, 80, 100, 140])
@pytest.mark.parametrize("glyphs", [None, ASCII])
def test_a_gpu_is_never_wider_than_the_screen(width, glyphs):
    long = GpuProcess(1, GIB, user="u" * 40, command="\x1b[31m" + "計" * 60)
    device = Device("node", Gpu(0, "GPU-a", 0.5, GIB, 2 * GIB, processes=(long,)), (), (long, long))
    lines = [*cards(on_gpus(8, TROUBLE), width, glyphs), plain(gpu_line(device, width))]

    assert max(cell_width(line) for line in lines) <= width
    assert "\x1b" not in "".join(lines)


def test_the_row_of_a_host_sums_its_gpus_up():
    snapshot = on_gpus()
    codes = codes_of(snapshot, ())
    (host,) = hosts_facts(snapshot, hosts_of_ranks(names_of(snapshot.ranks)), codes, POLICY)
    table = hosts_table(140, (host,), gpus=True)

    assert "8  96%   356G/640G" in plain(host_row(host, codes, None, table))
    assert line_width(host_row(host, codes, None, table)) <= 140
    silent = replace(
        snapshot, hosts=tuple(_with_watch(one, GpuWatch(34_000)) for one in snapshot.hosts)
    )
    (host,) = hosts_facts(silent, hosts_of_ranks(names_of(silent.ranks)), codes, POLICY)
    assert "driver silent 34s" in plain(host_row(host, codes, None, table))
    fails = replace(
        snapshot, hosts=tuple(_with_watch(one, GpuWatch(1, "no")) for one in snapshot.hosts)
    )
    (host,) = hosts_facts(fails, hosts_of_ranks(names_of(fails.ranks)), codes, POLICY)
    assert "driver fails" in plain(host_row(host, codes, None, table))


def _with_watch(host, watch):
    return type(host)(
        **{name: getattr(host, name) for name in host.__struct_fields__} | {"gpu_watch": watch}
    )


def test_the_page_of_a_rank_tells_its_gpu_and_what_torch_has_of_it():
    text = "\n".join(page(on_gpus(8, TROUBLE), 3))

    assert "GPU 3, NVIDIA H100 80GB HBM3" in text
    assert "torch says so" in text
    assert "36.0 GiB allocated, at most 38.0 GiB, 39.0 GiB reserved" in text
    assert "bob 3310 python sample.py 31.0G" in text
    assert "1755 of 1980 MHz" in text
    assert "612 of 700 W, 64 C" in text
    assert "PCIe 5 x16, 18 NVLinks" in text
    assert "2.27.5" in text


def test_a_narrow_link_says_what_it_could_be():
    text = "\n".join(page(on_gpus(8, TROUBLE), 6))

    assert "PCIe 5 x8 of x16, 17 of 18 NVLinks" in text
    assert "Xid 94, 2 uncorrectable memory errors" in text


def test_json_has_the_gpu_of_each_rank():
    said = status_json(on_gpus())["ranks"][2]

    assert said["nccl"] == "ok"
    assert set(said["gpu"]) == {
        "index",
        "uuid",
        "name",
        "known_by",
        "util_ratio",
        "used_bytes",
        "total_bytes",
        "allocated_bytes",
        "reserved_bytes",
        "power_watts",
        "celsius",
        "sm_mhz",
        "throttle",
        "lost",
        "waits",
    }
    assert said["gpu"]["index"] == 2
    assert said["gpu"]["known_by"] == "torch"
    assert said["gpu"]["reserved_bytes"] == 39 * GIB


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "ok"),
        ({"building": True, "pending_since_unix_ns": 1}, "init"),
        ({"pending_since_unix_ns": 1}, "wait"),
        ({"error": "TIMEOUT", "pending_since_unix_ns": 1}, "err"),
    ],
)
def test_nccl_in_one_word(change, word):
    rank = on_gpus().ranks[0]
    group = type(rank.comm.groups[0])(
        **{n: getattr(rank.comm.groups[0], n) for n in rank.comm.groups[0].__struct_fields__}
        | change
    )

    assert replace(rank, comm={"groups": (group,)}).nccl == word
    assert replace(rank, comm={"groups": (group,)}, gpu={"own": None, "cuda": None}).nccl is None


@pytest.mark.parametrize(("refused", "mark"), [(0, ""), (1, "warning")])
def test_a_gpu_is_marked_from_the_first_allocation_on_that_it_refused(refused, mark):
    device = Device("node0", Gpu(0, "GPU-a", 0.0, 1, 100), (0,), refused_lately=refused)

    assert trouble_of(device, builders.NOW, POLICY) == mark


@pytest.mark.parametrize(("util", "used", "free"), [(0, 4, True), (0.1, 4, False), (0, 6, False)])
def test_a_gpu_that_hardly_anybody_uses_is_free(util, used, free):
    assert is_free(Gpu(0, "GPU-a", util, used, 100), POLICY) == free
