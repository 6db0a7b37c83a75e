"""`ddtop jobs` and `ddtop diagnose` before there is a rank."""

import json
import time

import pytest

from tests.cli.commands import ddtop
from tests.feeds.launchers import torchrun
from tests.ports import free_port


@pytest.fixture
def first(home, tmp_path):
    with torchrun(tmp_path, "first", free_port()) as pid:
        yield pid


def test_a_launcher_that_waits_for_nodes_is_listed_with_what_to_type(first):
    lines = ddtop("jobs").stdout.splitlines()
    listed = json.loads(ddtop("jobs", "--json").stdout)["outside"]

    assert "launchers without a rank:" in lines
    (line,) = [line for line in lines if line.endswith(f"ddtop diagnose --pid {first}")]
    assert line.startswith("  tabular, started ")
    (entry,) = [one for one in listed if one["launchers"] == [first]]
    assert (entry["script"], entry["ranks"]) == ("tabular", [])
    assert f"ddtop diagnose --pid {first}" in ddtop("status").stderr


@pytest.mark.parametrize("named", [True, False])
def test_diagnose_says_for_how_many_nodes_it_waits_and_where(first, tmp_path, named):
    config = tmp_path / "config.toml"
    config.write_text(
        "[limits]\ninit_missing_limit_s = 0.1\n[limits.starting]\ninit_missing_critical_s = 0.6\n"
    )
    words = ["diagnose", "--json", *(["--pid", first] if named else [])]
    until = time.monotonic() + 20.0
    while (done := ddtop(*words, DDTOP_CONFIG=str(config))).returncode == 0:
        assert time.monotonic() < until

    found = json.loads(done.stdout)["findings"]
    (mine,) = [one for one in found if f"(pid {first}) has waited" in one["summary"]]
    assert done.returncode == 1
    assert (mine["kind"], mine["severity"], mine["ranks"]) == ("rank-missing", "critical", [])
    assert "for 1 of 2 nodes at 127.0.0.1:" in mine["summary"]


def test_in_its_first_seconds_it_only_starts(first):
    done = ddtop("diagnose", "--pid", first, exits=0)

    assert f"starting: no rank of pid {first} yet" in done.stdout
