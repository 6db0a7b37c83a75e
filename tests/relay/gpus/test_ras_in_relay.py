"""A real relay and a double of NCCL's status service; the test plays the ranks."""

import json
import socket
from contextlib import closing
from dataclasses import replace

import pytest

from ddtop.policy import POLICY
from ddtop.wire.records import CommStatus, RankState
from tests.relay.gpus.ras_service import NEW, Service, answer, rank
from tests.relay.stage import Stage, is_a


@pytest.fixture
def stage(home, monkeypatch):
    monkeypatch.setattr("ddtop.relay.gpus.ras.RAS_SILENT_S", 0.5)
    found = Stage(home, policy=replace(POLICY, ras_stuck_s=0.5))
    yield found
    found.close()


def test_viewers_hear_what_it_says_of_a_job_whose_agents_are_all_silent(stage):
    """Only one of two ranks is present, so the relay asks with care."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    link, pid = stage.rank(backend="nccl", environment={"NCCL_RAS_ADDR": address})
    said = answer(rank(0, pid), rank(1, pid + 1, 811))
    with closing(Service((NEW, json.dumps(said).encode()), address=address)) as service:
        stage.says(link, RankState("running", iteration=7), pid=pid)
        told = stage.heard(stage.viewer(), is_a(CommStatus))[-1].answer

        assert [rank.counts["AllReduce"] for rank in told.communicators[0].ranks] == [812, 811]
        assert service.said == [["CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR ?", "STATUS"]]
