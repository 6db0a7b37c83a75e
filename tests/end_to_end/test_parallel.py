"""A real job on a DeviceMesh, with torch's 1F1B schedule in one dimension."""

import pytest

pytestmark = pytest.mark.torch


def test_a_hang_in_a_pipeline_is_told_by_dimension_stage_and_microbatch(world):
    """The 60th forward of rank 3 is that of microbatch 2: the first forward finds the shapes, and
    each step has four.
    """
    world.torchrun("parallel", "pipeline", "3", "60", ranks=4)

    finding = world.finding("not-in-collective", 90)
    rows = world.status()

    assert (finding["severity"], finding["ranks"]) == ("critical", [3])
    assert "fetch_labels (parallel.py:" in finding["summary"]
    assert "rank 2 waits for it in all_reduce" in finding["summary"]
    assert " of dp (ranks 2,3)" in finding["summary"]
    assert (finding["group_meaning"], finding["group_ranks"]) == ("dp", [2, 3])
    assert [row["coordinates"] for row in rows] == [
        {"pp": pp, "dp": dp} for pp in (0, 1) for dp in (0, 1)
    ]
    assert [row["pipeline"][0]["stage"] for row in rows] == [0, 0, 1, 1]
    (stage,) = rows[3]["pipeline"]
    assert (stage["stages"], stage["microbatches"]) == (2, 4)
    if stage["pass"] is not None:
        assert (stage["pass"], stage["microbatch"]) == ("forward", 2)
    assert any(
        line.startswith("rank 3 is pp 1, dp 1; pipeline stage 1 (0-1)")
        for line in finding["evidence"]
    )


def test_a_hang_in_an_rpc_names_the_worker_that_stands_in_the_call(world):
    """torch does not tell to whom a call went. Only one worker runs one here."""
    world.torchrun("rpc", ranks=2)

    def waits():
        rows = world.status()
        told = [row["rpc"] for row in rows]
        both = len(told) == 2 and all(told) and told[0]["waits"] and told[1]["serves"]
        return rows if both else None

    rows = world.until(waits, 90, "a call without an answer that both sides tell of")

    assert rows[0]["rpc"] == {"name": "worker0", "id": 0, "waits": 1, "serves": 0}
    assert rows[1]["rpc"] == {"name": "worker1", "id": 1, "waits": 0, "serves": 1}
    assert rows[0]["place"]["waits_on"] == "rpc"
    assert {row["phase"] for row in rows} == {"running"}
    finding = world.finding("not-in-collective", within_s=30)
    assert (finding["ranks"], finding["victims"]) == ([1], [0])
