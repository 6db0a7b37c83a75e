"""The JSON that scripts read: its keys are a promise."""

import json

import msgspec

from ddtop.model.facts import Axis, RankFacts, State
from ddtop.present.documents import diagnose_json, progress_json, status_json
from ddtop.wire.records import Stage, TrainingProgress
from tests.ui import builders
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace


def printed(document):
    """The document as it is read: all its keys are there, see `documents_are_valid`."""
    return json.loads(json.dumps(document))


def test_a_status_has_a_row_for_every_rank():
    found = printed(status_json(builders.hang()[0]))

    assert (found["schema"], found["job"], found["live"]) == ("ddtop.status/1", "train-4730", True)
    assert len(found["ranks"]) == 8
    assert found["ranks"][0] == {
        "rank": 0,
        "host": "node000",
        "pid": 4800,
        "state": "blocked",
        "blamed": False,
        "phase": "running",
        "place": {
            "function": "train_step",
            "file": "/home/ada/train.py",
            "line": 88,
            "waits_on": None,
            "class": None,
            "framework": None,
            "framework_call": None,
        },
        "chain": [],
        "iteration": 12_482,
        "iteration_source": "optimizer",
        "step_ms": None,
        "collective": {
            "op": "gloo:all_reduce",
            "group": "0",
            "seq": 74_893,
            "age_s": 31.0,
            "state": "started",
            "group_meaning": None,
        },
        "calls": [],
        "wait_ratio": 0.94,
        "loader": {"depth": 8, "capacity": 8, "workers": 4, "wait_ratio": 0.01},
        "gpu": None,
        "nccl": None,
        "cpu_ratio": 0.01,
        "rss_bytes": 1180 * 2**20,
        "report_age_s": 0.2,
        "progress": None,
        "coordinates": None,
        "pipeline": None,
        "role": None,
        "rpc": None,
        "expected": None,
    }


def test_a_rank_that_was_never_seen_has_all_keys_too():
    bare = replace(builders.healthy(1), ranks=(RankFacts(0, State.MISSING),))
    (rank,) = printed(status_json(bare))["ranks"]

    assert {key for key, value in rank.items() if value is not None} == {
        "rank",
        "state",
        "blamed",
        "phase",
        "chain",
        "calls",
    }


def test_a_diagnosis_in_json():
    snapshot, verdict = builders.hang()
    found = printed(diagnose_json(snapshot, verdict))

    assert (found["ended"], found["health"]) == (None, "critical")
    assert found["findings"][0]["victims"] == [0, 1, 2, 3, 4, 6, 7]


def test_how_a_job_ended_is_part_of_its_diagnosis():
    found = diagnose_json(*builders.ended())

    assert found["live"] is False
    assert found["ended"] == {
        "reason": "exit code 1 of rank 2",
        "first_rank": 2,
        "time_unix_ns": NOW - 40 * SECOND,
    }


def test_how_far_the_training_is_in_json():
    told = TrainingProgress("hf-trainer", 1200, 10_000, 3.2, 10.0, "train", loss=2.31, eta_s=5400.0)
    found = progress_json(told)

    assert found is not None
    assert {key: value for key, value in found.items() if value is not None} == {
        "source": "hf-trainer",
        "step": 1200,
        "total_steps": 10_000,
        "epoch": 3.2,
        "total_epochs": 10.0,
        "phase": "train",
        "loss": 2.31,
        "loss_finite": True,
        "eta_s": 5400.0,
        "phases_ended": 0,
    }


def test_a_loss_that_is_no_number_is_null_and_said_to_be_so():
    """JSON has no nan, and scripts that read it strictly would fail."""
    found = progress_json(TrainingProgress("user", 3, loss=float("nan"), lr=float("inf")))

    assert found is not None
    assert (found["loss"], found["loss_finite"], found["lr"]) == (None, False, None)
    json.dumps(found, allow_nan=False)


def test_a_parallel_job_has_the_names_of_its_groups_both_ways():
    snapshot, verdict = builders.hang()
    group = msgspec.structs.replace(snapshot.groups[0], meanings=("fsdp", "dp"))
    first = replace(
        snapshot.ranks[0],
        comm={
            "coordinates": (("fsdp", 0, 8),),
            "pipeline": (Stage(1, 2, 4, (2, 3), "forward", 4),),
        },
    )
    snapshot = replace(
        snapshot, groups=(group,), ranks=(first, *snapshot.ranks[1:]), axes=(Axis("fsdp", 8),)
    )
    status = status_json(snapshot)
    finding = diagnose_json(snapshot, verdict)["findings"][0]

    assert status["axes"] == [{"name": "fsdp", "size": 8}]
    assert status["groups"] == [
        {
            "name": "0", "description": "default_pg", "meaning": "fsdp",
            "meanings": ["fsdp", "dp"], "backend": "gloo", "ranks": list(range(8)),
            "foreign_store": None,
        }
    ]  # fmt: skip
    assert status["ranks"][0]["coordinates"] == {"fsdp": 0}
    assert status["ranks"][0]["pipeline"] == [
        {
            "stage": 1, "stages": 2, "microbatches": 4, "in_flight": [2, 3], "pass": "forward",
            "microbatch": 4,
        }
    ]  # fmt: skip
    assert (finding["group"], finding["group_meaning"]) == ("0", "fsdp")
    assert finding["group_ranks"] == list(range(8))
