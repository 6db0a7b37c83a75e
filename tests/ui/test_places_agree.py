"""Two places of the screen, of the list of jobs and of the JSON say the same of the same thing, at
each moment of each simulated job."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.history import JobHistory, empty_memory
from ddtop.model.facts import State
from ddtop.policy import POLICY
from ddtop.present.documents import diagnose_json
from ddtop.present.findings import banner_lines, header_line
from ddtop.present.job_charts import one_line
from ddtop.present.jobs import health_of
from ddtop.present.map import class_of, codes_of
from ddtop.present.rank import detail_lines
from ddtop.present.scene import Scene
from ddtop.present.strip import measured
from ddtop.present.text import plain
from ddtop.sim.incidents import SCENARIOS
from ddtop.ui.rows import legend_line
from ddtop.words.units import duration
from tests.sim.watching import Watcher, simulated

RANKS, SECONDS, WIDE = 16, 32, 400


def moments(name):
    """(snapshot, verdict, history) of each second; what happens begins in the third."""
    incidents = tuple(
        replace(one, begin_s=min(one.begin_s, 3.0), end_s=26.0 if one.end_s else None)
        for one in SCENARIOS[name].incidents[:1]
    )
    watcher, history = Watcher(simulated(RANKS, *incidents)), JobHistory(POLICY)
    for second in range(1, SECONDS):
        snapshot, verdict = watcher.until(float(second))
        history.record(snapshot)
        yield snapshot, verdict, history


def header_of(snapshot, history):
    per_s = history.now(snapshot.time_unix_ns).iterations_per_s
    return plain(header_line(snapshot, WIDE, per_s=per_s))


def first(pattern, text):
    found = re.search(pattern, text)
    return found and found[1]


def say_the_same_numbers(snapshot, verdict, history, seen):
    """The header, the strip, the list of jobs and the JSON."""
    header, health = header_of(snapshot, history), health_of(verdict, snapshot)
    until = snapshot.time_unix_ns
    strip = plain(one_line(Scene(snapshot, history, verdict), measured(history, until), WIDE))
    json = diagnose_json(snapshot, verdict)

    assert header.split("  ")[1] == f"{health.reporting}/{health.world_size} ranks"
    assert json["reporting"] == health.reporting
    assert json["world_size"] == health.world_size
    if (shown := first(r"iter ([\d,]+)", header)) is not None:
        seen["iteration"] += 1
        assert int(shown.replace(",", "")) == json["iteration"]
    if (speed := first(r"(\S+) it/s", header)) is not None:
        seen["speed"] += 1
        assert speed == first(r"(\S+) it/s", strip)
    if (still := first(r"NO PROGRESS (.+?)  ", header)) is not None:
        seen["still"] += 1
        assert still == duration(health.still_s)
        assert first(r"(\S+) it/s", strip) in (None, "0.0")


def say_the_same_of_each_rank(snapshot, verdict):
    """The banner, the list of jobs, the JSON, the map and the pages."""
    banner = "\n".join(map(plain, banner_lines(snapshot, verdict, WIDE)))
    health, json = health_of(verdict, snapshot), diagnose_json(snapshot, verdict)
    codes = codes_of(snapshot, culprits(verdict))
    legend = plain(legend_line(snapshot, codes, WIDE))
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (?!on )([a-z]+)", legend)}

    assert counts == Counter(class_of(code).word for code in codes)
    assert [finding["kind"] for finding in json["findings"]] == [
        finding.kind for finding in verdict.findings
    ]
    if verdict.findings:
        assert verdict.findings[0].summary.split(";")[0] in banner.replace("\n  ", " ")
    if health.kind is not None:
        assert health.kind == verdict.findings[0].kind
    if (moving := first(r"ok: (\d+)/16 moving", banner)) is not None:
        assert int(moving) == snapshot.moving
        assert State.BLOCKED not in {rank.state for rank in snapshot.ranks}
    for number in (0, 5, RANKS - 1):
        page = plain(detail_lines(snapshot, number, empty_memory(), WIDE)[0])
        assert snapshot.rank(number).state.value in page


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_all_places_agree(name):
    seen = Counter()
    for snapshot, verdict, history in moments(name):
        say_the_same_numbers(snapshot, verdict, history, seen)
        say_the_same_of_each_rank(snapshot, verdict)
    # A job whose ranks have not met yet has no number to compare.
    if name == "rank-missing":
        return
    assert seen["iteration"] > 10
    assert seen["speed"] + seen["still"] > 10
