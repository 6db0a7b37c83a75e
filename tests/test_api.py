"""ddtop as a library: `from ddtop import watch`, against a real relay."""

import subprocess
import sys
import threading

import pytest

import ddtop
from ddtop.api import Event, JobNotFoundError
from tests.cli.commands import finished, write_ended
from tests.relay.stage import listed_job


@pytest.fixture
def stage(home):
    with listed_job(home) as found:
        yield found


def test_three_lines_follow_a_job(stage):
    for event in ddtop.watch("train"):
        assert (event.event, event.job, event.ranks) == ("joined", "train", (0,))
        assert event.text == "rank 0 of 2"
        break


def test_a_rank_that_is_killed_is_an_event_with_its_finding(stage):
    events = ddtop.watch()
    assert next(events).event == "joined"
    stage.children[0].kill()

    found = next(one for one in events if one.event == "appeared")
    events.close()
    assert found.finding is not None
    assert (found.finding.kind, found.finding.ranks) == ("rank-killed", (0,))


def test_the_iterator_leaves_no_thread_behind(stage):
    before = set(threading.enumerate())
    events = ddtop.watch("train")
    next(events)
    events.close()

    assert {one for one in threading.enumerate() if not one.daemon} <= before
    assert "ddtop-watch" not in {one.name for one in threading.enumerate()}


def test_a_job_that_nobody_has_is_reported_at_once_not_at_the_first_event(home):
    with pytest.raises(JobNotFoundError, match="no job named nothing"):
        ddtop.watch("nothing")


def test_a_job_that_has_ended_tells_its_end_and_stops(home):
    write_ended(finished(), "old")

    events = list(ddtop.watch("old"))

    assert [one.event for one in events][-1] == "ended"
    assert isinstance(events[-1], Event)
    assert events[-1].ended is not None
    assert events[-1].ended.first_rank is None


def test_importing_ddtop_still_imports_nothing_else():
    code = (
        "import sys, ddtop; print(sorted(m for m in sys.modules if m.startswith('ddtop.')), "
        "'asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() in ("['ddtop._version'] False", "[] False")


def test_a_name_that_ddtop_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'wacth'"):
        _ = ddtop.wacth
