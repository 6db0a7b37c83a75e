"""Ranks that wait for processes of another job."""

import json
import time

import pytest

pytestmark = pytest.mark.torch
WAITED_S = 8.0
"""A rank without progress for which others wait is critical after 5 s."""


def test_an_engine_that_waits_for_weights_of_a_trainer_is_not_accused(world):
    trainer = world.start("weights", str(world.folder), "trainer", ddtop=False)
    engine = world.torchrun("weights", str(world.folder), "engine")
    job = world.job()
    port = world.folder / "port"

    def waits():
        text = " ".join(world.ddtop("diagnose", job, "--for", "1").stdout.split())
        store = f"store 127.0.0.1:{port.read_text()}"
        return f"group weights ({store}) for processes outside this job" in text

    world.until(waits, 90.0, "wait for the other job")
    seen, until = [], time.monotonic() + WAITED_S
    while time.monotonic() < until:
        seen += world.diagnose()["findings"]

    assert seen == []
    status = json.loads(world.ddtop("status", job, "--json").stdout)
    (group,) = [one for one in status["groups"] if one["name"] == "weights"]
    assert (group["foreign_store"], group["ranks"]) == (f"127.0.0.1:{port.read_text()}", [])
    (world.folder / "push").touch()
    assert [world.done(engine), world.done(trainer)] == [0, 0]


def test_a_rank_that_asks_a_job_that_stands_still_names_the_rank_that_does_not_answer(world):
    world.torchrun("asks", str(world.folder), "serve", DDTOP_JOB="serving")
    world.until((world.folder / "asked-port").exists, 90.0, "listen")
    world.torchrun("asks", str(world.folder), "ask", DDTOP_JOB="asking")

    def says():
        text = " ".join(world.ddtop("diagnose", "asking", "--for", "1").stdout.split())
        return "waits for job serving, rank 0, which has been in" in text and text

    text = world.until(says, 90.0, "wait for the other job")

    assert "critical: waits-for-job" in text
    assert "rank 1 waits for it in all_reduce" in text
    assert "look at that job: ddtop diagnose serving" in text
    # They are one system: without a name the commands print both.
    together = world.ddtop("diagnose", "--json", "--for", "1")
    documents = {one["job"]: one for one in map(json.loads, together.stdout.splitlines())}
    assert {job: one["system"]["role"] for job, one in documents.items()} == {
        "serving": "serving",
        "asking": "asking",
    }
    assert together.returncode == 1
    stacks = world.ddtop("stacks").stdout.splitlines()
    assert {"-- serving", "-- asking"} <= set(stacks)
